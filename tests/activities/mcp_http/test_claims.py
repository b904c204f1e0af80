"""What is said of a failed request is true: never "not run" where it may have, never an error of ours."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from activities.client_pool import ClientPool
from activities.mcp_http.errors import MCPError, Outcome
from activities.mcp_http.refusals import retry_after_s
from activities.mcp_http.types import CallHooks
from models.connection import ConnectionTarget, EventStream, Network, OnSessionLoss, SessionScope
from models.vault import Vault
from tests.activities.mcp_http.connecting import (
    client_of,
    connected,
    connected_modern,
    tool_call,
)
from tests.activities.mcp_http.test_hostile_answers import answering, fine
from tests.activities.mcp_http.test_http_sse import OldServer, old
from tests.activities.mcp_http.test_modern import asking
from tests.activities.mcp_http.test_resumption import dropping, stream
from tests.activities.mcp_http.test_statuses import NOW
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
)


def target_at(url: str) -> ConnectionTarget:
    return ConnectionTarget(
        id="c",
        name="c",
        url=url,
        network=Network.LOOPBACK,
        protocol_version="2025-11-25",
        event_stream=EventStream.NEVER,
        session_scope=SessionScope.KEY,
        on_session_loss=OnSessionLoss.RETRY_ONCE,
        refusal_statuses=(),
        enabled=True,
        version=1,
    )


pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "value",
    [
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2026 99999999999999999999:00:00 GMT",
        "Mon, 01 Jan 2026 00:00:00 +99999999999999",
    ],
    ids=["year", "hour", "zone"],
)
async def test_a_date_beyond_all_calendars_is_no_wait(value: str) -> None:
    assert retry_after_s(value, NOW) is None
    page = http(429, b"", None, f"Retry-After: {value}")
    async with connected(answering(lambda _: page)) as there:
        failure = await there.failure()
    assert (failure.code, failure.outcome, failure.retry_after_s) == ("rate_limited", Outcome.REFUSED, None)


@pytest.mark.parametrize(
    "endpoint", ["/m?a=\x01", "/m?\x7f", "/" + "m" * 70_000], ids=["control", "DEL", "long"]
)
async def test_a_post_url_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(MCPError) as caught:
        async with old(OldServer(endpoint)):
            pass
    assert (caught.value.code, caught.value.outcome) == ("endpoint_refused", Outcome.NOT_SENT)


@pytest.mark.parametrize("user", ["eve:pw@", "eve@", ":pw@"])
async def test_a_redirect_that_names_a_user_is_not_followed(user: str) -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        location = f"http://{user}127.0.0.1:{server.port}/other"
        await peer.send(http(307, b"", None, f"Location: {location}"))

    async with raw_server(script) as server, client_of(server.url) as client:
        with pytest.raises(MCPError) as caught:
            await client.open_session()
        assert caught.value.code == "redirect_refused"
        assert len(server.requests) == 1


async def test_an_error_without_id_on_a_resumed_stream_is_not_the_answer() -> None:
    """Such a stream may replay what others were answered; the call itself may still run."""
    script = dropping(
        lambda _: stream(event(error(None, -32000, "Session expired"), "8")),
        lambda i: stream(event(fine(i), "9")),
    )
    async with connected(script) as there:
        assert (await there.call()).content == ({"type": "text", "text": "fine"},)


@pytest.mark.parametrize("second", ["429", "era", "no connection"])
async def test_after_the_first_round_of_input_no_failure_claims_that_nothing_ran(second: str) -> None:
    """The tool has begun when it asks, and its state may stand for work under way."""

    async def script(request: RawRequest, peer: Peer) -> None:
        if "requestState" not in request.message["params"]:
            await peer.send(http(200, dump(result(request.message["id"], asking(None, "s")))))
            if second == "no connection":
                peer.close()
                server.stop_listening()
        elif second == "429":
            await peer.send(http(429, b"", None, "Retry-After: 0"))
        else:
            await peer.send(http(400, dump(error(None, -32600, "Missing session ID"))))

    async with connected_modern(script) as there:
        server = there.server
        failure = await there.failure()
    assert (failure.outcome, failure.retryable, failure.details.get("remedy")) == (
        Outcome.UNKNOWN,
        False,
        None,
    )


async def test_a_server_that_is_gone_when_an_idle_connection_turns_out_closed_was_sent_nothing() -> None:
    """Marking the send takes a while, in which the server may go; nothing has left until then."""

    async def script(request: RawRequest, peer: Peer) -> None:
        await peer.send(http(200, dump(fine(request.message["id"]))))
        peers.append(peer)

    peers: list[Peer] = []
    async with connected(script) as there:
        await there.call()

        async def server_goes() -> None:
            there.server.stop_listening()
            peers[-1].close()
            await there.server.wait_until(lambda server: server.closed_connections == server.connections)

        failure = await there.failure(hooks=CallHooks(before_send=server_goes))
    assert (failure.code, failure.outcome, failure.retryable) == ("connect_failed", Outcome.NOT_SENT, True)


async def test_a_session_whose_handshake_fails_halfway_is_ended() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method == "notifications/initialized":
            await peer.send(http(500, b"", None))
        else:
            await plain(request, peer)

    plain = legacy_server(answering(lambda _: b""))
    async with raw_server(script) as server, client_of(server.url) as client:
        with pytest.raises(MCPError):
            await client.open_session()
        (farewell,) = [request for request in server.requests if request.method == "DELETE"]
        assert farewell.headers["mcp-session-id"] == "s-1"


async def test_calls_under_way_outlive_an_edit_of_their_connection() -> None:
    """The edited connection gets a new client; a call of the old one still resumes, replies and cancels."""

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "GET":
            await peer.send(stream(event(fine(ids[0]), "8")))
        else:
            ids.append(request.message["id"])
            await edited.wait()
            await peer.send(stream(b"id: 7\nretry: 0\ndata:\n\n"))
        peer.close()

    ids: list[Any] = []
    edited = asyncio.Event()
    async with raw_server(legacy_server(script)) as server, ClientPool(1024, Vault(bytes(32))) as clients:
        target = target_at(server.url)
        client = clients.client(target)
        session = await client.open_session()
        calling = asyncio.create_task(client.call_tool(session, tool_call()))
        await server.wait_until(lambda there: bool(there.received("tools/call")))
        clients.client(replace(target, version=2))
        edited.set()
        assert (await calling).content == ({"type": "text", "text": "fine"},)
        await server.wait_until(lambda there: there.closed_connections == there.connections)
