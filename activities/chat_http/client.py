"""Asks one provider: every byte of the chat transport goes out and comes in here."""

import asyncio
import contextlib
import http.cookiejar
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Final, cast

import httpx

from activities.chat_http.errors import BrokenAnswer, ChatError, NotReached
from activities.chat_http.statuses import (
    MAX_ERROR_BODY_BYTES,
    ErrorAnswer,
    error_of_connection,
    error_of_response,
)
from activities.chat_http.types import JSON, ChatEndpoint, Chunk, Completion
from activities.chat_http.wire import DONE, ChunkReader, read_completion
from activities.mcp_http.bodies import BodyBroken, BodyDecoder, BodyTooLarge
from activities.mcp_http.connections import GuardedTransport
from activities.mcp_http.errors import EndpointRefused
from activities.mcp_http.guard import check_endpoint
from activities.mcp_http.sse import EventStreamDecoder, EventTooLarge
from activities.mcp_http.types import Endpoint, Limits
from activities.mcp_http.wire import clean_text

JSON_TYPE: Final = "application/json"
EVENT_STREAM_TYPE: Final = "text/event-stream"

ERROR_BODY_S: Final = 10.0
"""How long the body of an error is waited for; its status says most."""

LINGER_S: Final = 0.2
"""How long the end of a stream may take after its last event, before its connection is given up."""

SHORTEST_SECRET: Final = 8
"""Characters; a header's value that is shorter is not looked for in texts."""

_SENDING: Final = "http11.send_request_headers.started"
"""The trace event httpcore reports once a connection stands and before it writes the first byte."""


def check_chat_endpoint(endpoint: ChatEndpoint) -> None:
    """Refuse a provider that must never be dialled, before any name is resolved.

    Raises:
        NotReached: ``endpoint_refused`` or ``header_refused``; the message says what to configure.
    """
    try:
        check_endpoint(_guarded(endpoint))
    except EndpointRefused as exc:
        raise NotReached(exc.code, exc.message, may_have_run=False, retryable=False) from exc


def build_chat_http_client(endpoint: ChatEndpoint, ssl_context: ssl.SSLContext) -> httpx.AsyncClient:
    """Return a pooled HTTP client for one provider: guarded addresses, no redirects, no proxies, no cookies.

    Making a context costs 16 ms (it loads the CA bundle): share one, keep one client per provider and
    credential, and close it with ``aclose()``.

    Raises:
        NotReached: the endpoint may not be dialled.
    """
    check_chat_endpoint(endpoint)
    no_cookies = http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(
        transport=GuardedTransport(_guarded(endpoint), ssl_context),
        follow_redirects=False,
        trust_env=False,
        cookies=no_cookies,
    )


def _guarded(endpoint: ChatEndpoint) -> Endpoint:
    return Endpoint(
        url=endpoint.completions_url,
        network=endpoint.network,
        headers=endpoint.headers,
        limits=Limits(max_connections=endpoint.limits.max_connections),
    )


class _SendWatch:
    """Knows whether a request has begun to leave."""

    def __init__(self) -> None:
        self.sent = False

    async def __call__(self, event: str, _info: dict[str, JSON]) -> None:
        """Receive a trace event of httpcore."""
        self.sent = self.sent or event == _SENDING


class ChatClient:
    """Asks the provider behind one endpoint; what it sends is what it is given, byte for byte.

    Args:
        http_client: From `build_chat_http_client`; its owner closes it.
        endpoint: Where and how.
    """

    def __init__(self, http_client: httpx.AsyncClient, endpoint: ChatEndpoint) -> None:
        self._http = http_client
        self._endpoint = endpoint
        self._url = httpx.URL(endpoint.completions_url)

    async def complete(self, body: bytes) -> Completion:
        """Ask for a whole answer; `body` is a JSON object whose ``stream`` is false or absent.

        Raises:
            ChatError: there is no answer; a request that was sent may be billed all the same.
        """
        timeouts, limits = self._endpoint.timeouts, self._endpoint.limits
        # A whole answer comes after minutes of silence, so only the whole has a limit.
        async with self._within_the_limit(), self._send(body, JSON_TYPE, timeouts.answer_s) as response:
            if response.status_code != 200:
                raise await self._refusal(response)
            return read_completion(await self._read_body(response), limits.max_json_depth)

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncGenerator[AsyncGenerator[Chunk, None], None]:
        """Ask for a stream; `body` is a JSON object whose ``stream`` is true.

        The block is entered once the provider has begun to answer; leaving it closes the connection, which
        makes the provider stop. The chunks end when the answer has come to its end; one that is cut off
        before raises.

        Raises:
            ChatError: there is no answer, or, while chunks are read, it broke off.
        """
        timeouts, limits = self._endpoint.timeouts, self._endpoint.limits
        async with self._within_the_limit(), self._send(body, EVENT_STREAM_TYPE, timeouts.idle_s) as response:
            if response.status_code != 200:
                raise await self._refusal(response)
            if _content_type(response) != EVENT_STREAM_TYPE:
                raise await self._not_a_stream(response)
            async with aclosing(self._bytes(response, limits.max_answer_bytes)) as parts:
                async with aclosing(self._chunks(parts)) as chunks:
                    yield chunks
                await _read_on(parts)

    @asynccontextmanager
    async def _within_the_limit(self) -> AsyncGenerator[None, None]:
        limit_s = self._endpoint.timeouts.answer_s
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                yield
        except TimeoutError as exc:
            if not limit.expired():
                raise
            message = f"The provider's answer was not whole after {limit_s:g} s."
            raise NotReached("answer_timeout", message, may_have_run=True) from exc
        except ChatError as exc:
            self._hide_secrets(exc)
            raise

    def _hide_secrets(self, error: ChatError) -> None:
        """Take our own headers' values out of what a provider says: some repeat a credential they refuse."""
        secrets = [part for value in self._endpoint.headers.values() for part in (value, *value.split())]
        for key, told in error.details.items():
            if isinstance(told, str):
                for secret in secrets:
                    # A short word such as the name of a scheme says nothing by itself.
                    told = told.replace(secret, "…") if len(secret) >= SHORTEST_SECRET else told  # noqa: PLW2901
                error.details[key] = told

    @asynccontextmanager
    async def _send(self, body: bytes, accept: str, silence_s: float) -> AsyncGenerator[httpx.Response, None]:
        timeouts, watch = self._endpoint.timeouts, _SendWatch()
        request = httpx.Request(
            "POST",
            self._url,
            headers=self._headers(accept),
            content=body,
            extensions={
                "timeout": {
                    "connect": timeouts.connect_s,
                    "read": silence_s,
                    "write": timeouts.write_s,
                    "pool": timeouts.pool_s,
                },
                "trace": watch,
            },
        )
        try:
            response = await self._http.send(request, stream=True)
            try:
                yield response
            finally:
                await response.aclose()
        except EndpointRefused as exc:
            raise NotReached(exc.code, exc.message, may_have_run=False, retryable=False) from exc
        except httpx.TransportError as exc:
            raise error_of_connection(exc, sent=watch.sent) from exc

    def _headers(self, accept: str) -> list[tuple[str, str]]:
        """Return every header of a request: nothing of the caller's is among them.

        ``Accept-Encoding: identity`` because a small compressed body may expand to any size.
        """
        return [
            ("Accept", accept),
            ("Accept-Encoding", "identity"),
            ("Content-Type", JSON_TYPE),
            ("User-Agent", "sluicegate"),
            *self._endpoint.headers.items(),
        ]

    async def _read_body(self, response: httpx.Response) -> bytes:
        return b"".join(
            [part async for part in self._bytes(response, self._endpoint.limits.max_answer_bytes)]
        )

    async def _bytes(self, response: httpx.Response, max_bytes: int) -> AsyncGenerator[bytes, None]:
        status = response.status_code
        try:
            decoder = BodyDecoder(response.headers.get("content-encoding", ""), max_bytes)
            async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as parts:
                async for part in parts:
                    yield decoder.feed(part)
        except BodyTooLarge as exc:
            raise _too_large(exc.max_bytes, status) from exc
        except BodyBroken as exc:
            message = f"The provider's answer cannot be decoded: {exc}."
            raise BrokenAnswer("undecodable_answer", message, {"http_status": status}) from exc

    async def _chunks(self, parts: AsyncIterator[bytes]) -> AsyncGenerator[Chunk, None]:
        limits = self._endpoint.limits
        reader = ChunkReader(limits.max_json_depth)
        decoder = EventStreamDecoder(limits.max_event_bytes)
        async for part in parts:
            try:
                events = decoder.feed(part)
            except EventTooLarge as exc:
                raise _too_large(exc.max_bytes, 200) from exc
            for event in events:
                if event.data.strip() == DONE:
                    return
                if event.data.strip():
                    yield reader.read(event.data)
        if not reader.is_finished:
            raise BrokenAnswer("stream_cut_off", "The provider's stream ended before its answer was whole.")

    async def _refusal(self, response: httpx.Response) -> ChatError:
        body = await self._error_body(response)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return error_of_response(ErrorAnswer(response.status_code, headers, body, datetime.now(UTC)))

    async def _error_body(self, response: httpx.Response) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(ERROR_BODY_S):
                async with aclosing(self._bytes(response, 16 * MAX_ERROR_BODY_BYTES)) as parts:
                    async for part in parts:
                        body += part
                        if len(body) >= MAX_ERROR_BODY_BYTES:
                            break
        except (TimeoutError, httpx.TransportError, BrokenAnswer):
            # The status alone says enough; a body that stalls or breaks must not hide it.
            body = bytearray()
        return bytes(body[:MAX_ERROR_BODY_BYTES])

    async def _not_a_stream(self, response: httpx.Response) -> ChatError:
        """Return the error for a 200 that is no stream; some providers send their errors so."""
        body = await self._error_body(response)
        shown = clean_text(response.headers.get("content-type", ""), 200)
        try:
            read_completion(body, self._endpoint.limits.max_json_depth)
        except ChatError as exc:
            if exc.http_status is not None:
                return exc
        message = f"The provider answered a stream with content type {shown!r}."
        return BrokenAnswer("unexpected_content_type", message, {"content_type": shown})


async def _read_on(parts: AsyncIterator[bytes]) -> None:
    """Read to the end of a stream whose last event has come, so that its connection can be used again."""
    with contextlib.suppress(TimeoutError, httpx.TransportError, ChatError):
        async with asyncio.timeout(LINGER_S):
            async for _ in parts:
                pass


def _content_type(response: httpx.Response) -> str:
    value: str = response.headers.get("content-type", "")
    return value.partition(";")[0].strip().lower()


def _too_large(max_bytes: int, status: int) -> BrokenAnswer:
    message = f"The provider's answer is larger than {max_bytes} bytes and was cut off."
    return BrokenAnswer("answer_too_large", message, {"http_status": status, "max_bytes": max_bytes})
