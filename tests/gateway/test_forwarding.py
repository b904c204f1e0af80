"""Nothing that a caller sends beside its arguments reaches the server behind the gateway."""

import json
from typing import Any

import pytest

from tests.api.bench import ADMIN_TOKEN, Agent, tool_call
from tests.gateway.stage import Stage

pytestmark = pytest.mark.anyio

MARK = "planted-mark"

MARKED = [
    "accept-language",
    "baggage",
    "cookie",
    "forwarded",
    "from",
    "idempotency-key",
    "last-event-id",
    "mcp-name",
    "mcp-param-region",
    "origin-trace",
    "proxy-authorization",
    "referer",
    "traceparent",
    "tracestate",
    "user-agent",
    "via",
    "x-api-key",
    "x-b3-traceid",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-goog-api-key",
    "x-mcp-anything",
    "x-real-ip",
    "x-request-id",
    "x-sluicegate-anything",
]


def marks(place: str) -> dict[str, str]:
    return {name: f"{MARK}-{place}-{number}" for number, name in enumerate(MARKED)}


def modern(method: str, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "com.example/secret": f"{MARK}-meta",
        "progressToken": f"{MARK}-progress",
    }
    body = {
        "jsonrpc": "2.0",
        "id": f"{MARK}-id",
        "method": method,
        "params": {**params, "_meta": meta},
    }
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    return body, headers | ({"mcp-name": params["name"]} if "name" in params else {})


async def every_way_in(gateway: Stage, agent: Agent) -> list[int]:
    """Call by execute, as a round and over MCP, list both ways, and let an operator refresh; with marks."""
    call, http = tool_call("files-read", "{}", f"{MARK}-call-id"), gateway.http
    listing, list_headers = modern("tools/list", {})
    calling, call_headers = modern("tools/call", {"name": "files-read", "arguments": {}})
    secret = agent.headers
    answers = [
        await http.get(f"/v1/mcp/tools?q={MARK}", headers={**marks("list"), **secret}),
        await http.post("/v1/mcp/tool/execute", headers={**marks("execute"), **secret}, json=call),
        await http.post("/v1/rounds", headers={**marks("round"), **secret}, json={"tool_calls": [call]}),
        await http.post("/mcp", headers={**marks("mcp-list"), **secret, **list_headers}, json=listing),
        await http.post("/mcp", headers={**marks("mcp-call"), **secret, **call_headers}, json=calling),
        await gateway.operator("POST", "/api/v1/mcp/clients/files/refresh", headers=marks("refresh")),
    ]
    return [answer.status_code for answer in answers]


async def test_no_header_key_cookie_or_id_of_a_caller_reaches_the_server(gateway: Stage) -> None:
    await gateway.connect("files")
    agent = await gateway.key()
    gateway.probe.forget()

    assert await every_way_in(gateway, agent) == [200] * 6

    assert len(gateway.probe.calls) == 3
    methods = {json.loads(request.body).get("method") for request in gateway.probe.received}
    assert {"tools/call", "tools/list", "server/discover"} <= methods
    for secret in (MARK, agent.secret, ADMIN_TOKEN, agent.key_id):
        assert [request for request in gateway.probe.received if request.holds(secret)] == []


async def test_the_search_would_find_a_mark(gateway: Stage) -> None:
    await gateway.http.post(
        gateway.probe_url, headers={"x-leak": f"{MARK}-leak"}, json={"jsonrpc": "2.0", "method": "x"}
    )
    assert gateway.probe.received[-1].holds(MARK)


async def test_only_the_arguments_and_our_own_words_are_sent(gateway: Stage) -> None:
    clients = (await gateway.operator("GET", "/api/v1/mcp/clients")).json()["items"]
    if not clients:
        await gateway.connect("files")
    agent = await gateway.key()
    gateway.probe.forget()

    call = tool_call("files-read", {"path": "a"})
    await gateway.http.post("/v1/mcp/tool/execute", headers={**marks("x"), **agent.headers}, json=call)

    sent = next(request for request in gateway.probe.received if b"tools/call" in request.body)
    assert {name for name, _ in sent.headers} == {
        "host",
        "accept",
        "content-type",
        "accept-encoding",
        "mcp-protocol-version",
        "user-agent",
        "mcp-method",
        "mcp-name",
        "content-length",
    }
    params = json.loads(sent.body)["params"]
    assert (params["name"], params["arguments"]) == ("read", {"path": "a"})
    assert all(
        name.startswith(("io.modelcontextprotocol/", "dev.sluicegate/", "progressToken"))
        for name in params["_meta"]
    )
