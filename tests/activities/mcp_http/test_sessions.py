"""Opening, keeping, losing and closing a session."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from activities.mcp_http.errors import EndpointRefused, MCPError, Outcome, ProtocolError, SessionLost
from activities.mcp_http.types import ClientInfo, OpenSession
from tests.activities.mcp_http.connecting import client_of, connected, tool_call
from tests.activities.mcp_http.test_hostile_answers import fine
from tests.support.raw_server import (
    Peer,
    RawRequest,
    Script,
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


async def answer_fine(request: RawRequest, peer: Peer) -> None:
    await peer.send(http(200, dump(fine(request.message["id"]))))


def initialize_with(build: Callable[[RawRequest], bytes]) -> Script:
    """A server whose answer to ``initialize`` is under test."""

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method == "initialize":
            await peer.send(build(request))
            if b"Connection: close" in build(request):
                peer.close()
        else:
            await peer.send(http(202, b"", None) if "id" not in request.message else http(200, b"{}"))

    return script


def initialized(request: RawRequest, version: Any = "2025-11-25", **more: Any) -> dict[str, Any]:
    value = {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "n"}, **more}
    return result(request.message["id"], value)


async def open_with(
    build: Callable[[RawRequest], bytes], **changes: Any
) -> tuple[OpenSession, list[RawRequest]]:
    async with raw_server(initialize_with(build)) as server, client_of(server.url, **changes) as client:
        return await client.open_session(), server.requests


@pytest.mark.anyio
async def test_the_handshake_is_initialize_then_initialized_then_calls_of_one_request_each() -> None:
    async with connected(answer_fine) as there:
        await there.call()
        await there.call()
        first, second, third, fourth = there.server.requests
        assert first.message["params"] == {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": ClientInfo().name, "version": ClientInfo().version},
        }
        assert "mcp-session-id" not in first.headers
        assert "mcp-protocol-version" not in first.headers
        assert second.message == {"jsonrpc": "2.0", "method": "notifications/initialized"}
        for request in (second, third, fourth):
            assert request.headers["mcp-session-id"] == "s-1"
            assert request.headers["mcp-protocol-version"] == "2025-11-25"
        assert third.rpc_method == fourth.rpc_method == "tools/call"
        assert there.server.connections == 1


@pytest.mark.anyio
async def test_every_request_asks_for_both_answers_and_no_compression() -> None:
    async with connected(answer_fine, headers={"Authorization": "Bearer x", "X-Team": "a"}) as there:
        await there.call()
        for request in there.server.requests:
            assert request.headers["accept"] == "application/json, text/event-stream"
            assert request.headers["content-type"] == "application/json"
            assert request.headers["accept-encoding"] == "identity"
            assert request.headers["authorization"] == "Bearer x"
            assert request.headers["x-team"] == "a"
            assert "origin" not in request.headers
            assert len({name.lower() for name, _ in request.raw_headers}) == len(request.raw_headers)


@pytest.mark.anyio
@pytest.mark.parametrize("session_id", ["a+b/c==", "x" * 4096, "!~"], ids=["base64", "4 KB", "edges"])
async def test_a_session_id_is_echoed_byte_for_byte(session_id: str) -> None:
    async with (
        raw_server(legacy_server(answer_fine, session_id)) as server,
        client_of(server.url) as client,
    ):
        session = await client.open_session()
        assert session.session_id == session_id
        await client.call_tool(session, tool_call())
        assert server.requests[-1].headers["mcp-session-id"] == session_id


@pytest.mark.anyio
async def test_a_server_without_sessions_gets_no_session_header_and_no_delete() -> None:
    async with raw_server(legacy_server(answer_fine, None)) as server, client_of(server.url) as client:
        session = await client.open_session()
        await client.call_tool(session, tool_call())
        await client.close_session(session)
        assert session.session_id is None
        assert all("mcp-session-id" not in request.headers for request in server.requests)
        assert all(request.method == "POST" for request in server.requests)


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
async def test_the_negotiated_version_is_what_later_requests_carry(version: str) -> None:
    async with (
        raw_server(legacy_server(answer_fine, version=version)) as server,
        client_of(server.url) as client,
    ):
        session = await client.open_session()
        await client.call_tool(session, tool_call())
        assert session.protocol_version == version
        assert server.requests[-1].headers["mcp-protocol-version"] == version


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["1999-01-01", "2026-07-28", 5, None])
async def test_an_unknown_counter_offer_is_refused_and_its_session_deleted(version: Any) -> None:
    script = initialize_with(
        lambda r: http(200, dump(initialized(r, version)), "application/json", "Mcp-Session-Id: s")
    )
    async with raw_server(script) as server, client_of(server.url) as client:
        with pytest.raises(ProtocolError) as caught:
            await client.open_session()
        assert [(r.method, r.headers.get("mcp-session-id")) for r in server.requests] == [
            ("POST", None),
            ("DELETE", "s"),
        ]
    assert caught.value.code == "unsupported_protocol_version"
    assert caught.value.outcome is Outcome.REFUSED


@pytest.mark.anyio
@pytest.mark.parametrize("session_id", ["has space", "x" * 9000, "caf\xe9", "\x7f"])
async def test_a_session_id_that_no_header_may_carry_is_refused(session_id: str) -> None:
    with pytest.raises(MCPError) as caught:
        await open_with(
            lambda r: http(200, dump(initialized(r)), "application/json", f"Mcp-Session-Id: {session_id}")
        )
    assert caught.value.code in {"invalid_session_id", "connection_lost"}


@pytest.mark.anyio
async def test_a_session_id_on_a_failed_initialize_is_ignored() -> None:
    page = http(400, dump(error("server-error", -32600, "Bad")), "application/json", "Mcp-Session-Id: dead")
    with pytest.raises(ProtocolError) as caught:
        await open_with(lambda _: page)
    assert caught.value.code == "invalid_request"


@pytest.mark.anyio
async def test_initialize_may_be_answered_by_a_stream_with_a_priming_event() -> None:
    def build(request: RawRequest) -> bytes:
        head = sse_head("Mcp-Session-Id: s-2")
        return head + b"id: 1\nretry: 10\ndata:\n\n" + event(initialized(request, instructions="hi"), "2")

    session, _ = await open_with(build)
    assert (session.session_id, session.instructions, session.era) == ("s-2", "hi", "legacy")


@pytest.mark.anyio
async def test_errors_while_opening_never_leave_the_outcome_unknown() -> None:
    for page in (http(500), http(202, b"", None), http(200, b"<html>", "text/html"), b"Connection: close"):
        with pytest.raises(MCPError) as caught:
            await open_with(lambda _, page=page: page)  # type: ignore[misc]
        assert caught.value.outcome is Outcome.NOT_SENT


@pytest.mark.anyio
async def test_a_lost_session_is_reported_and_a_new_one_works() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if len(there_calls) == 0:
            there_calls.append(1)
            await peer.send(http(404, dump(error(None, -32600, "Session not found"))))
        else:
            await answer_fine(request, peer)

    there_calls: list[int] = []
    async with connected(script) as there:
        assert type(await there.failure()) is SessionLost
        again = await there.client.open_session()
        answer = await there.client.call_tool(again, tool_call())
        assert answer.content == ({"type": "text", "text": "fine"},)
        assert len(there.server.received("initialize")) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("status", [200, 202, 204, 400, 404, 405, 500])
async def test_whatever_delete_is_answered_the_session_is_done_with(status: int) -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "DELETE":
            await peer.send(b"HTTP/1.1 204 X\r\n\r\n" if status == 204 else http(status, b"no", "text/plain"))
        else:
            await legacy_server(answer_fine)(request, peer)

    async with raw_server(script) as server, client_of(server.url) as client:
        session = await client.open_session()
        await client.close_session(session)
        assert server.requests[-1].method == "DELETE"
        assert server.requests[-1].headers["mcp-session-id"] == "s-1"


def test_a_session_survives_storage_and_never_shows_its_id() -> None:
    session = OpenSession(
        "secret-id", "2025-11-25", "legacy", {"name": "n"}, {"tools": {}}, "i", "http://h/mcp"
    )
    assert OpenSession.from_json(json.loads(json.dumps(session.to_json()))) == session
    assert "secret-id" not in repr(session)


@pytest.mark.anyio
async def test_a_session_of_another_origin_is_never_used() -> None:
    async with connected(answer_fine) as there:
        stolen = OpenSession("s", "2025-11-25", "legacy", url="http://127.0.0.1:1/mcp")
        with pytest.raises(EndpointRefused):
            await there.client.call_tool(stolen, tool_call())


@pytest.mark.anyio
async def test_a_redirect_within_the_origin_is_followed_once_and_remembered() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.path == "/mcp/":
            await peer.send(http(307, b"", None, "Location: /mcp"))
        else:
            await legacy_server(answer_fine)(request, peer)

    async with raw_server(script) as server, client_of(server.url + "/") as client:
        session = await client.open_session()
        await client.call_tool(session, tool_call())
        assert session.url == server.url
        assert [r.path for r in server.requests] == ["/mcp/", "/mcp", "/mcp", "/mcp"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "location",
    ["http://127.0.0.1:1/mcp", "https://127.0.0.1/mcp", "//evil.example/mcp", "/mcp", "http://[", "ftp://x"],
)
async def test_a_redirect_to_elsewhere_or_to_itself_is_refused(location: str) -> None:
    with pytest.raises(MCPError) as caught:
        await open_with(lambda _: http(307, b"", None, f"Location: {location}"))
    assert caught.value.code == "redirect_refused"
    assert "Location" not in caught.value.message


@pytest.mark.anyio
async def test_ping_tells_whether_the_session_lives() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        pings.append(request.rpc_method)
        await peer.send(http(200, dump(result(request.message["id"], {}))) if len(pings) == 1 else http(404))

    pings: list[str | None] = []
    async with connected(script) as there:
        await there.client.ping(there.session)
        with pytest.raises(SessionLost):
            await there.client.ping(there.session)
    assert pings == ["ping", "ping"]


@pytest.mark.anyio
async def test_200_calls_at_once_on_one_session_get_their_own_answers_in_any_order() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        nonce = request.message["params"]["arguments"]["nonce"]
        others = event(result("someone-else", text_result("WRONG")))
        await peer.send(sse_head() + others + event(result(request.message["id"], text_result(nonce))))
        peer.close()

    async with connected(script) as there:
        async with anyio.create_task_group() as group:

            async def one(number: int) -> None:
                answer = await there.call(tool_call(arguments={"nonce": f"n{number}"}), timeout_s=20)
                assert answer.content == ({"type": "text", "text": f"n{number}"},)

            for number in range(200):
                group.start_soon(one, number)
        ids = [r.message["id"] for r in there.server.received("tools/call")]
        assert len(set(ids)) == 200
