"""Single HTTP requests to an MCP server: every byte of the transport goes out and comes in here."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, cast

import httpx

from activities.mcp_http.bodies import BodyBroken, BodyDecoder, BodyTooLarge
from activities.mcp_http.connections import LISTENS
from activities.mcp_http.errors import EndpointRefused, MCPError, Outcome, ProtocolError, TransportError
from activities.mcp_http.guard import same_origin
from activities.mcp_http.headers import EVENT_STREAM_TYPE, JSON_TYPE, RawHeaders, is_session_id, post_headers
from activities.mcp_http.refusals import MAX_ERROR_BODY_BYTES, HTTPAnswer, error_of_response
from activities.mcp_http.sse import Event, EventStreamDecoder, EventTooLarge
from activities.mcp_http.types import JSON, Endpoint, Era, OpenSession
from activities.mcp_http.wire import clean_text

MAX_TARGETS: Final = 256
"""Sessions whose headers are kept built; beyond that all are dropped."""

_SENDING: Final = "http11.send_request_headers.started"
"""The trace event httpcore reports once a connection stands and before it writes the first byte."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how requests of one session go; headers are built once."""

    url: httpx.URL
    post: httpx.Headers
    era: Era
    version: str | None
    session_id: str | None


class SendWatch:
    """Knows whether a request has begun to leave; awaits `before_send` at that moment."""

    def __init__(self, before_send: Callable[[], Awaitable[None]] | None = None) -> None:
        self.sent = False
        self._before_send = before_send

    def passed(self) -> None:
        """Note that a response came.

        Raises:
            RuntimeError: `before_send` was never awaited, as the HTTP client does not report events.
        """
        if not self.sent and self._before_send is not None:
            raise RuntimeError("This HTTP client cannot announce requests; make it with build_http_client().")
        self.sent = True

    async def __call__(self, event: str, _info: dict[str, JSON]) -> None:
        """Receive a trace event of httpcore; an exception here keeps the request from being sent."""
        if event == _SENDING and not self.sent:
            if self._before_send is not None:
                await self._before_send()
            self.sent = True


class Line:
    """Sends single HTTP requests to one endpoint and translates every failure into the types of `errors`."""

    def __init__(self, http: httpx.AsyncClient, endpoint: Endpoint) -> None:
        self._http = http
        self.endpoint = endpoint
        timeouts = endpoint.timeouts
        self._timeout = {
            "connect": timeouts.connect_s,
            "read": timeouts.silence_s,
            "write": timeouts.write_s,
            "pool": timeouts.pool_s,
        }
        self._targets: dict[tuple[str | None, ...], Target] = {}

    def target(self, session: OpenSession) -> Target:
        """Return where and how requests of `session` go; built once per session.

        Raises:
            EndpointRefused: The session's URL is not on the origin of the endpoint.
        """
        key = (session.session_id, session.protocol_version, session.url)
        found = self._targets.get(key)
        if found is None:
            if len(self._targets) >= MAX_TARGETS:
                self._targets.clear()
            found = self._targets[key] = self._build_target(session)
        return found

    def _build_target(self, session: OpenSession) -> Target:
        url = session.url or self.endpoint.url
        if not same_origin(url, self.endpoint.url):
            raise EndpointRefused("The URL of the session is not on the origin of its endpoint.")
        version, session_id = session.protocol_version, session.session_id
        if session_id is not None and not is_session_id(session_id):
            raise EndpointRefused("The session id cannot be sent as a header.", "header_refused")
        headers = httpx.Headers(post_headers(self.endpoint, version, session_id))
        return Target(httpx.URL(url), headers, session.era, version, session_id)

    def first_target(self, url: str) -> Target:
        """Return where ``initialize`` goes: no version and no session yet."""
        return Target(
            httpx.URL(url), httpx.Headers(post_headers(self.endpoint, None, None)), "legacy", None, None
        )

    @asynccontextmanager
    async def post(
        self,
        target: Target,
        body: bytes,
        watch: SendWatch,
        extra: RawHeaders | None = None,
        *,
        listens: bool = False,
    ) -> AsyncGenerator[httpx.Response, None]:
        """POST one JSON-RPC message; the response is open, its body unread.

        `listens`: it stays open for as long as anybody wants to hear, and takes no connection from calls.

        Raises:
            MCPError: The request failed, inside the block too.
        """
        headers = target.post
        if extra:
            headers = httpx.Headers([*headers.raw, *extra])
        extensions = {"timeout": self._timeout, "trace": watch, LISTENS: listens}
        request = httpx.Request("POST", target.url, headers=headers, content=body, extensions=extensions)
        async with self._send(request, watch) as response:
            yield response

    async def notify(self, target: Target, body: bytes) -> None:
        """POST a notification or a response of ours; any 2xx will do.

        Raises:
            MCPError: It was refused or could not be sent.
        """
        async with self.post(target, body, SendWatch()) as response:
            if response.status_code >= 300:
                raise await self.refuse(response, had_session=target.session_id is not None)
            await self.read_body(response, MAX_ERROR_BODY_BYTES)

    @asynccontextmanager
    async def bare(
        self, method: str, target: Target, headers: RawHeaders, *, listens: bool = False
    ) -> AsyncGenerator[httpx.Response, None]:
        """Send a GET or DELETE; `listens` as for `post`.

        Raises:
            MCPError: The request failed, inside the block too.
        """
        watch = SendWatch()
        extensions = {"timeout": self._timeout, "trace": watch, LISTENS: listens}
        request = httpx.Request(method, target.url, headers=headers, extensions=extensions)
        async with self._send(request, watch) as response:
            yield response

    @asynccontextmanager
    async def _send(self, request: httpx.Request, watch: SendWatch) -> AsyncGenerator[httpx.Response, None]:
        try:
            response = await self._http.send(request, stream=True)
            try:
                watch.passed()
                yield response
            finally:
                await response.aclose()
        except httpx.TransportError as exc:
            raise _connection_error(exc, sent=watch.sent) from exc

    async def read_body(self, response: httpx.Response, max_bytes: int) -> bytes:
        """Return the decoded body of a response.

        Raises:
            MCPError: It is larger than `max_bytes`, or broken.
        """
        declared = response.headers.get("content-length", "")
        if declared.isdigit() and int(declared[:18]) > max_bytes:
            raise too_large(BodyTooLarge(max_bytes), response.status_code)
        parts = [chunk async for chunk in self.chunks(response, max_bytes)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def chunks(self, response: httpx.Response, max_bytes: int | None) -> AsyncGenerator[bytes, None]:
        """Yield the decoded bytes of a response as they come; `max_bytes` None means no cap on the whole.

        Raises:
            MCPError: More than `max_bytes` came, or the coding is broken.
        """
        try:
            decoder = BodyDecoder(response.headers.get("content-encoding", ""), max_bytes)
            async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as chunks:
                async for chunk in chunks:
                    yield decoder.feed(chunk)
        except BodyTooLarge as exc:
            raise too_large(exc, response.status_code) from exc
        except BodyBroken as exc:
            raise ProtocolError(
                "broken_content_encoding",
                f"The MCP server's response cannot be decoded: {exc}.",
                Outcome.UNKNOWN,
                details={"http_status": response.status_code},
            ) from exc

    async def events(self, response: httpx.Response, max_bytes: int | None) -> AsyncGenerator[Event, None]:
        """Yield the events of an event stream as they are completed.

        Raises:
            MCPError: An event or the whole is too large, or the coding is broken.
        """
        decoder = EventStreamDecoder(self.endpoint.limits.max_event_bytes)
        try:
            async with aclosing(self.chunks(response, max_bytes)) as chunks:
                async for chunk in chunks:
                    for event in decoder.feed(chunk):
                        yield event
        except EventTooLarge as exc:
            raise too_large(exc, response.status_code) from exc

    async def refuse(self, response: httpx.Response, *, had_session: bool) -> MCPError:
        """Return the error that a status of 300 or more stands for, reading a little of the body."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.endpoint.timeouts.negotiation_s):
                async with aclosing(self.chunks(response, 16 * MAX_ERROR_BODY_BYTES)) as chunks:
                    async for chunk in chunks:
                        body += chunk
                        if len(body) >= MAX_ERROR_BODY_BYTES:
                            break
        except (TimeoutError, httpx.TransportError, ProtocolError):
            # The status alone says enough; a body that stalls or breaks must not hide it.
            body = bytearray()
        answer = HTTPAnswer(
            response.status_code,
            {name.lower(): value for name, value in response.headers.items()},
            bytes(body[:MAX_ERROR_BODY_BYTES]),
            datetime.now(UTC),
        )
        return error_of_response(
            answer, had_session=had_session, refusal_statuses=self.endpoint.refusal_statuses
        )


def content_type(response: httpx.Response) -> str:
    """Return the media type of a response in lower case, without parameters; "" if it has none."""
    value: str = response.headers.get("content-type", "")
    return value.partition(";")[0].strip().lower()


def no_answer(response: httpx.Response) -> TransportError:
    """Return the error for a success status without content in answer to a request."""
    return TransportError(
        "no_answer",
        f"The MCP server accepted the request (HTTP {response.status_code}) but answered nothing.",
        Outcome.UNKNOWN,
        details={"http_status": response.status_code},
    )


def unexpected_type(response: httpx.Response, body: bytes) -> ProtocolError:
    """Return the error for a body that is neither JSON nor an event stream, such as a login page."""
    shown = clean_text(response.headers.get("content-type", ""), 200)
    return ProtocolError(
        "unexpected_content_type",
        f"The MCP server answered HTTP {response.status_code} with content type {shown!r}; "
        f"expected {JSON_TYPE} or {EVENT_STREAM_TYPE}.",
        Outcome.UNKNOWN,
        details={
            "http_status": response.status_code,
            "content_type": shown,
            "body_start": clean_text(body[:400].decode("utf-8", errors="replace"), 200),
        },
    )


def too_large(exc: BodyTooLarge | EventTooLarge, status: int) -> ProtocolError:
    """Return the error for an answer beyond a cap."""
    return ProtocolError(
        "answer_too_large",
        f"The MCP server's answer was cut off: {exc}. Raise the limit of the connection if it is wanted.",
        Outcome.UNKNOWN,
        details={"http_status": status, "max_bytes": exc.max_bytes},
    )


_NOT_SENT_CODES: Final[dict[type[httpx.TransportError], str]] = {
    httpx.ConnectTimeout: "connect_timeout",
    httpx.PoolTimeout: "pool_timeout",
}

_SENT_CODES: Final[dict[type[httpx.TransportError], str]] = {
    httpx.ReadTimeout: "read_timeout",
    httpx.WriteTimeout: "write_timeout",
}


def _connection_error(exc: httpx.TransportError, *, sent: bool) -> TransportError:
    """Say what a failure below HTTP means; `sent` tells whether the request had begun to leave."""
    if isinstance(exc, httpx.LocalProtocolError):
        return TransportError("invalid_request", "The request cannot be sent as HTTP.", Outcome.NOT_SENT)
    name = type(exc).__name__
    # An idle connection may turn out closed once the send is marked; what fails then is the connection anew.
    if sent and not isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout):
        code = _SENT_CODES.get(type(exc), "connection_lost")
        message = f"The connection to the MCP server failed before an answer came ({name})."
        return TransportError(code, message, Outcome.UNKNOWN)
    code = _NOT_SENT_CODES.get(type(exc), "tls_failed" if _is_tls(exc) else "connect_failed")
    message = f"No connection to the MCP server could be made ({name})."
    return TransportError(code, message, Outcome.NOT_SENT, retryable=True)


def _is_tls(exc: BaseException) -> bool:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
