"""The inbound MCP endpoint over a real socket: both eras, sessions, refusals, cancels, resumption."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from sqlalchemy import select
from temporalio.client import Client

from api.mcp_server.probe import Probe, probe_tool
from models.audit import AuditEvent
from tests.api.bench import Agent
from tests.gateway.stage import Stage, stage
from tests.support.databases import sqlite_copy

pytestmark = pytest.mark.anyio

BOTH = "application/json, text/event-stream"
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["id"],
}
TOOLS = [
    probe_tool("read", SCHEMA, annotations={"readOnlyHint": True}),
    probe_tool("write", outputSchema={"type": "object"}),
    probe_tool("hidden"),
]


@pytest.fixture(scope="module")
async def shared(
    sqlite_template_path: Path, tmp_path_factory: pytest.TempPathFactory, temporal_client: Client
) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("mcp")
    url = sqlite_copy(sqlite_template_path, folder)
    allowed = frozenset({"https://agents.example"})
    async with stage(
        folder, url, temporal_client, f"test-{uuid4().hex}", Probe(TOOLS), mcp_allowed_origins=allowed
    ) as built:
        await built.connect("files", ["read", "write"])
        yield built


@pytest.fixture
def gateway(shared: Stage) -> Stage:
    """The gateway that the tests of this file share, its upstream with an empty record."""
    shared.probe.forget()
    shared.probe.tools = TOOLS
    return shared


def message(method: str, params: dict[str, Any] | None = None, request_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}


async def post(
    gateway: Stage, agent: Agent, body: Any, headers: dict[str, str] | None = None
) -> httpx.Response:
    answer = await gateway.http.post(
        "/mcp", json=body, headers={"accept": BOTH, **agent.headers, **(headers or {})}
    )
    return unwrapped(answer)


def unwrapped(answer: httpx.Response) -> httpx.Response:
    """Return an answer that was slow enough to come as an event stream as the JSON that it carried."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return answer
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    kept = {name: value for name, value in answer.headers.items() if name.startswith(("mcp-", "x-"))}
    return httpx.Response(answer.status_code, headers=kept, text=data[-1], request=answer.request)


async def session_of(gateway: Stage, agent: Agent, version: str = "2025-11-25") -> dict[str, str]:
    """Initialize, and return the headers of every later request."""
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    answer = await post(gateway, agent, message("initialize", params, 0))
    assert answer.json()["result"]["protocolVersion"] == version
    headers = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": version}
    notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await post(gateway, agent, notice, headers)).status_code == 202
    return headers


def modern(method: str, params: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the keyword arguments of a modern request: body and headers."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = message(method, {**(params or {}), "_meta": meta})
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    if params and "name" in params:
        headers["mcp-name"] = params["name"]
    return {"body": body, "headers": {**headers, **changes}}


def call(name: str, arguments: Any = None, request_id: Any = 1) -> dict[str, Any]:
    return message("tools/call", {"name": name, "arguments": arguments or {}}, request_id)


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_legacy_client_lists_and_calls_the_tools_that_its_key_may_use(
    gateway: Stage, version: str
) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent, version)

    listed = (await post(gateway, agent, message("tools/list", request_id="a"), session)).json()
    called = (await post(gateway, agent, call("files-read", {"id": 7}, "b"), session)).json()

    tools = {tool["name"]: tool for tool in listed["result"]["tools"]}
    assert (listed["id"], set(tools)) == ("a", {"files-read", "files-write"})
    assert tools["files-read"]["inputSchema"]["properties"]["region"] == {"type": "string"}
    assert tools["files-read"]["annotations"] == {"readOnlyHint": True}
    assert ("outputSchema" in tools["files-write"]) == (version != "2025-03-26")
    assert (called["id"], called["result"]["isError"]) == ("b", False)
    assert json.loads(called["result"]["content"][0]["text"]) == {"tool": "read", "arguments": {"id": 7}}
    assert called["result"]["_meta"]["dev.sluicegate/round-id"]


async def test_a_modern_client_needs_no_session(gateway: Stage) -> None:
    agent = await gateway.key()

    found = (await post(gateway, agent, **modern("server/discover"))).json()["result"]
    listed = (await post(gateway, agent, **modern("tools/list"))).json()["result"]
    called = await post(
        gateway, agent, **modern("tools/call", {"name": "files-read", "arguments": {"id": 7}})
    )

    assert (found["supportedVersions"], found["resultType"]) == (["2026-07-28"], "complete")
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "sluicegate"
    assert (listed["ttlMs"], listed["cacheScope"], len(listed["tools"])) == (0, "private", 2)
    assert called.json()["result"]["resultType"] == "complete"
    assert "mcp-session-id" not in called.headers
    assert [made.arguments for made in gateway.probe.calls] == [{"id": 7}]


async def test_an_unknown_wanted_version_is_answered_with_the_newest_of_the_era(gateway: Stage) -> None:
    agent = await gateway.key()
    answer = await post(gateway, agent, message("initialize", {"protocolVersion": "1999-01-01"}))
    assert answer.json()["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"mcp-session-id": ""}, 404, -32600),
        ({"mcp-session-id": "2025-11-25.00000000000000000000000000000000.0" + "0" * 31}, 404, -32600),
        ({"mcp-protocol-version": "1999-01-01"}, 400, -32022),
        ({"accept": "text/html"}, 406, -32600),
        ({"content-type": "text/plain"}, 415, -32600),
    ],
)
async def test_a_request_outside_of_its_session_is_refused_by_status_and_code(
    gateway: Stage, changes: dict[str, str], status: int, code: int
) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)
    answer = await post(gateway, agent, message("tools/list"), {**session, **changes})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_a_session_belongs_to_its_key(gateway: Stage) -> None:
    mine, yours = await gateway.key(), await gateway.key()
    session = await session_of(gateway, mine)

    assert (await post(gateway, yours, message("ping"), session)).status_code == 404
    assert (await post(gateway, mine, message("ping"), session)).json() == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {},
    }
    no_session = await post(gateway, mine, message("ping"))
    assert (no_session.status_code, no_session.json()["error"]["code"]) == (400, -32600)


VERSION, METHOD, NAME = "mcp-protocol-version", "mcp-method", "mcp-name"
BARE = {"body": message("server/discover"), "headers": {VERSION: "2026-07-28", METHOD: "server/discover"}}
WRITE = {"name": "files-write"}
MODERN_REFUSALS: dict[str, tuple[dict[str, Any], int, int]] = {
    "no metadata": (BARE, 400, -32602),
    "header of another version": (modern("tools/list", None, **{VERSION: "2027-01-01"}), 400, -32020),
    "another method": (modern("tools/list", None, **{METHOD: "tools/call"}), 400, -32020),
    "another tool": (modern("tools/call", WRITE, **{NAME: "files-read"}), 400, -32020),
    "a wrongly encoded tool": (modern("tools/call", WRITE, **{NAME: "=?base64?%%?="}), 400, -32020),
    "unknown method": (modern("resources/list"), 404, -32601),
    "a method of the other era": (modern("initialize"), 404, -32601),
    "ping": (modern("ping"), 404, -32601),
}


@pytest.mark.parametrize("case", MODERN_REFUSALS)
async def test_a_modern_request_that_contradicts_itself_is_refused_and_reaches_nobody(
    gateway: Stage, case: str
) -> None:
    request, status, code = MODERN_REFUSALS[case]
    answer = await post(gateway, await gateway.key(), **request)
    body = answer.json()
    assert (answer.status_code, body["error"]["code"], body["id"]) == (status, code, 1)
    assert gateway.probe.calls == []


async def test_an_unknown_modern_version_names_those_that_we_speak(gateway: Stage) -> None:
    request = modern("server/discover", None, **{"mcp-protocol-version": "v999"})
    request["body"]["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "v999"
    error = (await post(gateway, await gateway.key(), **request)).json()["error"]
    assert error["data"] == {"supported": ["2026-07-28"], "requested": "v999"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"{", -32700),
        (b'{"a":1,"a":2}', -32700),
        (b"7", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
    ],
)
async def test_what_is_no_message_is_refused_to_callers_and_strangers_learn_nothing(
    gateway: Stage, text: bytes, code: int
) -> None:
    agent = await gateway.key()
    headers = {"accept": BOTH, "content-type": "application/json"}

    known = await gateway.http.post("/mcp", content=text, headers={**headers, **agent.headers})
    stranger = {"authorization": "Bearer sgk_nobody"}
    unknown = await gateway.http.post("/mcp", content=text, headers={**headers, **stranger})

    assert (known.status_code, known.json()["error"]["code"]) == (400, code)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (401, "invalid_key")
    assert unknown.headers["www-authenticate"] == "Bearer"


async def test_a_tool_that_is_hidden_or_unknown_is_an_error_of_the_protocol_and_audited(
    gateway: Stage,
) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)

    answers = [
        (await post(gateway, agent, call(name, request_id=name), session)).json()["error"]
        for name in ("files-hidden", "files-nothing")
    ]

    assert [answer["code"] for answer in answers] == [-32602, -32602]
    assert [answer["data"]["code"] for answer in answers] == ["tool_not_allowed", "tool_not_found"]
    codes = await gateway.api.database.read(
        lambda database: database.scalars(
            select(AuditEvent.code).where(AuditEvent.actor == agent.key_id).order_by(AuditEvent.id)
        ).all()
    )
    assert codes == ["tool_not_allowed", "tool_not_found"]
    assert gateway.probe.calls == []


async def test_unfit_arguments_are_a_result_that_the_model_can_correct(gateway: Stage) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)

    result = (await post(gateway, agent, call("files-read", {"id": "x"}), session)).json()["result"]

    error = json.loads(result["content"][0]["text"])["error"]
    assert (result["isError"], error["code"]) == (True, "invalid_arguments")
    assert error["details"]["problems"][0]["path"] == "/id"


async def test_a_failure_that_the_tool_reports_keeps_its_content(gateway: Stage) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)
    result = (await post(gateway, agent, call("files-write", {"fail": True}), session)).json()["result"]
    assert result["isError"] is True
    assert json.loads(result["content"][0]["text"])["arguments"] == {"fail": True}


async def test_filter_headers_narrow_and_malformed_ones_are_refused(gateway: Stage) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)
    narrow = {**session, "x-mcp-include-tools": "files-write"}

    listed = (await post(gateway, agent, message("tools/list"), narrow)).json()["result"]["tools"]
    hidden = (await post(gateway, agent, call("files-read", {"id": 1}), narrow)).json()["error"]
    wrong = await post(gateway, agent, message("tools/list"), {**session, "x-mcp-include-tools": "files-r*"})

    assert [tool["name"] for tool in listed] == ["files-write"]
    assert hidden["data"]["code"] == "tool_not_allowed"
    assert (wrong.status_code, wrong.json()["error"]["data"]["code"]) == (400, "invalid_filter")


async def test_a_repeated_request_id_runs_nothing_twice(gateway: Stage) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)

    same = [await post(gateway, agent, call("files-write", {"nonce": 1}, 5), session) for _ in range(2)]
    text_id = await post(gateway, agent, call("files-write", {"nonce": 1}, "5"), session)
    other = await post(gateway, agent, call("files-write", {"nonce": 2}, 5), session)

    assert same[0].json() == same[1].json()
    assert "result" in text_id.json()
    assert other.json()["error"]["data"]["code"] == "idempotency_conflict"
    assert gateway.probe.count(1) == 2
    assert gateway.probe.count(2) == 0


async def test_a_key_that_the_client_gives_holds_over_sessions_and_eras(gateway: Stage) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)
    named = {"idempotency-key": "order-1"}

    first = await post(gateway, agent, call("files-write", {"nonce": 3}), {**session, **named})
    request = modern("tools/call", {"name": "files-write", "arguments": {"nonce": 3}})
    request["body"]["params"]["_meta"]["dev.sluicegate/idempotency-key"] = "order-1"
    second = await post(gateway, agent, **request)

    round_ids = [answer.json()["result"]["_meta"]["dev.sluicegate/round-id"] for answer in (first, second)]
    assert round_ids[0] == round_ids[1]
    assert gateway.probe.count(3) == 1


async def test_batches_are_answered_where_the_version_has_them(gateway: Stage) -> None:
    agent = await gateway.key()
    old, new = await session_of(gateway, agent, "2025-03-26"), await session_of(gateway, agent)
    batch = [
        message("ping", request_id=1),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call("files-write", {"nonce": 4}, 2),
        {"jsonrpc": "2.0", "id": 3, "method": 7},
        message("initialize", request_id=4),
    ]

    answers = (await post(gateway, agent, batch, old)).json()
    notices = await post(gateway, agent, batch[1:2], old)
    refused = await post(gateway, agent, batch, new)

    assert [(one["id"], one.get("error", {}).get("code")) for one in answers] == [
        (1, None),
        (2, None),
        (3, -32600),
        (4, -32601),
    ]
    assert (notices.status_code, notices.content) == (202, b"")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32600)
    assert gateway.probe.count(4) == 1


async def held(gateway: Stage, nonce: int) -> None:
    async with asyncio.timeout(5):
        await gateway.probe.holding.wait()
    assert gateway.probe.count(nonce) == 1


async def test_a_legacy_cancel_reaches_the_upstream(gateway: Stage) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)
    calling = asyncio.create_task(
        post(gateway, agent, call("files-write", {"nonce": 5, "hold": True}, "c"), session)
    )
    await held(gateway, 5)

    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "c"}}
    assert (await post(gateway, agent, notice, session)).status_code == 202

    async with asyncio.timeout(5):
        await gateway.probe.stopped.wait()
        answer = await calling
    assert "canceled" in answer.text
    round_id = answer.json()["result"]["_meta"]["dev.sluicegate/round-id"]
    shown = await gateway.http.get(f"/v1/rounds/{round_id}", headers=agent.headers)
    assert shown.json()["state"] == "canceled"


async def test_closing_a_modern_request_cancels_it(gateway: Stage) -> None:
    agent = await gateway.key()
    request = modern("tools/call", {"name": "files-write", "arguments": {"nonce": 6, "hold": True}})
    calling = asyncio.create_task(post(gateway, agent, **request))
    await held(gateway, 6)

    calling.cancel()

    async with asyncio.timeout(5):
        await gateway.probe.stopped.wait()
    assert gateway.probe.given_up == 1


async def test_a_broken_legacy_stream_goes_on_and_is_fetched_again(gateway: Stage) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)
    headers = {"accept": BOTH, **agent.headers, **session}
    body = call("files-write", {"nonce": 7, "hold": True}, "r")
    async with gateway.http.stream("POST", "/mcp", json=body, headers=headers) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        lines = stream.aiter_lines()
        event_id = (await anext(lines)).removeprefix("id: ")

    gateway.probe.go.set()
    fetch = {**headers, "accept": "text/event-stream", "last-event-id": event_id}
    first = await gateway.http.get("/mcp", headers=fetch)
    second = await gateway.http.get("/mcp", headers=fetch)
    other = await session_of(gateway, agent)
    foreign = await gateway.http.get("/mcp", headers={**fetch, **other})

    data = [line.removeprefix("data: ") for line in first.text.splitlines() if line.startswith("data: ")]
    assert json.loads(data[-1])["id"] == "r"
    assert json.loads(data[-1])["result"]["isError"] is False
    assert first.text == second.text
    assert foreign.status_code == 400
    assert gateway.probe.count(7) == 1


async def test_there_is_no_stream_of_our_own(gateway: Stage) -> None:
    agent = await gateway.key()
    session = await session_of(gateway, agent)
    got = await gateway.http.get("/mcp", headers={**agent.headers, **session})
    deleted = await gateway.http.delete("/mcp", headers={**agent.headers, **session})
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert deleted.status_code == 405


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        (None, None, 200),
        ("http://localhost:3000", None, 200),
        ("https://agents.example", None, 200),
        ("https://evil.example", None, 403),
        ("https://evil.example", "evil.example", 403),
        ("null", None, 403),
        ("http://localhost:3000", "evil.example", 403),
    ],
)
async def test_only_pages_of_this_machine_and_of_the_settings_may_speak(
    gateway: Stage, origin: str | None, host: str | None, status: int
) -> None:
    agent = await gateway.key()
    headers = {name: value for name, value in (("origin", origin), ("host", host)) if value is not None}
    answer = await post(gateway, agent, message("initialize"), headers)
    assert answer.status_code == status


async def test_a_longer_list_comes_in_pages(gateway: Stage) -> None:
    many = [probe_tool(f"tool_{number:03}") for number in range(260)]
    gateway.probe.tools = many
    await gateway.connect("many")
    agent = await gateway.key(grants={"many": ["*"]})
    session = await session_of(gateway, agent)

    names: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await post(gateway, agent, message("tools/list", cursor), session)).json()["result"]
        names += [tool["name"] for tool in page["tools"]]
        if "nextCursor" not in page:
            break
        cursor = {"cursor": page["nextCursor"]}
    wrong = (await post(gateway, agent, message("tools/list", {"cursor": ""}), session)).json()

    assert names == [f"many-tool_{number:03}" for number in range(260)]
    assert wrong["error"]["code"] == -32602
