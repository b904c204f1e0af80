"""When a request leaves, what may still stop it, and what is known when it fails."""

import asyncio
import socket

import httpx
import pytest

from activities.mcp_http.client import MCPClient
from activities.mcp_http.errors import MCPError, Outcome
from activities.mcp_http.types import CallHooks, Limits, OpenSession, Timeouts
from tests.activities.mcp_http.connecting import client_of, connected, loopback, tool_call
from tests.activities.mcp_http.test_hostile_answers import fine
from tests.support.raw_server import Peer, RawRequest, dump, http, raw_server, result, text_result


async def answer_fine(request: RawRequest, peer: Peer) -> None:
    await peer.send(http(200, dump(fine(request.message["id"]))))


class Vetoed(Exception):
    pass


@pytest.mark.anyio
async def test_before_send_runs_once_with_the_connection_standing_and_nothing_sent() -> None:
    seen: list[tuple[int, int]] = []

    async with connected(answer_fine) as there:

        async def before_send() -> None:
            await asyncio.sleep(0)
            seen.append((there.server.connections, len(there.server.received("tools/call"))))

        await there.call(hooks=CallHooks(before_send=before_send))
        assert seen == [(1, 0)]
        assert len(there.server.received("tools/call")) == 1


@pytest.mark.anyio
async def test_a_veto_sends_nothing_and_leaves_the_pool_healthy() -> None:
    async def veto() -> None:
        raise Vetoed

    async with connected(answer_fine, limits=Limits(max_connections=1)) as there:
        for _ in range(3):
            with pytest.raises(Vetoed):
                await there.call(hooks=CallHooks(before_send=veto))
        assert there.server.received("tools/call") == []
        await there.call()
        assert len(there.server.received("tools/call")) == 1
        assert there.server.received("notifications/cancelled") == []


@pytest.mark.anyio
async def test_a_veto_leaves_the_pool_healthy_for_calls_at_the_same_time() -> None:
    async def veto() -> None:
        await asyncio.sleep(0)
        raise Vetoed

    async with connected(answer_fine, limits=Limits(max_connections=2)) as there:
        calls = [there.call(hooks=CallHooks(before_send=veto)) if n % 2 else there.call() for n in range(20)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(o, Vetoed) for o in outcomes) == 10
        assert len(there.server.received("tools/call")) == 10


@pytest.mark.anyio
async def test_a_client_that_cannot_announce_requests_is_an_error_of_ours() -> None:
    async def never() -> None:
        raise AssertionError

    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={}))
    async with httpx.AsyncClient(transport=transport) as http_client:
        client = MCPClient(http_client, loopback("http://127.0.0.1/mcp"))
        session = OpenSession(None, "2025-11-25", "legacy")
        with pytest.raises(RuntimeError, match="build_http_client"):
            await client.call_tool(session, tool_call(), CallHooks(before_send=never))


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.anyio
async def test_a_refused_connection_is_not_sent_and_retryable() -> None:
    async with client_of(f"http://127.0.0.1:{closed_port()}/mcp") as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool(OpenSession("s", "2025-11-25", "legacy"), tool_call())
    assert (caught.value.code, caught.value.outcome) == ("connect_failed", Outcome.NOT_SENT)
    assert caught.value.retryable


@pytest.mark.anyio
async def test_tls_with_a_server_that_has_none_is_not_sent() -> None:
    async with raw_server(answer_fine) as server:
        url = f"https://127.0.0.1:{server.port}/mcp"
        async with client_of(url, timeouts=Timeouts(connect_s=1)) as client:
            with pytest.raises(MCPError) as caught:
                await client.call_tool(OpenSession("s", "2025-11-25", "legacy"), tool_call())
    assert caught.value.outcome is Outcome.NOT_SENT
    assert caught.value.code in {"tls_failed", "connect_failed", "connect_timeout"}


@pytest.mark.anyio
async def test_a_full_pool_is_not_sent() -> None:
    release = asyncio.Event()

    async def script(request: RawRequest, peer: Peer) -> None:
        await release.wait()
        await answer_fine(request, peer)

    timeouts = Timeouts(pool_s=0.05)
    async with connected(script, limits=Limits(max_connections=1), timeouts=timeouts) as there:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(there.call())
            await there.server.wait_until(lambda s: bool(s.received("tools/call")))
            failure = await there.failure()
            assert (failure.code, failure.outcome) == ("pool_timeout", Outcome.NOT_SENT)
            release.set()
        assert running.result().content


@pytest.mark.anyio
async def test_arguments_that_are_no_json_are_not_sent() -> None:
    async with connected(answer_fine) as there:
        for value in (float("nan"), "\ud800", object(), {1, 2}):
            failure = await there.failure(tool_call(arguments={"a": value}))
            assert (failure.code, failure.outcome) == ("invalid_arguments", Outcome.NOT_SENT)
        assert there.server.received("tools/call") == []


@pytest.mark.anyio
async def test_64_bit_integers_are_exact_both_ways() -> None:
    big = 1915883588174806058

    async def script(request: RawRequest, peer: Peer) -> None:
        value = {"content": [], "structuredContent": request.message["params"]["arguments"]}
        await peer.send(http(200, dump({"jsonrpc": "2.0", "id": request.message["id"], "result": value})))

    async with connected(script) as there:
        answer = await there.call(tool_call(arguments={"id": big}))
        assert answer.structured_content == {"id": big}
        assert str(big).encode() in there.server.requests[-1].body


@pytest.mark.anyio
async def test_meta_goes_along_with_the_progress_token() -> None:
    async with connected(answer_fine) as there:
        call = tool_call(meta={"dev.sluicegate/idempotency-key": "r/1"})
        await there.call(call)
        assert there.server.requests[-1].message == {
            "jsonrpc": "2.0",
            "id": call.request_id,
            "method": "tools/call",
            "params": {
                "name": "t",
                "arguments": {},
                "_meta": {"dev.sluicegate/idempotency-key": "r/1", "progressToken": call.request_id},
            },
        }


@pytest.mark.anyio
async def test_a_connection_the_server_closed_meanwhile_is_not_used_again() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        await answer_fine(request, peer)
        peer.close()

    async with connected(script) as there:
        for _ in range(5):
            await there.call()
            closed = there.server.connections
            await there.server.wait_until(lambda s, closed=closed: s.closed_connections >= closed)  # type: ignore[misc]
        assert there.server.connections >= 5


@pytest.mark.anyio
async def test_a_connection_that_is_closed_while_the_send_is_written_down_is_not_used() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        peers.append(peer)
        await peer.send(http(200, dump(result(request.message["id"], text_result("ok")))))

    async def before_send() -> None:
        asked.append(1)
        # A slow ledger: meanwhile the server gives up the idle connection, as servers do after 5 s.
        peers[0].close()
        await there.server.wait_until(lambda server: server.closed_connections >= 1)

    peers: list[Peer] = []
    asked: list[int] = []
    async with connected(script) as there:
        await there.call()
        answer = await there.call(hooks=CallHooks(before_send=before_send))
        calls = there.server.received("tools/call")
    assert answer.content == ({"type": "text", "text": "ok"},)
    assert (len(calls), len(asked)) == (2, 1)
    assert calls[0].connection != calls[1].connection


@pytest.mark.anyio
async def test_cookies_of_a_server_are_never_kept() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        body = dump(fine(request.message["id"]))
        await peer.send(http(200, body, "application/json", "Set-Cookie: a=1; Path=/"))

    async with connected(script) as there:
        await there.call()
        await there.call()
        assert "cookie" not in there.server.requests[-1].headers
