"""Listens to what a server says outside of calls: the GET stream, or a modern subscription."""

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import httpx

from activities.mcp_http import wire
from activities.mcp_http.conversation import FIRST_RETRY_S, MIN_RETRY_S
from activities.mcp_http.correlation import Answered, AnswerWait, Asked, Failed, Noted, Progressed
from activities.mcp_http.errors import MCPError, Outcome, SessionLost, TransportError
from activities.mcp_http.exchange import Line, SendWatch, content_type
from activities.mcp_http.headers import EVENT_STREAM_TYPE, get_headers, is_sendable_event_id, modern_headers
from activities.mcp_http.replies import declared_capabilities
from activities.mcp_http.server_requests import ReplyDesk
from activities.mcp_http.sse import MAX_RETRY_S, Event
from activities.mcp_http.types import JSON, CallHooks, OnMessage, OpenSession

LONG_ENOUGH_S: Final = 60.0
"""A stream that stood for this long, the wait after it included, was worth opening."""

_SUBSCRIPTION: Final[dict[str, JSON]] = {"notifications": {"toolsListChanged": True}}


class Listener:
    """Holds one listening stream and reconnects it until it is cancelled or no use."""

    def __init__(
        self,
        line: Line,
        session: OpenSession,
        on_message: OnMessage,
        hooks: CallHooks,
        on_open: Callable[[], None],
    ) -> None:
        self._line = line
        self._session = session
        self._target = line.target(session)
        self._on_message = on_message
        self._on_open = on_open
        self._desk = ReplyDesk(line, self._target, hooks)
        self._last_event_id: str | None = None
        self._retry_s: float | None = None
        self._fruitless = 0
        self._short = 0
        self._over = False

    async def run(self, last_event_id: str | None) -> None:
        """Listen; return when the server offers no such stream or ends it for good.

        Raises:
            SessionLost: The session is gone.
            MCPError: The stream was refused (``listen_conflict``: another one is open), or keeps breaking.
        """
        self._last_event_id = last_event_id
        try:
            while not self._over and self._fruitless <= self._line.endpoint.limits.max_resumes:
                self._fruitless += 1
                opened_at = time.monotonic()
                try:
                    await (self._subscribe() if self._session.era == "modern" else self._get())
                except TransportError as exc:
                    if exc.http_status is not None:
                        raise
                if not self._over:
                    await asyncio.sleep(self._delay_s())
                    self._short = self._short + 1 if time.monotonic() - opened_at < LONG_ENOUGH_S else 0
        finally:
            await self._desk.close()
        if not self._over:
            raise TransportError(
                "stream_lost",
                "The MCP server's stream ends again and again without an event.",
                Outcome.NOT_SENT,
            )

    def _delay_s(self) -> float:
        # Nobody waits for this stream: one that keeps ending soon is opened ever more rarely.
        asked_s = FIRST_RETRY_S if self._retry_s is None else max(self._retry_s, MIN_RETRY_S)
        return min(asked_s * 2.0 ** min(max(self._fruitless - 1, self._short), 16), MAX_RETRY_S)

    async def _get(self) -> None:
        target = self._target
        headers = get_headers(self._line.endpoint, target.version, target.session_id, self._last_event_id)
        async with self._line.bare("GET", target, headers, listens=True) as response:
            if response.status_code >= 300:
                self._judge(await self._line.refuse(response, had_session=target.session_id is not None))
            elif content_type(response) != EVENT_STREAM_TYPE:
                self._over = True
            else:
                await self._read(response, None)

    def _judge(self, error: MCPError) -> None:
        if error.http_status in {405, 501} or (
            error.http_status == 404 and not isinstance(error, SessionLost)
        ):
            self._over = True
        elif error.http_status == 409:
            raise TransportError(
                "listen_conflict",
                "Another stream is open for this session; servers allow one.",
                Outcome.REFUSED,
                retryable=True,
                details=error.details,
            )
        else:
            raise error

    async def _subscribe(self) -> None:
        """Source: MCP 2026-07-28, Utilities, Subscriptions."""
        request_id, endpoint = str(uuid.uuid4()), self._line.endpoint
        declared = declared_capabilities(endpoint.elicitation, wire.MODERN_VERSION)
        params = {**_SUBSCRIPTION, "_meta": wire.modern_meta(endpoint.client_info, declared)}
        body = wire.request_bytes(request_id, "subscriptions/listen", params)
        extra = modern_headers("subscriptions/listen", None, {}, {})
        wait = AnswerWait(request_id, "modern", endpoint.limits.max_json_depth)
        async with self._line.post(self._target, body, SendWatch(), extra, listens=True) as response:
            if response.status_code >= 300:
                error = await self._line.refuse(response, had_session=False)
                if error.code != "method_not_found":
                    raise error
                self._over = True
            elif content_type(response) != EVENT_STREAM_TYPE:
                self._over = True
            else:
                await self._read(response, wait)

    async def _read(self, response: httpx.Response, wait: AnswerWait | None) -> None:
        self._on_open()
        wait = wait or AnswerWait("", "legacy", self._line.endpoint.limits.max_json_depth)
        async with aclosing(self._line.events(response, None)) as events:
            async for event in events:
                self._note_cursor(event)
                if event.data:
                    await self._take(wait, event)
                if self._over:
                    return

    def _note_cursor(self, event: Event) -> None:
        if event.retry_s is not None:
            self._retry_s = event.retry_s
        if event.event_id is not None and self._session.era == "legacy":
            self._last_event_id = event.event_id if is_sendable_event_id(event.event_id) else None

    async def _take(self, wait: AnswerWait, event: Event) -> None:
        for step in wait.take_event(event.data):
            self._fruitless = 0
            match step:
                case Asked(request):
                    await self._desk.take(request)
                case Noted(note):
                    message: dict[str, JSON] = {
                        "jsonrpc": "2.0",
                        "method": note.method,
                        "params": note.params,
                    }
                    await self._on_message(message, event.event_id)
                case Answered():
                    self._over = True
                case Failed(error):
                    raise error
                case Progressed():
                    continue
