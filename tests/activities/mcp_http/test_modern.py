"""The era of 2026-07-28: requests that stand alone, mirrored headers, rounds of input, negotiation."""

from collections.abc import Callable
from typing import Any

import pytest

from activities.mcp_http.errors import MCPError, Outcome, TransportError
from activities.mcp_http.negotiation import Discover, GiveUp, Initialize, after_discover, first_move
from activities.mcp_http.types import CallHooks, Limits, Timeouts
from tests.activities.mcp_http.connecting import client_of, connected_modern, tool_call
from tests.activities.mcp_http.test_hostile_answers import fine
from tests.support.raw_server import Peer, RawRequest, dump, error, http, raw_server, result, text_result

META = "io.modelcontextprotocol/"


async def answer_fine(request: RawRequest, peer: Peer) -> None:
    await peer.send(http(200, dump(fine(request.message["id"]))))


@pytest.mark.anyio
async def test_every_request_carries_version_client_and_capabilities_and_no_session() -> None:
    async with connected_modern(answer_fine) as there:
        await there.call(tool_call("deploy", meta={"k": "v"}))
        await there.client.close_session(there.session)
        discover, call = there.server.requests
        for request, method in ((discover, "server/discover"), (call, "tools/call")):
            meta = request.message["params"]["_meta"]
            assert meta[META + "protocolVersion"] == request.headers["mcp-protocol-version"] == "2026-07-28"
            assert meta[META + "clientCapabilities"] == {}
            assert set(meta[META + "clientInfo"]) == {"name", "version"}
            assert request.headers["mcp-method"] == method
            assert "mcp-session-id" not in request.headers
        assert call.headers["mcp-name"] == "deploy"
        assert "mcp-name" not in discover.headers
        assert call.message["params"]["_meta"]["k"] == "v"


SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "dry": {"type": "boolean", "x-mcp-header": "Dry"},
        "where": {"type": "object", "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}},
        "plain": {"type": "string"},
    },
}


@pytest.mark.anyio
async def test_annotated_arguments_are_mirrored_into_headers() -> None:
    arguments = {"region": " eü\r\nX: 1", "count": 42, "dry": False, "where": {"zone": None}, "plain": "p"}
    async with connected_modern(answer_fine) as there:
        await there.call(tool_call("名字", arguments, input_schema=SCHEMA))
        sent = there.server.requests[-1].headers
        assert {name: value for name, value in sent.items() if name.startswith("mcp-param")} == {
            "mcp-param-region": "=?base64?IGXDvA0KWDogMQ==?=",
            "mcp-param-count": "42",
            "mcp-param-dry": "false",
        }
        assert sent["mcp-name"] == "=?base64?5ZCN5a2X?="


@pytest.mark.anyio
async def test_a_tool_with_a_broken_annotation_is_not_called() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A\r\nX-Evil: 1"}}}
    async with connected_modern(answer_fine) as there:
        failure = await there.failure(tool_call(input_schema=schema))
        assert (failure.code, failure.outcome) == ("invalid_parameter_header", Outcome.NOT_SENT)


def asking(request: dict[str, Any] | None, state: str | None) -> dict[str, Any]:
    value: dict[str, Any] = {"resultType": "input_required"}
    if request is not None:
        value["inputRequests"] = {"k": request}
    return value if state is None else {**value, "requestState": state}


FORM = {"method": "elicitation/create", "params": {"message": "who", "mode": "form", "requestedSchema": {}}}


def rounds(*answers: dict[str, Any]) -> Callable[[RawRequest, Peer], Any]:
    """Answer the n-th call with the n-th value, the last one for ever."""
    count = [0]

    async def script(request: RawRequest, peer: Peer) -> None:
        value = answers[min(count[0], len(answers) - 1)]
        count[0] += 1
        await peer.send(http(200, dump(result(request.message["id"], value))))

    return script


@pytest.mark.anyio
async def test_input_is_declined_and_state_echoed_with_a_new_id_and_the_same_params() -> None:
    script = rounds(asking(FORM, 'st"até\n'), asking(FORM, None), text_result("done"))
    sends: list[int] = []

    async def before_send() -> None:
        sends.append(1)

    async with connected_modern(script, elicitation="decline") as there:
        call = tool_call(arguments={"a": 1})
        answer = await there.call(call, CallHooks(before_send=before_send))
        assert answer.content == ({"type": "text", "text": "done"},)
        first, second, third = (r.message for r in there.server.received("tools/call"))
        assert len({first["id"], second["id"], third["id"]}) == 3
        assert second["params"]["inputResponses"] == {"k": {"action": "decline"}}
        assert second["params"]["requestState"] == 'st"até\n'
        assert "requestState" not in third["params"]
        for later in (second, third):
            assert later["params"]["name"] == "t"
            assert later["params"]["arguments"] == {"a": 1}
        assert first["params"]["_meta"][META + "clientCapabilities"] == {"elicitation": {"form": {}}}
    assert sends == [1]


@pytest.mark.anyio
async def test_a_person_may_answer_through_the_hook() -> None:
    async def on_elicitation(params: Any) -> dict[str, Any]:
        return {"action": "accept", "content": {"name": params["message"]}}

    async with connected_modern(rounds(asking(FORM, None), text_result("ok")), elicitation="ask") as there:
        await there.call(hooks=CallHooks(on_elicitation=on_elicitation))
        sent = there.server.requests[-1].message["params"]["inputResponses"]
        assert sent == {"k": {"action": "accept", "content": {"name": "who"}}}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("value", "code", "outcome"),
    [
        ({"resultType": "input_required"}, "invalid_answer", Outcome.UNKNOWN),
        (asking({"method": "sampling/createMessage"}, None), "input_not_served", Outcome.ANSWERED),
        (asking({"method": "roots/list"}, None), "input_not_served", Outcome.ANSWERED),
        (asking({**FORM, "params": {"mode": "url"}}, None), "input_not_served", Outcome.ANSWERED),
        (asking(7, None), "input_not_served", Outcome.ANSWERED),  # type: ignore[arg-type]
        ({"resultType": "task", "taskId": "1"}, "unknown_result_type", Outcome.UNKNOWN),
        ({"resultType": "novel"}, "unknown_result_type", Outcome.UNKNOWN),
        (asking(None, "again"), "too_many_input_rounds", Outcome.UNKNOWN),
    ],
)
async def test_interim_results_that_cannot_be_met_end_the_call(
    value: dict[str, Any], code: str, outcome: Outcome
) -> None:
    limits = Limits(max_input_rounds=3)
    async with connected_modern(rounds(value), elicitation="decline", limits=limits) as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome) == (code, outcome)
        assert len(there.server.received("tools/call")) == (4 if code == "too_many_input_rounds" else 1)


@pytest.mark.anyio
async def test_404_with_method_not_found_is_no_lost_session() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        await peer.send(http(404, dump(error(request.message["id"], -32601, "Method not found"))))

    async with connected_modern(script) as there:
        assert (await there.failure()).code == "method_not_found"


def legacy_result(request: RawRequest) -> bytes:
    value = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "n", "version": "1"}}
    return http(200, dump(result(request.message["id"], value)))


def discovered(request: RawRequest, versions: Any = ("2026-07-28",)) -> bytes:
    value = {"supportedVersions": versions, "capabilities": {"tools": {}}, "ttlMs": -5, "instructions": "hi"}
    value["_meta"] = {META + "serverInfo": {"name": "m"}}
    return http(200, dump(result(request.message["id"], value)))


def version_error(request: RawRequest, *supported: str) -> bytes:
    data = {"supported": list(supported)}
    return http(400, dump(error(request.message["id"], -32022, "Unsupported protocol version", data)))


Build = Callable[[RawRequest], bytes]


async def negotiate(
    discover: list[Build], initialize: Build = legacy_result, **changes: Any
) -> tuple[Any, list[Any]]:
    """Open a session with ``auto``; return it, or the error, and the methods the server saw."""

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method == "server/discover":
            await peer.send(discover.pop(0)(request))
        elif request.rpc_method == "initialize":
            await peer.send(initialize(request))
        else:
            await peer.send(http(202))

    settings = {"protocol_version": "auto"} | changes
    async with raw_server(script) as server, client_of(server.url, **settings) as client:
        try:
            found: Any = await client.open_session()
        except MCPError as exc:
            found = exc
        return found, [r.rpc_method for r in server.requests]


PROBE, INIT, NOTICE = "server/discover", "initialize", "notifications/initialized"

LEGACY_ANSWERS: dict[str, Build] = {
    "server-everything": lambda _: http(400, dump(error(None, -32000, "Server not initialized"))),
    "python 1.30": lambda _: http(
        400,
        dump(error("server-error", -32600, "Missing session ID")),
        "application/json",
        "Mcp-Session-Id: dead",
    ),
    "mcp-proxy": lambda _: http(400, dump(error(None, -32600, "Unsupported protocol version"))),
    "chuk": lambda r: http(200, dump(error(r.message["id"], -32601, "Method not found"))),
    "404 page": lambda _: http(404, b"<html>", "text/html"),
    "500": lambda _: http(500),
    "text": lambda _: http(200, b"ok", "text/plain"),
    "202": lambda _: http(202, b"", None),
    "no common version": lambda r: discovered(r, ["2030-01-01"]),
    "versions are no list": lambda r: discovered(r, 5),
    "only legacy in -32022": lambda r: version_error(r, "2025-06-18"),
    "-32022 without data": lambda r: http(400, dump(error(r.message["id"], -32022, "no"))),
}


@pytest.mark.anyio
@pytest.mark.parametrize("build", LEGACY_ANSWERS.values(), ids=LEGACY_ANSWERS.keys())
async def test_what_legacy_servers_answer_to_discover_leads_to_initialize(build: Build) -> None:
    session, methods = await negotiate([build])
    assert (session.era, session.session_id) == ("legacy", None)
    assert methods == [PROBE, INIT, NOTICE]


@pytest.mark.anyio
async def test_a_modern_server_is_adopted_with_one_request() -> None:
    session, methods = await negotiate([discovered])
    assert (session.era, session.protocol_version) == ("modern", "2026-07-28")
    assert (session.server_info, session.capabilities) == ({"name": "m"}, {"tools": {}})
    assert session.instructions == "hi"
    assert methods == [PROBE]


@pytest.mark.anyio
async def test_a_server_that_first_refuses_the_version_it_names_is_asked_once_more() -> None:
    session, methods = await negotiate([lambda r: version_error(r, "2026-07-28"), discovered])
    assert session.era == "modern"
    assert methods == [PROBE, PROBE]


@pytest.mark.anyio
async def test_a_server_that_always_refuses_the_version_it_names_is_given_up() -> None:
    refuse: Build = lambda r: version_error(r, "2026-07-28")  # noqa: E731
    failure, methods = await negotiate([refuse] * 5)
    assert failure.code == "unsupported_protocol_version"
    assert methods == [PROBE, PROBE]


@pytest.mark.anyio
async def test_modern_but_no_version_in_common_fails_without_initialize() -> None:
    failure, methods = await negotiate([lambda r: version_error(r, "2030-01-01")])
    assert failure.code == "unsupported_protocol_version"
    assert failure.details["supported"] == ["2030-01-01"]
    assert methods == [PROBE]


@pytest.mark.anyio
async def test_initialize_refused_as_modern_leads_back_to_discover_and_never_loops() -> None:
    slow_start = [LEGACY_ANSWERS["500"], discovered]
    session, methods = await negotiate(slow_start, lambda r: version_error(r, "2026-07-28"))
    assert session.era == "modern"
    assert methods == [PROBE, INIT, PROBE]
    failure, methods = await negotiate([LEGACY_ANSWERS["500"]] * 9, lambda r: version_error(r, "2026-07-28"))
    assert isinstance(failure, MCPError)
    assert len(methods) <= 4


@pytest.mark.anyio
@pytest.mark.parametrize("status", [401, 403, 429, 502, 503, 504])
async def test_overload_and_refusals_in_front_of_the_server_are_no_verdict(status: int) -> None:
    failure, methods = await negotiate([lambda _: http(status, b"", None, "Retry-After: 2")])
    assert failure.http_status == status
    assert failure.outcome is not Outcome.UNKNOWN
    assert methods == [PROBE]


@pytest.mark.anyio
async def test_a_probe_that_times_out_is_no_verdict() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.wait_closed()

    fast = Timeouts(negotiation_s=0.15)
    async with (
        raw_server(script) as server,
        client_of(server.url, protocol_version="auto", timeouts=fast) as client,
    ):
        with pytest.raises(TransportError) as caught:
            await client.open_session()
        assert (caught.value.code, caught.value.retryable) == ("negotiation_timeout", True)
        assert [r.rpc_method for r in server.requests] == [PROBE]


@pytest.mark.anyio
async def test_a_pinned_modern_version_never_falls_back() -> None:
    failure, methods = await negotiate([LEGACY_ANSWERS["chuk"]], protocol_version="2026-07-28")
    assert failure.code == "method_not_found"
    assert methods == [PROBE]


def test_a_version_nobody_knows_is_refused_before_anything_is_sent() -> None:
    move = first_move("1999-01-01")
    assert isinstance(move, GiveUp)
    assert move.error.outcome is Outcome.NOT_SENT
    assert first_move("auto") == first_move("2026-07-28") == Discover()
    assert first_move("2025-03-26") == Initialize("2025-03-26")
    assert after_discover({}, "auto", 1) == Initialize("2025-11-25")
