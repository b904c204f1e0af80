"""The transport of 2024-11-05, spoken only where it is configured."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from activities.mcp_http.client import MCPClient
from activities.mcp_http.errors import EndpointRefused, MCPError, Outcome
from activities.mcp_http.types import CallHooks, Cursor, OpenSession
from tests.activities.mcp_http.connecting import client_of, tool_call
from tests.support.raw_server import (
    WAIT_S,
    Peer,
    RawRequest,
    RawServer,
    event,
    http,
    raw_server,
    result,
    sse_head,
    text_result,
)

VERSION = "2024-11-05"


class OldServer:
    """Answers every POST with 202 and sends the answer on the newest stream."""

    def __init__(self, endpoint: str = "/message?sessionId=1") -> None:
        self._endpoint = endpoint
        self._stream: Peer | None = None
        self.on_call: Callable[[RawRequest, Peer], Any] | None = None

    async def __call__(self, request: RawRequest, peer: Peer) -> None:
        if request.method == "GET":
            self._stream = peer
            await peer.send(sse_head() + event(self._endpoint, name="endpoint"))
            await peer.wait_closed()
            return
        await peer.send(http(202, b"Accepted", "text/plain"))
        stream, answer_id = self._stream, request.message.get("id")
        if stream is None or answer_id is None:
            return
        if request.rpc_method == "initialize":
            value = {
                "protocolVersion": VERSION,
                "capabilities": {},
                "serverInfo": {"name": "old", "version": "1"},
            }
            await stream.send(event(result(answer_id, value)))
        elif request.rpc_method == "tools/list":
            await stream.send(
                event(result(answer_id, {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}))
            )
        elif request.rpc_method == "ping":
            await stream.send(event(result(answer_id, {})))
        elif self.on_call is not None:
            await self.on_call(request, stream)


@asynccontextmanager
async def old(server: OldServer) -> AsyncGenerator[tuple[MCPClient, OpenSession, RawServer], None]:
    async with raw_server(server) as running, client_of(running.url, transport="http_sse") as client:
        yield client, await client.open_session(), running


async def answer(request: RawRequest, stream: Peer) -> None:
    params = {"progressToken": request.message["id"], "progress": 1}
    await stream.send(
        event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}, "9"),
        event(result("other", text_result("WRONG"))),
        event(result(request.message["id"], text_result("fine"))),
    )


@pytest.mark.anyio
async def test_sessions_listings_and_calls_go_over_the_stream() -> None:
    server = OldServer()
    server.on_call = answer
    sent: list[int] = []
    cursors: list[Cursor] = []

    async def before_send() -> None:
        sent.append(1)

    async def on_cursor(cursor: Cursor) -> None:
        cursors.append(cursor)

    async with old(server) as (client, session, running):
        assert (session.protocol_version, session.session_id, session.era) == (VERSION, None, "legacy")
        assert [tool.name for tool in (await client.list_tools(session)).tools] == ["a"]
        hooks = CallHooks(before_send=before_send, on_cursor=on_cursor)
        found = await client.call_tool(session, tool_call(), hooks, timeout_s=20)
        await client.ping(session)
        await client.close_session(session)
        assert found.content == ({"type": "text", "text": "fine"},)
        assert {r.path for r in running.requests if r.method == "POST"} == {"/message?sessionId=1"}
        assert len(running.received("tools/call")) == 1
        await running.wait_until(lambda s: s.closed_connections >= 4)
    assert sent == [1]
    assert cursors == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    "endpoint", ["http://169.254.169.254/x", "//evil.example/x", "https://127.0.0.1/x", "http://["]
)
async def test_a_post_url_on_another_origin_is_refused(endpoint: str) -> None:
    with pytest.raises(EndpointRefused):
        async with old(OldServer(endpoint)):
            pass


@pytest.mark.anyio
async def test_a_cancelled_call_is_cancelled_at_the_server_while_its_stream_stands() -> None:
    server, reached = OldServer(), asyncio.Event()

    async def hang(_request: RawRequest, _stream: Peer) -> None:
        reached.set()

    server.on_call = hang
    async with old(server) as (client, session, running):
        call = tool_call()
        task = asyncio.create_task(client.call_tool(session, call))
        await asyncio.wait_for(reached.wait(), WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (notice,) = running.received("notifications/cancelled")
        assert notice.message["params"]["requestId"] == call.request_id
        assert notice.path == "/message?sessionId=1"
        with pytest.raises(MCPError) as caught:
            await client.call_tool(session, tool_call(), timeout_s=0.2)
        assert (caught.value.code, caught.value.outcome) == ("tool_timeout", Outcome.UNKNOWN)
        assert len(running.received("notifications/cancelled")) == 2


@pytest.mark.anyio
async def test_a_stream_that_ends_leaves_the_outcome_unknown_and_cannot_be_resumed() -> None:
    server = OldServer()

    async def close(_request: RawRequest, stream: Peer) -> None:
        stream.close()

    server.on_call = close
    async with old(server) as (client, session, running):
        with pytest.raises(MCPError) as caught:
            await client.call_tool(session, tool_call(), timeout_s=20)
        assert (caught.value.code, caught.value.outcome) == ("no_answer", Outcome.UNKNOWN)
        with pytest.raises(MCPError) as caught:
            await client.resume_call(session, Cursor("x", "9"), tool_call())
        assert (caught.value.code, caught.value.outcome) == ("resume_refused", Outcome.UNKNOWN)
        assert len(running.received("tools/call")) == 1


@pytest.mark.anyio
async def test_a_server_that_speaks_something_else_is_an_error_before_any_call() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(http(404, b"<html>", "text/html"))

    async with raw_server(script) as running, client_of(running.url, transport="http_sse") as client:
        with pytest.raises(MCPError) as caught:
            await client.open_session()
        assert caught.value.http_status == 404
