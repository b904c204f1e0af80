"""A server that means harm: it drips, floods, repeats, flips and loops; what may it cost?"""

import asyncio
import itertools
import time
from typing import Any

import pytest

from activities.mcp_http.errors import MCPError, Outcome, SessionLost
from activities.mcp_http.types import Limits, Timeouts
from tests.activities.mcp_http.connecting import client_of, connected, connected_modern, tool_call
from tests.support.raw_server import (
    Peer,
    RawRequest,
    dump,
    error,
    event,
    http,
    raw_server,
    result,
    sse_head,
    text_result,
)

pytestmark = pytest.mark.anyio

CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


async def drip(peer: Peer, data: bytes) -> None:
    """Send a byte now and then, for ever: never silent, never done."""
    position = 0
    while True:
        await peer.send(data[position % len(data)].to_bytes())
        position += 1
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nX-",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{",
        sse_head() + b": ",
    ],
    ids=["headers", "body", "comment"],
)
async def test_an_answer_that_drips_ends_with_the_calls_own_limit(start: bytes) -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(start)
        await drip(peer, b"x")

    async with connected(script) as there:
        started = time.monotonic()
        failure = await there.failure(timeout_s=0.5)
        assert (failure.code, failure.outcome) == ("tool_timeout", Outcome.UNKNOWN)
        assert time.monotonic() - started < 3


async def test_a_handshake_that_drips_ends_with_the_limit_of_the_handshake() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nX-")
        await drip(peer, b"x")

    quick = Timeouts(negotiation_s=0.3)
    async with raw_server(script) as server, client_of(server.url, timeouts=quick) as client:
        with pytest.raises(MCPError) as caught:
            await client.open_session()
        assert (caught.value.code, caught.value.outcome) == ("negotiation_timeout", Outcome.NOT_SENT)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nX-A: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: x\r\n" * 40_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nx",
        b"HTTP/1.1 200 OK\r\nX A: b\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"\x00" * 100,
    ],
    ids=[
        *("long header", "many headers", "two lengths", "negative length", "huge chunk", "odd header"),
        *("HTTP/2", "upgrade", "zeros"),
    ],
)
async def test_heads_that_are_none_cost_one_call_of_unknown_outcome(answer: bytes) -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.message["params"]["name"] == "good":
            await peer.send(http(200, dump(result(request.message["id"], text_result("fine")))))
            return
        await peer.send(answer)
        peer.close()

    async with connected(script) as there:
        failure = await there.failure()
        assert failure.outcome is Outcome.UNKNOWN
        assert (await there.call(tool_call("good"))).content == ({"type": "text", "text": "fine"},)


async def test_a_flood_of_interim_heads_ends_with_the_calls_own_limit() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        while True:
            await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100)

    async with connected(script) as there:
        failure = await there.failure(timeout_s=0.5)
        assert (failure.code, failure.outcome) == ("tool_timeout", Outcome.UNKNOWN)


async def test_the_first_answer_counts_and_what_follows_is_never_read_as_the_next() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        first, name = request.message["id"], request.message["params"]["name"]
        again = [event(result(first, text_result(f"{name} {number}"))) for number in range(3)]
        body = b"".join(again)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        await peer.send(head.encode() + body)

    async with connected(script) as there:
        for name in ("a", "b", "c"):
            assert (await there.call(tool_call(name))).content == ({"type": "text", "text": f"{name} 0"},)


async def test_an_answer_on_the_stream_beside_the_call_answers_nothing() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "GET":
            streams.append(peer)
            await peer.send(sse_head() + event(CHANGED))
            await peer.wait_closed()
        else:
            answer = event(result(request.message["id"], text_result("astray")))
            await streams[0].send(answer, event(CHANGED))
            await peer.wait_closed()

    async def hear(_message: dict[str, Any], _event_id: str | None) -> None:
        heard.append(1)

    streams: list[Peer] = []
    heard: list[int] = []
    async with connected(script) as there:
        listening = asyncio.create_task(there.client.listen(there.session, hear))
        await there.server.wait_until(lambda _: bool(streams))
        failure = await there.failure(timeout_s=0.5)
        assert (failure.code, failure.outcome) == ("tool_timeout", Outcome.UNKNOWN)
        # The stream itself goes on.
        assert (len(heard), listening.done()) == (2, False)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_megabyte_lines_that_answer_nothing_leave_the_loop_to_others() -> None:
    line = event("x" * 1_000_000)

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.message["params"]["name"] == "good":
            await peer.send(http(200, dump(result(request.message["id"], text_result("fine")))))
            return
        await peer.send(sse_head())
        while True:
            await peer.send(line)

    limits = Limits(max_body_bytes=50_000_000, max_event_bytes=2_000_000)
    async with connected(script, limits=limits) as there:
        flooded = asyncio.create_task(there.failure(tool_call("flood")))
        for _ in range(10):
            assert (await there.call(tool_call("good"), timeout_s=5)).content != ()
        assert (await flooded).code == "answer_too_large"


async def test_a_stream_that_is_closed_after_every_event_is_opened_ever_more_rarely() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        opened.append(time.monotonic())
        await peer.send(sse_head() + b"retry: 0\n\n" + event(CHANGED))
        peer.close()

    async def ignore(_message: dict[str, Any], _event_id: str | None) -> None:
        return None

    opened: list[float] = []
    async with connected(script) as there:
        listening = asyncio.create_task(there.client.listen(there.session, ignore))
        await there.server.wait_until(lambda _: len(opened) == 5)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    gaps = [later - earlier for earlier, later in itertools.pairwise(opened)]
    assert gaps[-1] > 2 * gaps[0]
    assert gaps[-1] > 0.7


@pytest.mark.parametrize("event_id", ["x" * 100_000], ids=["100 KB"])
async def test_an_event_id_too_long_for_a_header_is_none(event_id: str) -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(sse_head() + event({}, event_id))
        peer.close()

    async with connected(script) as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome) == ("no_answer", Outcome.UNKNOWN)
        assert there.server.gets() == []


@pytest.mark.parametrize(
    "interim",
    [
        {"requestState": "x" * 2_000_000},
        {"inputRequests": {str(n): {"method": "elicitation/create", "params": {}} for n in range(1000)}},
    ],
    ids=["2 MB of state", "1000 requests"],
)
async def test_what_a_server_wants_carried_back_is_bounded(interim: dict[str, Any]) -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        value = {"resultType": "input_required", **interim}
        await peer.send(http(200, dump(result(request.message["id"], value))))

    async with connected_modern(script, elicitation="decline") as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome) == ("input_too_large", Outcome.UNKNOWN)
        assert len(there.server.received("tools/call")) == 1


@pytest.mark.parametrize(
    "answer",
    [
        http(400, dump(error(None, -32000, "Bad Request: Server not initialized"))),
        http(400, dump(error("server-error", -32600, "Bad Request: Missing session ID"))),
        http(400, dump(error(None, -32600, "Unsupported protocol version"))),
        http(404, b"", None),
        http(405, b"", None),
    ],
    ids=["not initialized", "missing session", "unsupported version", "404", "405"],
)
async def test_a_modern_server_that_became_a_legacy_one_asks_for_a_new_negotiation(answer: bytes) -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(answer)

    async with connected_modern(script) as there:
        failure = await there.failure()
        assert failure.outcome is Outcome.REFUSED
        assert failure.details["remedy"] in {"initialize", "negotiate"}


async def test_a_legacy_server_that_became_a_modern_one_asks_for_a_new_negotiation() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        refusal = error(
            request.message["id"], -32022, "Unsupported protocol version", {"supported": ["2026-07-28"]}
        )
        await peer.send(http(400, dump(refusal)))

    async with connected(script) as there:
        failure = await there.failure()
        assert failure.details["remedy"] == "negotiate"


async def test_a_stateless_server_that_began_to_want_sessions_is_a_lost_session() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method == "initialize":
            value = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "serverInfo": {"name": "x", "version": "1"},
            }
            await peer.send(http(200, dump(result(request.message["id"], value))))
        elif request.rpc_method == "notifications/initialized":
            await peer.send(http(202, b"", None))
        else:
            await peer.send(http(400, dump(error(None, -32000, "Bad Request: No valid session ID provided"))))

    async with raw_server(script) as server, client_of(server.url) as client:
        session = await client.open_session()
        assert session.session_id is None
        with pytest.raises(SessionLost):
            await client.call_tool(session, tool_call())
