"""From one request to its answer: event streams, resumption, and what the server wants of us meanwhile."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Final

import httpx

from activities.mcp_http.correlation import Answered, AnswerWait, Asked, Failed, Noted, Progressed, Step
from activities.mcp_http.errors import MCPError, Outcome, TransportError
from activities.mcp_http.exchange import (
    Line,
    SendWatch,
    Target,
    content_type,
    no_answer,
    unexpected_type,
)
from activities.mcp_http.headers import (
    EVENT_STREAM_TYPE,
    JSON_TYPE,
    RawHeaders,
    get_headers,
    is_sendable_event_id,
)
from activities.mcp_http.refusals import MAX_ERROR_BODY_BYTES, error_once_negotiated
from activities.mcp_http.server_requests import ReplyDesk
from activities.mcp_http.sse import MAX_RETRY_S, Event
from activities.mcp_http.types import JSON, CallHooks, Cursor, nothing_before_send

FIRST_RETRY_S: Final = 1.0
"""Wait before a stream is resumed when the server named no time."""

MIN_RETRY_S: Final = 0.1
"""Shortest wait from the second resumption on, whatever the server asks for."""

LONGEST_IDLE_S: Final = 60.0
"""The patience with silent resumed streams doubles up to this."""

_BUSY: Final = frozenset({409, 429, 500, 502, 503, 504})
"""Answers to a resuming GET after which trying again makes sense."""

LINGER_S: Final = 0.02
"""How long the end of an answered stream is awaited, so that its connection can be used again."""

_FREE_BURST: Final = 20
_PER_SECOND: Final = 10.0
_NEVER_SKIPPED: Final = "notifications/tools/list_changed"


class _Tap:
    """Lets bursts of `_FREE_BURST` through, then `_PER_SECOND`."""

    def __init__(self) -> None:
        self._tokens = float(_FREE_BURST)
        self._filled_at = time.monotonic()

    def opens(self) -> bool:
        now = time.monotonic()
        self._tokens = min(_FREE_BURST, self._tokens + (now - self._filled_at) * _PER_SECOND)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Conversation:
    """One request of ours and the messages that belong to it; use once.

    Attributes:
        watch: Knows whether the request has begun to leave.
        response_headers: Of the response to our POST, once it succeeded.
    """

    def __init__(
        self,
        line: Line,
        target: Target,
        request_id: str,
        hooks: CallHooks,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        self.watch = SendWatch(None if hooks.before_send is nothing_before_send else hooks.before_send)
        self.response_headers = httpx.Headers()
        self._line = line
        self._endpoint = line.endpoint
        self._target = target
        self._hooks = hooks
        self._on_progress = on_progress
        self._wait = AnswerWait(request_id, target.era, line.endpoint.limits.max_json_depth)
        self._taps = {kind: _Tap() for kind in (Progressed, Noted, Cursor)}
        self._desk = ReplyDesk(line, target, hooks)
        self._resumable = target.era == "legacy"
        self._last_event_id: str | None = None
        self._retry_s: float | None = None
        self._fruitless = 0
        self._resumes = 0
        self._idle_s = line.endpoint.timeouts.idle_s
        self._idle: asyncio.Timeout | None = None

    async def ask(self, body: bytes, extra: RawHeaders | None = None) -> dict[str, JSON]:
        """POST the request and return its result object.

        Raises:
            MCPError: No result came; `MCPError.outcome` says what that means.
        """
        try:
            try:
                result = await self._post(body, extra)
            except TransportError as exc:
                if exc.outcome is not Outcome.UNKNOWN or not self._can_resume():
                    raise
                result = None
            return await self._resume() if result is None else result
        finally:
            await self._desk.close()

    async def ask_beside(self, body: bytes, events: AsyncIterator[Event]) -> dict[str, JSON]:
        """POST the request and return its result from `events`, a stream that stands beside it.

        Raises:
            MCPError: No result came.
        """
        self._resumable = False
        try:
            async with self._line.post(self._target, body, self.watch) as response:
                if response.status_code >= 300:
                    raise await self._line.refuse(response, had_session=False)
                await self._line.read_body(response, MAX_ERROR_BODY_BYTES)
            async for event in events:
                result = await self._take_event(event)
                if result is not None:
                    return result
        finally:
            await self._desk.close()
        raise self._lost("no_answer", "The MCP server ended the stream without answering.", 200)

    async def resume(self, cursor: Cursor) -> dict[str, JSON]:
        """Fetch the answer to a request that another process sent, from where its stream stood.

        Raises:
            MCPError: No result came; the outcome of the call stays unknown.
        """
        self._last_event_id, self._retry_s = cursor.last_event_id, cursor.retry_s
        try:
            return await self._resume(at_once=True)
        finally:
            await self._desk.close()

    async def _post(self, body: bytes, extra: RawHeaders | None) -> dict[str, JSON] | None:
        """Return the result, or None if the stream ended before it and can be resumed."""
        async with self._line.post(self._target, body, self.watch, extra) as response:
            if response.status_code >= 300:
                error = await self._line.refuse(response, had_session=self._target.session_id is not None)
                raise error_once_negotiated(
                    error, self._target.era, negotiated=self._target.version is not None
                )
            self.response_headers = response.headers
            kind = content_type(response)
            if response.status_code in {202, 204}:
                raise no_answer(response)
            if kind == EVENT_STREAM_TYPE:
                return await self._read_stream(response)
            if kind != JSON_TYPE:
                raise unexpected_type(response, await self._line.read_body(response, MAX_ERROR_BODY_BYTES))
            payload = await self._line.read_body(response, self._endpoint.limits.max_body_bytes)
        return await self._settle(self._wait.take_body(payload))

    async def _read_stream(self, response: httpx.Response) -> dict[str, JSON] | None:
        async with aclosing(self._line.events(response, self._endpoint.limits.max_body_bytes)) as events:
            async for event in events:
                result = await self._take_event(event)
                if result is not None:
                    await self._linger(events)
                    return result
        if self._can_resume():
            return None
        raise self._lost("no_answer", "The MCP server ended the stream without answering.", 200)

    async def _linger(self, events: AsyncIterator[Event]) -> None:
        # Nothing after our answer matters, and nothing that goes wrong here may cost it.
        with contextlib.suppress(TimeoutError, httpx.TransportError, MCPError):
            async with asyncio.timeout(LINGER_S):
                async for _ in events:
                    pass

    async def _take_event(self, event: Event) -> dict[str, JSON] | None:
        if self._resumable:
            await self._note_cursor(event)
        if self._idle is not None and not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time() + self._idle_s)
        # An answer under another event name is taken too: ids decide, and dropping it would hang the call.
        if not event.data:
            return None
        return await self._settle(self._wait.take_event(event.data))

    async def _note_cursor(self, event: Event) -> None:
        if event.retry_s is not None:
            self._retry_s = event.retry_s
        if event.event_id is None:
            return
        # An empty id resets the cursor, by the standard; one that no header can carry is as good as none.
        self._last_event_id = event.event_id if is_sendable_event_id(event.event_id) else None
        if self._last_event_id is not None and self._taps[Cursor].opens():
            await self._hooks.on_cursor(Cursor(self._wait.request_id, self._last_event_id, self._retry_s))

    async def _settle(self, steps: list[Step]) -> dict[str, JSON] | None:
        for step in steps:
            match step:
                case Answered():
                    return step.result
                case Failed():
                    raise step.error
                case Asked():
                    await self._desk.take(step.request)
                case Progressed():
                    if self._on_progress is not None:
                        self._on_progress()
                    if self._taps[Progressed].opens():
                        await self._hooks.on_progress(step.progress)
                case Noted(note):
                    if note.method == _NEVER_SKIPPED or self._taps[Noted].opens():
                        await self._hooks.on_notification(note.method, note.params)
        return None

    def _can_resume(self) -> bool:
        return self._resumable and self._last_event_id is not None

    async def _resume(self, *, at_once: bool = False) -> dict[str, JSON]:
        """Reconnect until the answer is there. Source: MCP 2025-11-25, Transports, Resumability.

        Reconnects that bring no new event id are counted, and the count ends it; a server that keeps
        answering 200 and closing would otherwise be asked for ever.
        """
        self._wait.shares_stream = True
        while self._fruitless <= self._endpoint.limits.max_resumes:
            if not at_once:
                await asyncio.sleep(self._delay_s())
            at_once = False
            seen = self._last_event_id
            result = await self._resume_once()
            if result is not None:
                return result
            if self._last_event_id is None:
                break
            idle = self._idle is not None and self._idle.expired()
            if not idle:
                self._fruitless = self._fruitless + 1 if self._last_event_id == seen else 0
            self._resumes += 1
        raise self._lost("stream_lost", "The MCP server's event stream could not be resumed to the answer.")

    def _delay_s(self) -> float:
        asked_s = FIRST_RETRY_S if self._retry_s is None else self._retry_s
        if self._resumes == 0:
            return asked_s
        return min(max(asked_s, MIN_RETRY_S) * 2.0**self._fruitless, MAX_RETRY_S)

    async def _resume_once(self) -> dict[str, JSON] | None:
        target = self._target
        headers = get_headers(self._endpoint, target.version, target.session_id, self._last_event_id)
        self._idle = None
        try:
            async with self._line.bare("GET", target, headers) as response:
                if response.status_code == 200 and content_type(response) == EVENT_STREAM_TYPE:
                    return await self._read_while_alive(response)
                error = await self._line.refuse(response, had_session=False)
                if response.status_code in _BUSY:
                    return None
                raise self._not_resumable(error, response.status_code)
        except TransportError as exc:
            if exc.code == "resume_refused" or exc.http_status is not None:
                raise
            return None  # The connection failed; the next attempt may not.

    async def _read_while_alive(self, response: httpx.Response) -> dict[str, JSON] | None:
        self._idle = asyncio.timeout(self._idle_s)
        try:
            async with self._idle:
                return await self._read_stream(response)
        except TimeoutError:
            if not self._idle.expired():
                raise
            self._idle_s = min(2 * self._idle_s, LONGEST_IDLE_S)
            return None

    def _not_resumable(self, error: MCPError, status: int) -> TransportError:
        """Return what a refused GET means: the call ran or runs, its answer cannot be fetched.

        A lost session is no reason to repeat the call here, unlike at a POST.
        """
        return TransportError(
            "resume_refused",
            f"The MCP server does not resume the event stream of the call (HTTP {status}).",
            Outcome.UNKNOWN,
            details={**error.details, "http_status": status},
        )

    def _lost(self, code: str, message: str, status: int | None = None) -> TransportError:
        details: dict[str, JSON] = {
            "foreign_ids": self._wait.foreign_ids,
            "bad_frames": self._wait.bad_frames,
        }
        if status is not None:
            details["http_status"] = status
        return TransportError(code, message, Outcome.UNKNOWN, details=details)
