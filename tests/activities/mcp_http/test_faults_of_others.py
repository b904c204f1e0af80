"""Faults that other clients had, each with the smallest server that shows it."""

import asyncio
import tracemalloc
from typing import Any
from uuid import uuid4

import pytest

from activities.mcp_http.errors import MCPError, Outcome
from activities.mcp_http.types import CallHooks, Limits, Timeouts
from tests.activities.mcp_http.connecting import PATIENT, client_of, connected, paced, tool_call
from tests.support.raw_server import (
    Peer,
    RawRequest,
    dump,
    error,
    event,
    http,
    legacy_server,
    raw_server,
    result,
    sse_head,
    text_result,
)

pytestmark = pytest.mark.anyio

SEPARATORS = "a\u2028b\u2029c\u0085d"
WORDS = "✅ 北京"


def cut_everywhere(data: bytes) -> list[bytes]:
    return [data[position : position + 1] for position in range(len(data))]


def cut_after_cr(data: bytes) -> list[bytes]:
    parts = data.replace(b"\n", b"\r\n").split(b"\r")
    return [part + b"\r" for part in parts[:-1]] + [parts[-1]]


@pytest.mark.parametrize("text", [SEPARATORS, WORDS], ids=["line separators", "no charset"])
@pytest.mark.parametrize(
    "cut", [lambda data: [data], cut_everywhere, cut_after_cr], ids=["whole", "bytes", "CR|LF"]
)
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
async def test_text_arrives_as_it_was_sent_however_it_is_cut(text: str, cut: Any, bom: bytes) -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        answer = bom + event(result(request.message["id"], text_result(text)))
        await peer.send(sse_head())
        for part in cut(answer):
            await peer.send(part)
            await asyncio.sleep(0)
        peer.close()

    async with connected(script) as there:
        assert (await there.call()).content == ({"type": "text", "text": text},)


async def test_what_follows_a_too_short_content_length_is_no_answer_to_the_next_call() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if there_calls:
            await peer.send(http(200, dump(result(request.message["id"], text_result("fine")))))
            return
        there_calls.append(request.connection)
        head = b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n"
        forged = http(200, dump(result("x", text_result("FORGED"))))
        await peer.send(head + b"{   }" + forged)

    there_calls: list[int] = []
    async with connected(script) as there:
        first = await there.failure()
        second = await there.call()
        calls = there.server.received("tools/call")
    assert first.outcome is Outcome.UNKNOWN
    assert second.content == ({"type": "text", "text": "fine"},)
    assert calls[0].connection != calls[1].connection


async def test_chunks_with_trailers_are_an_answer() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        body = dump(result(request.message["id"], text_result("fine")))
        head = b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = f"{len(body):x}\r\n".encode() + body
        await peer.send(head + chunk + b"\r\n0\r\nX-Trailer: 1\r\nMcp-Session-Id: evil\r\n\r\n")

    async with connected(script) as there:
        for _ in range(2):
            assert (await there.call()).content == ({"type": "text", "text": "fine"},)
        assert {request.headers["mcp-session-id"] for request in there.server.received("tools/call")} == {
            "s-1"
        }


@pytest.mark.parametrize(
    ("page", "code", "status"),
    [
        (http(200, b"<html>Log in</html>", "text/html"), "unexpected_content_type", 200),
        (http(404, dump(error("server-error", -32000, "Not Found"))), "endpoint_not_found", 404),
        (http(404, b"<h1>Not Found</h1>", "text/html"), "endpoint_not_found", 404),
        (http(502, b"", None), "http_502", 502),
    ],
    ids=["login page", "404 with JSON-RPC", "404 with a page", "502 with nothing"],
)
async def test_a_wrong_address_is_told_as_what_it_answered_and_never_as_a_session(
    page: bytes, code: str, status: int
) -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(page)

    async with raw_server(script) as server, client_of(server.url) as client:
        with pytest.raises(MCPError) as caught:
            await client.open_session()
        assert (caught.value.code, caught.value.http_status) == (code, status)
        assert "session" not in caught.value.message
        assert len(server.requests) == 1


async def test_a_server_that_never_answers_a_delete_holds_nobody_up() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "DELETE":
            await peer.wait_closed()
        else:
            await legacy_server(script)(request, peer)

    quick = Timeouts(negotiation_s=0.2)
    async with raw_server(script) as server, client_of(server.url) as client:
        session = await client.open_session()
        async with client_of(server.url, timeouts=quick) as hurried, asyncio.timeout(2):
            await hurried.close_session(session)
        assert server.requests[-1].method == "DELETE"


async def test_a_get_that_is_not_found_ends_listening_and_not_the_session() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "GET":
            await peer.send(http(404, b"<h1>Not Found</h1>", "text/html"))
        else:
            await peer.send(http(200, dump(result(request.message["id"], {}))))

    async def ignore(_message: dict[str, Any], _event_id: str | None) -> None:
        return None

    async with connected(script) as there:
        await there.client.listen(there.session, ignore)
        assert len(there.server.gets()) == 1


async def test_a_challenge_names_addresses_and_none_of_them_is_visited() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        challenge = f'WWW-Authenticate: Bearer resource_metadata="{other.url}/meta"'
        await peer.send(http(401, b"", None, challenge))

    async with raw_server(script) as other, connected(script) as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome) == ("unauthorized", Outcome.REFUSED)
        assert other.requests == []
        assert len(there.server.received("tools/call")) == 1


@pytest.mark.parametrize("megabytes", [1, 5])
async def test_an_answer_costs_a_small_multiple_of_its_size(megabytes: int) -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        await peer.send(sse_head() + answers[request.message["params"]["name"]](request.message["id"]))
        peer.close()

    text = "x" * (megabytes * 1_000_000)
    answers: dict[str, Any] = {"big": lambda i: event(result(i, text_result(text)))}
    async with connected(script) as there:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            answer = await there.call(tool_call("big"))
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    assert len(answer.content[0]["text"]) == len(text)
    # The server of the test lies in this process too, and writes the answer twice.
    assert peak < 12 * len(text)


async def test_an_endless_answer_costs_no_more_than_the_cap() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(sse_head())
        part = b"data: " + bytes(65_536).replace(b"\0", b"x") + b"\n"
        for _ in range(3200):
            await peer.send(part)

    cap = 4_000_000
    async with connected(script, limits=Limits(max_body_bytes=cap, max_event_bytes=cap)) as there:
        tracemalloc.start()
        try:
            failure = await there.failure()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert failure.code == "answer_too_large"
    assert peak < 5 * cap


async def test_good_calls_succeed_beside_unknown_tools_timeouts_and_resets() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        name, request_id = request.message["params"]["name"], request.message["id"]
        match name:
            case "unknown":
                await peer.send(http(200, dump(error(request_id, -32602, "Unknown tool"))))
            case "hangs":
                await peer.wait_closed()
            case "resets":
                peer.reset()
            case _:
                await peer.send(http(200, dump(result(request_id, text_result(name)))))

    async with connected(script) as there:

        async def one(number: int) -> str:
            kind = ("good", "unknown", "hangs", "resets")[number % 4]
            timeout_s = 0.3 if kind == "hangs" else 20
            try:
                await there.call(tool_call(kind), timeout_s=timeout_s)
            except MCPError as failure:
                return f"{kind}: {failure.code}"
            return kind

        for _ in range(4):
            ended = await asyncio.gather(*(one(number) for number in range(32)))
            assert sorted(ended) == sorted(
                ["good", "unknown: invalid_params", "hangs: tool_timeout", "resets: connection_lost"] * 8
            )


async def test_two_callers_answered_in_reverse_order_never_get_each_others_answers() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        waiting.append(peer)
        arguments = request.message["params"]["arguments"]
        answer = http(200, dump(result(request.message["id"], text_result(arguments["nonce"]))))
        answers[id(peer)] = answer
        if len(waiting) == 2:
            for late in reversed(waiting):
                await late.send(answers.pop(id(late)))
            waiting.clear()

    waiting: list[Peer] = []
    answers: dict[int, bytes] = {}
    async with raw_server(legacy_server(script)) as server, client_of(server.url) as client:
        sessions = [await client.open_session(), await client.open_session()]
        for _ in range(500):
            nonces = [str(uuid4()), str(uuid4())]
            got = await asyncio.gather(
                *(
                    client.call_tool(session, tool_call(arguments={"nonce": nonce}), CallHooks(), 20)
                    for session, nonce in zip(sessions, nonces, strict=True)
                )
            )
            assert [answer.content[0]["text"] for answer in got] == nonces


async def test_an_ordinary_failure_of_a_tool_causes_neither_a_session_nor_a_second_call() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        request_id = request.message["id"]
        answers = {
            "isError": result(request_id, {**text_result("no"), "isError": True}),
            "-32602": error(request_id, -32602, "bad argument"),
            "-32000": error(request_id, -32000, "session of the shop expired"),
        }
        await peer.send(http(200, dump(answers[request.message["params"]["name"]])))

    async with connected(script) as there:
        assert (await there.call(tool_call("isError"))).is_error
        assert (await there.failure(tool_call("-32602"))).outcome is Outcome.ANSWERED
        assert (await there.failure(tool_call("-32000"))).outcome is Outcome.ANSWERED
        assert (len(there.server.received("tools/call")), len(there.server.received("initialize"))) == (3, 1)


async def test_progress_for_three_times_the_patience_with_silence_is_allowed() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        token = request.message["params"]["_meta"]["progressToken"]
        await peer.send(sse_head())
        async for number in paced(0.9, 0.15):
            params = {"progressToken": token, "progress": number}
            await peer.send(event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
        await peer.send(event(result(request.message["id"], text_result("done"))))
        peer.close()

    patience = Timeouts(silence_s=0.3, soft_s=0.3, negotiation_s=PATIENT.negotiation_s)
    async with connected(script, timeouts=patience) as there:
        assert (await there.call()).content == ({"type": "text", "text": "done"},)
