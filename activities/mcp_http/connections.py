"""The connection pool under the client: httpx on top, httpcore below, the outbound guard in between."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol, cast

import httpcore
import httpx

from activities.mcp_http.errors import EndpointRefused
from activities.mcp_http.guard import GuardedBackend, same_origin
from activities.mcp_http.types import JSON, Endpoint

KEEP_ALIVE_S: Final = 4.0
"""Idle connections are dropped before servers do it: Node and uvicorn close after 5 s, and a request that
crosses the close has an unknown outcome."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends requests to one origin only, over connections to checked addresses."""

    def __init__(self, endpoint: Endpoint, ssl_context: ssl.SSLContext) -> None:
        self._url = endpoint.url
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context,
            max_connections=endpoint.limits.max_connections,
            max_keepalive_connections=endpoint.limits.max_connections,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=GuardedBackend(endpoint.network),
        )

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
        async with _httpx_errors():
            response = await self._pool.handle_async_request(below)
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(cast("_CloseableStream", response.stream)),
            # httpcore leaves the type of these open.
            extensions=cast("dict[str, JSON]", response.extensions),  # pyright: ignore[reportUnknownMemberType]
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


class _CloseableStream(Protocol):
    """What httpcore gives as a body; its declared type leaves out that it can be closed."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class _Body(httpx.AsyncByteStream):
    def __init__(self, stream: _CloseableStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        async with _httpx_errors():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def _httpx_errors() -> AsyncGenerator[None, None]:
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
