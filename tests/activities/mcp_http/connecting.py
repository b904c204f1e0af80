"""How the tests of the transport open clients: loopback, one call in one line."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import cache
from itertools import count
from typing import Any
from uuid import uuid4

from activities.mcp_http.client import MCPClient, build_http_client
from activities.mcp_http.errors import MCPError
from activities.mcp_http.types import CallHooks, Endpoint, Limits, OpenSession, Timeouts, ToolAnswer, ToolCall
from tests.support.raw_server import RawServer, Script, legacy_server, modern_server, raw_server

PATIENT = Timeouts(silence_s=20, negotiation_s=20)
"""Only hangs reach these: a loaded machine must not fail a test that is not about time."""


@cache
def ssl_context() -> ssl.SSLContext:
    """Loading the CA bundle costs 16 ms, so all tests share one."""
    return ssl.create_default_context()


def loopback(url: str, **changes: Any) -> Endpoint:
    settings: dict[str, Any] = {
        "network": "loopback",
        "protocol_version": "2025-11-25",
        "timeouts": PATIENT,
        "limits": Limits(max_resumes=2),
    }
    return Endpoint(url, **(settings | changes))


@asynccontextmanager
async def client_of(url: str, **changes: Any) -> AsyncGenerator[MCPClient, None]:
    endpoint = loopback(url, **changes)
    async with build_http_client(endpoint, ssl_context()) as http:
        yield MCPClient(http, endpoint)


def tool_call(name: str = "t", arguments: dict[str, Any] | None = None, **more: Any) -> ToolCall:
    return ToolCall(name, arguments or {}, str(uuid4()), **more)


async def paced(lasts_s: float, every_s: float) -> AsyncGenerator[int, None]:
    """Count until so many seconds are over on the clock, whatever each step takes; `every_s` apart."""
    over = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(lasts_s, over.set)
    try:
        for number in count():
            if lasts_s <= 0 or over.is_set():
                return
            yield number
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), every_s)
    finally:
        timer.cancel()


class Connected:
    """A client with an open session to a scripted server."""

    def __init__(self, client: MCPClient, session: OpenSession, server: RawServer) -> None:
        self.client = client
        self.session = session
        self.server = server

    async def call(
        self, call: ToolCall | None = None, hooks: CallHooks | None = None, timeout_s: float = 20
    ) -> ToolAnswer:
        return await self.client.call_tool(
            self.session, call or tool_call(), hooks or CallHooks(), timeout_s=timeout_s
        )

    async def failure(
        self, call: ToolCall | None = None, hooks: CallHooks | None = None, timeout_s: float = 20
    ) -> MCPError:
        """Make a call that must fail and return its error."""
        try:
            answer = await self.call(call, hooks, timeout_s)
        except MCPError as exc:
            return exc
        raise AssertionError(f"the call succeeded: {answer}")


@asynccontextmanager
async def connected(script: Script, **changes: Any) -> AsyncGenerator[Connected, None]:
    """Open a legacy session with a server that runs `script` for everything after the handshake."""
    async with raw_server(legacy_server(script)) as server, client_of(server.url, **changes) as client:
        yield Connected(client, await client.open_session(), server)


@asynccontextmanager
async def connected_modern(script: Script, **changes: Any) -> AsyncGenerator[Connected, None]:
    """Do as `connected` does with a server of the modern era."""
    settings = {"protocol_version": "auto"} | changes
    async with raw_server(modern_server(script)) as server, client_of(server.url, **settings) as client:
        yield Connected(client, await client.open_session(), server)
