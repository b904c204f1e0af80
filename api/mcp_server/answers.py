"""The answer to one request, as JSON where it comes at once and as an event stream where it takes longer."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from governance.canonical import JSON

AT_ONCE_S: Final = 1.0
"""An answer that comes within this time is plain JSON; later, a stream is begun, which proxies keep open."""

KEEP_ALIVE_S: Final = 15.0
"""A comment is sent after this long without an answer."""

JSON_TYPE: Final = "application/json"
STREAM_TYPE: Final = "text/event-stream"


@dataclass(frozen=True)
class Reply:
    """A finished answer: one message or a batch of them, None for an empty body."""

    body: JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def content(self) -> bytes:
        """Return the body as JSON text."""
        if self.body is None:
            return b""
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


OnGone = Callable[["asyncio.Task[Reply]"], Awaitable[None]]
"""What is done when the client has closed the connection before its answer was made."""


@dataclass(frozen=True)
class Manner:
    """How a client takes its answer."""

    accepts_json: bool
    accepts_stream: bool
    event_id: Callable[[], Awaitable[str | None]] | None = None
    """Names the event that begins the stream, so that the answer can be fetched again."""
    on_gone: OnGone | None = None


class PendingAnswer(Response):
    """Sends an answer that is still being made; a client that goes away leaves nothing running for nobody.

    Source: MCP 2025-11-25, Transports, Sending Messages to the Server; 2026-07-28, Cancellation: closing the
    response stream cancels the request.
    """

    def __init__(self, making: Coroutine[Any, Any, Reply], manner: Manner) -> None:
        """Answer with what `making` returns."""
        super().__init__()
        self._making = making
        self._manner = manner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the answer, watch the connection, and send what there is to send."""
        del scope
        making = asyncio.create_task(self._making)
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({making, gone}, timeout=AT_ONCE_S, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not making.done():
                await self._give_up(making)
            elif making.done() or not self._manner.accepts_stream:
                await self._send_plain(making, gone, send)
            else:
                await self._send_stream(making, gone, send)
        finally:
            gone.cancel()

    async def _give_up(self, making: "asyncio.Task[Reply]") -> None:
        if self._manner.on_gone is not None:
            await self._manner.on_gone(making)
        # The round itself goes on, or was told to stop; nobody waits for its answer any more.
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)

    async def _send_plain(
        self, making: "asyncio.Task[Reply]", gone: "asyncio.Task[None]", send: Send
    ) -> None:
        await asyncio.wait({making, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not making.done():
            await self._give_up(making)
            return
        reply = making.result()
        if not self._manner.accepts_json and reply.body is not None:
            await send(_stream_start(reply.headers))
            await _send_text(send, _event(reply), more=False)
            return
        content = reply.content()
        headers = {"content-type": JSON_TYPE, **reply.headers, "content-length": str(len(content))}
        await send({"type": "http.response.start", "status": reply.status, "headers": _raw(headers)})
        await send({"type": "http.response.body", "body": content})

    async def _send_stream(
        self, making: "asyncio.Task[Reply]", gone: "asyncio.Task[None]", send: Send
    ) -> None:
        await send(_stream_start({}))
        event_id = None if self._manner.event_id is None else await self._manner.event_id()
        if event_id is not None:
            await _send_text(send, f"id: {event_id}\nretry: 500\ndata: \n\n")
        while True:
            await asyncio.wait({making, gone}, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if making.done():
                await _send_text(send, _event(making.result()), more=False)
                return
            if gone.done():
                await self._give_up(making)
                return
            await _send_text(send, ": keep-alive\n\n")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(reply: Reply) -> str:
    return f"event: message\ndata: {reply.content().decode()}\n\n"


def _stream_start(headers: Mapping[str, str]) -> dict[str, Any]:
    shown = {
        "content-type": STREAM_TYPE,
        "cache-control": "no-store, no-transform",
        "x-accel-buffering": "no",
        **headers,
    }
    return {"type": "http.response.start", "status": 200, "headers": _raw(shown)}


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def _send_text(send: Send, text: str, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": more})
