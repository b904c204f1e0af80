"""Connections to one server: httpx on top, httpcore's HTTP/1.1 below, the outbound guard in between.

httpcore's own pool looks at every connection for every request, squared where many are idle, and each look is
two system calls. One origin needs less: a stack of idle connections, the freshest used first.
"""

import asyncio
import http.cookiejar
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Final, Protocol, cast

import anyio
import h11
import httpcore
import httpx

from activities.mcp_http.errors import EndpointRefused
from activities.mcp_http.guard import GuardedBackend, same_origin
from activities.mcp_http.types import JSON, Endpoint

KEEP_ALIVE_S: Final = 4.0
"""Idle connections are dropped before servers do it: Node and uvicorn close after 5 s, and a request that
crosses the close has an unknown outcome."""

LISTENS: Final = "sluicegate.listens"
"""The extension of a request that tells the connections below that it listens."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends requests to one origin only, over connections to checked addresses."""

    def __init__(self, endpoint: Endpoint, ssl_context: ssl.SSLContext) -> None:
        self._url = endpoint.url
        self._ssl_context = ssl_context
        self._backend = _Backend(GuardedBackend(endpoint.network))
        self._slots = asyncio.Semaphore(endpoint.limits.max_connections)
        self._streams = asyncio.Semaphore(endpoint.limits.max_streams)
        self._idle: deque[httpcore.AsyncHTTPConnection] = deque()
        self._retired = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request.

        Raises:
            EndpointRefused: The request goes to another origin, or the address is not allowed.
            httpx.TransportError: The request failed.
        """
        url = request.url
        if not same_origin(str(url), self._url):
            raise EndpointRefused("A request to another origin than the endpoint's was refused.")
        below = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        slots = self._streams if request.extensions.get(LISTENS) else self._slots
        await _take_slot(slots, request.extensions)
        connection: httpcore.AsyncHTTPConnection | None = None
        try:
            connection = await self._take_idle() or self._new_connection(below.url.origin)
            with _httpx_errors():
                try:
                    response = await connection.handle_async_request(below)
                except ClosedMeanwhile:
                    # Not a byte left, so this is no second send.
                    await connection.aclose()
                    connection = self._new_connection(below.url.origin)
                    response = await connection.handle_async_request(below)
        except BaseException:
            # A failed request closes its connection, but one cancelled before it began leaves it open.
            with anyio.CancelScope(shield=True):
                if connection is not None:
                    await connection.aclose()
            slots.release()
            raise
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(cast("_CloseableStream", response.stream), connection, self, slots),
            # httpcore leaves the type of these open.
            extensions=cast("dict[str, JSON]", response.extensions),  # pyright: ignore[reportUnknownMemberType]
        )

    def _new_connection(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        return httpcore.AsyncHTTPConnection(
            origin, self._ssl_context, keepalive_expiry=KEEP_ALIVE_S, network_backend=self._backend
        )

    async def _take_idle(self) -> httpcore.AsyncHTTPConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    async def give_back(self, connection: httpcore.AsyncHTTPConnection, slots: asyncio.Semaphore) -> None:
        """Take a connection whose response is closed; keep it if it can be used again."""
        try:
            if not self._retired and connection.is_idle() and not _has_leftover(connection):
                self._idle.append(connection)
            else:
                # Closed already, unless a cancellation came between its response and its closing.
                await connection.aclose()
            # The longest idle one is looked at each time, so that none stays open for long after its use.
            if len(self._idle) > 1 and self._idle[0].has_expired():
                await self._idle.popleft().aclose()
        finally:
            slots.release()

    async def retire(self) -> None:
        """Keep no connection from now on; requests are still sent, each over a connection of its own."""
        self._retired = True
        await self.aclose()

    async def aclose(self) -> None:
        """Close all idle connections; the others close with their responses."""
        while self._idle:
            await self._idle.pop().aclose()


class GuardedClient(httpx.AsyncClient):
    """httpx over a guarded transport: no redirects, no proxies, no cookies."""

    def __init__(self, transport: GuardedTransport) -> None:
        no_cookies = http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        super().__init__(transport=transport, follow_redirects=False, trust_env=False, cookies=no_cookies)
        self._guarded = transport

    async def retire(self) -> None:
        """Let go of what idles, without failing what is under way or follows from it.

        A call that runs may have a stream to resume, a ping to answer or a server to tell that it was
        cancelled; httpx refuses all of that once a client is closed.
        """
        await self._guarded.retire()


async def _take_slot(slots: asyncio.Semaphore, extensions: Any) -> None:
    limit_s: float | None = extensions.get("timeout", {}).get("pool")
    try:
        async with asyncio.timeout(limit_s):
            await slots.acquire()
    except TimeoutError as exc:
        raise httpx.PoolTimeout("all connections to the server are in use") from exc


def _has_leftover(connection: httpcore.AsyncHTTPConnection) -> bool:
    """Say whether bytes came after the end of the response: they would be read as the next one.

    httpcore goes on with such a connection and has no public way to ask.
    """
    below = getattr(connection, "_connection", None)
    state = getattr(below, "_h11_state", None)
    return isinstance(state, h11.Connection) and bool(state.trailing_data[0])


class ClosedMeanwhile(Exception):
    """An idle connection was closed between its choice and the first byte: marking a send takes a while."""


class _CloseableStream(Protocol):
    """What httpcore gives as a body; its declared type leaves out that it can be closed."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class _Body(httpx.AsyncByteStream):
    """The body of a response; closing it gives the connection back."""

    def __init__(
        self,
        stream: _CloseableStream,
        connection: httpcore.AsyncHTTPConnection,
        owner: GuardedTransport,
        slots: asyncio.Semaphore,
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._owner: GuardedTransport | None = owner
        self._slots = slots

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        with _httpx_errors():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        owner, self._owner = self._owner, None
        if owner is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._stream.aclose()
            finally:
                await owner.give_back(self._connection, self._slots)


class _Backend(httpcore.AsyncNetworkBackend):
    """Wraps the streams of the guarded backend."""

    def __init__(self, guarded: GuardedBackend) -> None:
        self._guarded = guarded

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._guarded.connect_tcp(host, port, timeout, local_address, socket_options))


class _Stream(httpcore.AsyncNetworkStream):
    """Sends the head of a request together with its body, and knows cheaply whether its socket is readable.

    httpcore writes them apart: two system calls and two packets for what fits into one.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream, raw: socket.socket | None = None) -> None:
        self._stream = stream
        self._socket: socket.socket | None = raw or stream.get_extra_info("socket")
        self._held = b""
        self._was_used = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._held:
            await self._flush(timeout)
        self._was_used = True
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if not self._held and buffer.endswith(b"\r\n\r\n"):
            self._held = buffer
        elif buffer:
            self._held += buffer
            await self._flush(timeout)

    async def _flush(self, timeout: float | None) -> None:  # noqa: ASYNC109
        held, self._held = self._held, b""
        was_used, self._was_used = self._was_used, False
        if was_used and self._socket is not None and _is_readable(self._socket):
            raise ClosedMeanwhile
        await self._stream.write(held, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._socket)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._socket is not None:
            return _is_readable(self._socket)
        return self._stream.get_extra_info(info)


def _is_readable(raw: socket.socket) -> bool:
    descriptor = raw.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


@contextmanager
def _httpx_errors() -> Generator[None, None, None]:
    """Turn the errors of httpcore into those of httpx, which have the same names."""
    try:
        yield
    except tuple(_ERRORS) as exc:
        raise _ERRORS[type(exc)](str(exc)) from exc


_ERRORS: Final[dict[type[Exception], type[httpx.TransportError]]] = {
    httpcore.ConnectTimeout: httpx.ConnectTimeout,
    httpcore.ReadTimeout: httpx.ReadTimeout,
    httpcore.WriteTimeout: httpx.WriteTimeout,
    httpcore.PoolTimeout: httpx.PoolTimeout,
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.ProxyError: httpx.ProxyError,
    httpcore.UnsupportedProtocol: httpx.UnsupportedProtocol,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
}
