"""A chat stream as server-sent events: chunks, comments while it is silent, and how it ends.

An answer that is whole ends with ``[DONE]``. One that breaks off ends with an error event and without it, so
that no client takes half an answer for a whole one.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from activities.chat_http.errors import ChatError
from activities.chat_http.types import Chunk
from api.chat import PreparedChat, problem_of_chat, shown_answer, without_usage
from api.chat_feed import ChatFeed, Ended, Item
from api.chat_ledger import CANCELED, ChatOutcome
from api.disconnects import disconnected
from api.errors import error_body
from governance.canonical import JSON
from governance.messages import Language

COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

Settle = Callable[[ChatOutcome], Coroutine[Any, Any, None]]
"""Told once how the answer ended."""


class ChatStream(Response):
    """Sends what comes of a feed, and closes it when the caller goes away."""

    media_type = "text/event-stream"

    def __init__(
        self,
        feed: ChatFeed,
        chat: PreparedChat,
        settle: Settle,
        *,
        first: Item | None,
        keep_alive_s: float,
        language: Language,
    ) -> None:
        """Continue a feed that was started; `first` is what came of it already."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", **chat.headers}
        super().__init__(headers=headers)
        # A stream has no length: the empty body that it was made with must not be announced.
        del self.headers["content-length"]
        self._feed, self._chat, self._settle = feed, chat, settle
        self._first, self._keep_alive_s, self._language = first, keep_alive_s, language

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the answer ends or the caller has gone; then close the feed and settle."""
        del scope
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(disconnected(receive))
        outcome = ChatOutcome(None, CANCELED)
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                outcome = sending.result()
        finally:
            sending.cancel()
            gone.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            await self._feed.aclose()
            await self._settle(ChatOutcome(self._feed.usage, outcome.code))

    async def _send(self, send: Send) -> ChatOutcome:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        outcome: list[ChatOutcome] = []
        async with aclosing(self._events(outcome)) as events:
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return outcome[0]

    async def _events(self, outcome: list[ChatOutcome]) -> AsyncGenerator[bytes, None]:
        """Yield the stream's bytes, as many events at once as have come, and note how it ended."""
        item = self._first
        while True:
            items = ([] if item is None else [item]) + self._feed.waiting()
            last = next((one for one in items if isinstance(one, Ended | ChatError)), None)
            data = b"".join(self._shown(one for one in items if isinstance(one, Chunk)))
            if isinstance(last, Ended):
                outcome.append(ChatOutcome(None))
                yield data + DONE
                return
            if last is not None:
                shown = self._error(last)
                outcome.append(ChatOutcome(None, shown["code"]))
                yield data + _event(json.dumps({"error": shown}, ensure_ascii=False).encode())
                return
            if data or not items:
                yield data or COMMENT
            item = await self._feed.next(self._keep_alive_s)

    def _shown(self, chunks: Iterable[Chunk]) -> Iterable[bytes]:
        for chunk in chunks:
            body = chunk.body
            if not self._chat.wants_usage and self._chat.asks_for_usage:
                # We asked, not the caller, who must not be given a chunk without a choice.
                if chunk.is_usage_only:
                    continue
                body = without_usage(body)
            yield _event(shown_answer(body, self._chat))

    def _error(self, error: ChatError) -> dict[str, JSON]:
        """Write an error as OpenAI does inside a stream, with the fields of ours beside its own."""
        problem = problem_of_chat(error, self._chat)
        shown: dict[str, JSON] = error_body(problem, self._chat.request_id, self._language)["error"]
        return {**shown, "type": problem.code.value, "param": None}


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
