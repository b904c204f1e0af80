"""Names of tools: whatever a server calls them, each is shown once, callable, and always the same."""

import re
from typing import Any

import pytest

from api.mcp_server.probe import probe_tool
from tests.api.bench import api_bench, tool_call
from tests.gateway.stage import Stage, listed_names

pytestmark = pytest.mark.anyio

EXPOSED = re.compile(r"[A-Za-z0-9_-]{1,64}")

HOSTILE = [
    "*",
    "a.b",
    "a_b",
    "a-b",
    "a/b",
    "a:b",
    "../up",
    "get-user",
    "get_user",
    "Get_User",
    "\u540d\u5b57",
    "\u00e9",
    "with space",
    "x" * 200,
    "x" * 199 + "y",
    "read",
    "none",
    "core_matrix__read",
    "subagent_spawn",
    "=?base64?eA==?=",
]


async def names_of(gateway: Stage, connection: str) -> dict[str, str]:
    """Return the exposed name of each upstream name."""
    answer = await gateway.operator("GET", f"/api/v1/mcp/clients/{connection}/tools")
    return {tool["upstream_name"]: tool["name"] for tool in answer.json()["tools"]}


async def test_hostile_names_are_distinct_fit_for_providers_and_callable(gateway: Stage) -> None:
    gateway.probe.tools = [probe_tool(name) for name in HOSTILE]
    await gateway.connect("hostile")
    agent = await gateway.key(grants={"hostile": ["*"]})
    names = await names_of(gateway, "hostile")

    assert set(names) == set(HOSTILE)
    assert len(set(names.values())) == len(HOSTILE)
    assert all(EXPOSED.fullmatch(name) for name in names.values())
    assert names["get-user"] == "hostile-get-user"
    listed = await gateway.http.get("/v1/mcp/tools", headers=agent.headers)
    assert listed_names(listed) == set(names.values())
    for upstream, exposed in names.items():
        call = tool_call(exposed, {"nonce": exposed})
        answer = await gateway.http.post("/v1/mcp/tool/execute", headers=agent.headers, json=call)
        assert answer.status_code == 200, (upstream, answer.text)
        assert gateway.probe.count(exposed, upstream) == 1


async def test_names_do_not_depend_on_order_restart_or_other_tools(gateway: Stage) -> None:
    gateway.probe.tools = [probe_tool(name) for name in HOSTILE]
    await gateway.connect("stable")
    before = await names_of(gateway, "stable")

    gateway.probe.tools = [probe_tool(name) for name in reversed(HOSTILE[5:])]
    await gateway.operator("POST", "/api/v1/mcp/clients/stable/refresh")
    fewer = await names_of(gateway, "stable")
    gateway.probe.tools = [probe_tool(name) for name in reversed(HOSTILE)]
    await gateway.operator("POST", "/api/v1/mcp/clients/stable/refresh")

    assert fewer == {name: before[name] for name in HOSTILE[5:]}
    assert await names_of(gateway, "stable") == before
    async with api_bench(gateway.api.deps.settings, None, gateway.api.database) as restarted:
        shown: Any = (await restarted.operator("GET", "/api/v1/mcp/clients/stable/tools")).json()
        assert {tool["upstream_name"]: tool["name"] for tool in shown["tools"]} == before


async def test_a_server_cannot_take_another_tools_name(gateway: Stage) -> None:
    gateway.probe.tools = [probe_tool("a/b")]
    await gateway.connect("first")
    hashed = (await names_of(gateway, "first"))["a/b"]
    imitation = hashed.removeprefix("first-")

    gateway.probe.tools = [probe_tool(imitation), probe_tool("a/b")]
    await gateway.operator("POST", "/api/v1/mcp/clients/first/refresh")
    names = await names_of(gateway, "first")

    assert names["a/b"] == hashed
    assert names[imitation] != hashed


async def test_unusable_tools_are_dropped_with_a_reason_and_the_others_stay(gateway: Stage) -> None:
    gateway.probe.tools = [
        probe_tool(""),
        probe_tool("x" * 300),
        probe_tool("good"),
        {"description": "no name"},
        {**probe_tool("bad_schema"), "inputSchema": {"type": "object", "$ref": "https://example.org/s"}},
        {**probe_tool("twice"), "description": "one"},
        {**probe_tool("twice"), "description": "two"},
    ]
    made = await gateway.connect("mixed")
    names = await names_of(gateway, "mixed")

    assert "mixed-good" in names.values()
    dropped = {tool["name"]: tool["reason"] for tool in made["dropped_tools"]}
    assert len(dropped) >= 3, dropped
    assert not {"good", "read"} & set(dropped)
    assert all(dropped.values())


async def test_a_tool_whose_name_is_a_wildcard_widens_no_list(gateway: Stage) -> None:
    gateway.probe.tools = [probe_tool("*"), probe_tool("read"), probe_tool("delete")]
    await gateway.connect("wild", ["read"])
    agent = await gateway.key(grants={"wild": ["*"]})
    answer = await gateway.http.get("/v1/mcp/tools", headers=agent.headers)
    assert listed_names(answer) == {"wild-read"}


@pytest.mark.parametrize(
    "name", ["ca-b", "A", "1a", "none", "core_matrix_x", "subagent_list", "a" * 33, "a b", ""]
)
async def test_a_connection_whose_name_would_be_ambiguous_is_refused(gateway: Stage, name: str) -> None:
    body = {"name": name, "url": gateway.probe_url, "network": "loopback"}
    answer = await gateway.api.operator("POST", "/api/v1/mcp/clients", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("wanted", ["seps_my-tool", "seps_my_tool", "seps-my_tool", "mcp__seps__my-tool"])
async def test_an_older_form_of_a_name_is_not_found_and_told_the_right_one(
    gateway: Stage, wanted: str
) -> None:
    gateway.probe.tools = [probe_tool("my-tool")]
    clients = (await gateway.operator("GET", "/api/v1/mcp/clients")).json()["items"]
    if all(client["name"] != "seps" for client in clients):
        await gateway.connect("seps")
    agent = await gateway.key(grants={"seps": ["*"]})
    answer = await gateway.http.post("/v1/mcp/tool/execute", headers=agent.headers, json=tool_call(wanted))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "tool_not_found")
    assert error["details"]["nearest"] == "seps-my-tool"
