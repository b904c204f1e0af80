"""One chat stream from a provider, read by a task of its own, so that silence can be told from an end."""

import asyncio
from dataclasses import dataclass

from activities.chat_http.errors import ChatError
from activities.chat_http.types import Chunk, Usage
from api.chat import PreparedChat
from api.deps import APIDeps

AHEAD = 64
"""Chunks read before the caller takes them; a slow caller slows the provider down."""


@dataclass(frozen=True)
class Opened:
    """The provider has begun to answer."""


@dataclass(frozen=True)
class Ended:
    """The answer is whole."""


Item = Opened | Chunk | Ended | ChatError
"""What comes of a stream: one `Opened`, chunks, and at its end `Ended` or the error that broke it off."""


class ChatFeed:
    """Reads one stream; whoever starts it closes it, which closes the connection to the provider."""

    def __init__(self, deps: APIDeps, chat: PreparedChat) -> None:
        """Prepare to ask; nothing is sent before `start`."""
        self._deps = deps
        self._chat = chat
        self._items: asyncio.Queue[Item] = asyncio.Queue(AHEAD)
        self._reader: asyncio.Task[None] | None = None
        self._is_whole = False
        self.usage: Usage | None = None
        """The last that the provider told, also of an answer that broke off."""

    def start(self) -> None:
        """Send the request."""
        self._reader = asyncio.create_task(self._read())

    async def next(self, timeout_s: float) -> Item | None:
        """Return the next item, or None where none came within `timeout_s` seconds.

        Raises:
            Exception: what nobody expected ended the reading.
        """
        if not self._items.empty():
            return self._items.get_nowait()
        getting = asyncio.ensure_future(self._items.get())
        reader = self._reader
        waited = {getting} if reader is None or reader.done() else {getting, reader}
        try:
            await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            if reader is not None and reader.done() and self._items.empty():
                reader.result()
        finally:
            getting.cancel()
        return None

    def waiting(self) -> list[Item]:
        """Return what has come already."""
        items: list[Item] = []
        while not self._items.empty():
            items.append(self._items.get_nowait())
        return items

    async def aclose(self) -> None:
        """End the reading, and the connection with it, unless the answer is whole: then it can be kept."""
        if self._reader is not None:
            if not self._is_whole:
                self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async with (
                self._deps.chat.client(self._chat.model.provider) as client,
                client.stream(self._chat.body) as chunks,
            ):
                await self._items.put(Opened())
                async for chunk in chunks:
                    self.usage = chunk.usage or self.usage
                    await self._items.put(chunk)
                self._is_whole = True
                await self._items.put(Ended())
        except ChatError as error:
            await self._items.put(error)
