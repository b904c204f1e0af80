"""The filters through HTTP: what is listed is what is explained and what can be executed, and nothing else.

Every kind of connection stands in one world, every kind of key asks it, and pairs of keys and headers are
covered. The server behind the gateway says what was executed; `tests.governance.rule_model` says what should
have been, without any of the code under test. `tests/governance` goes through every combination exhaustively.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.mcp_server.probe import probe_tool
from tests.api.bench import Agent, tool_call
from tests.gateway.covering import pairwise_rows
from tests.gateway.stage import Stage, listed_names
from tests.governance.rule_model import World, usable

# The whole table is some hundred requests on a machine whose cores are shared.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

OFFERED = ("read", "write")
BASELINES: Mapping[str, tuple[str, ...] | None] = {
    "absent": None,
    "empty": (),
    "all": ("*",),
    "list": ("read",),
    "unknown": ("nothing",),
    "mixed": ("write", "nothing"),
}
OPEN: Mapping[str, bool] = {"open": True, "closed": False}
CONNECTIONS = tuple(f"{kind}_{flag}" for kind, flag in product(BASELINES, OPEN))
DISABLED = ("off_open", "off_closed")
EVERY = (*CONNECTIONS, *DISABLED)

Grants = dict[str, tuple[str, ...]] | None
GRANTS: Mapping[str, Grants] = {
    "absent": None,
    "empty": {},
    "none of each": dict.fromkeys(EVERY, ()),
    "all of each": dict.fromkeys(EVERY, ("*",)),
    "a list of each": dict.fromkeys(EVERY, ("read",)),
    "unknown of each": dict.fromkeys(EVERY, ("nothing",)),
    "all of one": {"all_closed": ("*",)},
    "lists of some": {"all_open": ("write",), "list_closed": ("read", "nothing"), "off_open": ("*",)},
}
MODES = ("override", "narrow")
CLIENTS: Mapping[str, tuple[str, ...] | None] = {
    "absent": None,
    "empty": ("",),
    "none": ("none",),
    "commas": (", ,,",),
    "all": ("*",),
    "one": ("all_closed",),
    "list": ("all_open, list_closed", "off_open"),
    "unknown": ("zz",),
}
TOOLS: Mapping[str, tuple[str, ...] | None] = {
    "absent": None,
    "empty": ("",),
    "none": ("none",),
    "commas": (",",),
    "all": ("*",),
    "whole connection": ("all_open-*",),
    "list": ("all_closed-read,all_open-write", "list_open-read"),
    "off every list": ("empty_open-read,list_open-write",),
    "unknown": ("zz-read",),
}
COLUMNS = (tuple(GRANTS), MODES, tuple(CLIENTS), tuple(TOOLS))


@dataclass(frozen=True, repr=False)
class Table:
    """The world with its connections, and a key of each kind."""

    stage: Stage
    keys: dict[tuple[str, str], Agent] = field(default_factory=dict[tuple[str, str], Agent])

    async def key_of(self, grants: str, mode: str) -> Agent:
        if (grants, mode) not in self.keys:
            given = GRANTS[grants]
            lists = None if given is None else {name: list(tools) for name, tools in given.items()}
            self.keys[grants, mode] = await self.stage.key(
                f"{grants} {mode}", lists, request_filter=mode, may_explain=True
            )
        return self.keys[grants, mode]


@pytest.fixture(scope="module")
async def table(shared_stage: Stage) -> Table:
    shared_stage.probe.tools = [probe_tool(name) for name in OFFERED]
    for name in EVERY:
        kind, _, flag = name.rpartition("_")
        tools = ("*",) if name in DISABLED else BASELINES[kind]
        await shared_stage.connect(name, tools, open_to_all_keys=OPEN[flag])
    for name in DISABLED:
        await shared_stage.operator("POST", f"/api/v1/mcp/clients/{name}/disable")
    side_by_side = [{"match": {"tool_source": "mcp"}, "execution_policy": {"parallel_safe": True}}]
    path = "/api/v1/policies/tool-overlays"
    await shared_stage.operator("PUT", path, json={"overlays": side_by_side})
    return Table(shared_stage)


def expected_names(grants: str, mode: str, clients: str, tools: str) -> set[str]:
    """Return what the document says that a request may use, by exposed name."""
    baselines = {name: BASELINES[name.rpartition("_")[0]] for name in CONNECTIONS}
    world = World(
        offered=dict.fromkeys(EVERY, OFFERED),
        baselines={**baselines, **dict.fromkeys(DISABLED, ("*",))},
        grants=GRANTS[grants],
        open_to_all=frozenset(name for name in EVERY if name.endswith("_open")),
        disabled=frozenset(DISABLED),
        clients_header=CLIENTS[clients],
        tools_header=TOOLS[tools],
        narrow=mode == "narrow",
    )
    return {f"{connection}-{tool}" for connection, tool in usable(world)}


def headers_of(agent: Agent, clients: str, tools: str) -> list[tuple[str, str]]:
    """Return the headers as sent: a repeated header is repeated."""
    given = [("x-mcp-include-clients", value) for value in CLIENTS[clients] or ()]
    given += [("X-MCP-Include-Tools", value) for value in TOOLS[tools] or ()]
    return [*agent.headers.items(), *given]


async def explained_names(stage: Stage, agent: Agent, clients: str, tools: str) -> set[str]:
    params = {"key": agent.key_id, "include_clients": CLIENTS[clients], "include_tools": TOOLS[tools]}
    sent: Any = {name: value for name, value in params.items() if value is not None}
    rows = (await stage.operator("GET", "/api/v1/explain", params=sent)).json()["tools"]
    assert all(row["level"] and row["reason"] for row in rows if row["decision"] == "denied")
    return {row["tool"] for row in rows if row["decision"] == "allowed"}


async def executed_names(stage: Stage, headers: Sequence[tuple[str, str]], nonce: str) -> set[str]:
    """Ask for every tool of the world in one round, and let the server say which it was asked for."""
    names = [f"{connection}-{tool}" for connection, tool in product(EVERY, OFFERED)]
    calls = [tool_call(name, json.dumps({"nonce": f"{nonce} {name}"}), name) for name in names]
    answer = await stage.http.post("/v1/rounds", headers=list(headers), json={"tool_calls": calls})
    assert answer.status_code == 200, answer.text
    rows = {row["tool"]: row for row in answer.json()["results"]}
    for name, row in rows.items():
        called = stage.probe.count(f"{nonce} {name}")
        assert called == (1 if row["status"] == "succeeded" else 0), row
        assert row["status"] in {"succeeded", "refused"}, row
    return {name for name in names if stage.probe.count(f"{nonce} {name}") == 1}


async def mcp_names(stage: Stage, headers: Sequence[tuple[str, str]]) -> set[str]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    own = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")]
    answer = await stage.http.post("/mcp", headers=[*headers, *own], json=body)
    return {tool["name"] for tool in answer.json()["result"]["tools"]}


async def check_cell(table: Table, grants: str, mode: str, clients: str, tools: str) -> set[str]:
    """Compare the five ways of saying what a request may use; return it."""
    stage, agent = table.stage, await table.key_of(grants, mode)
    headers, nonce = headers_of(agent, clients, tools), uuid4().hex
    expected = expected_names(grants, mode, clients, tools)

    listed = await stage.http.get("/v1/mcp/tools", params={"explain": "1"}, headers=headers)

    assert listed_names(listed) == expected
    every = {f"{connection}-{tool}" for connection, tool in product(EVERY, OFFERED)}
    hidden = {tool["name"] for tool in listed.json()["hidden"]}
    assert {name for name in hidden if "-" in name} == every - expected
    assert await explained_names(stage, agent, clients, tools) == expected
    assert await mcp_names(stage, headers) == expected
    assert await executed_names(stage, headers, nonce) == expected
    return expected


async def test_every_pair_of_keys_and_headers_lists_what_it_can_execute(table: Table) -> None:
    rows = pairwise_rows(COLUMNS)
    sizes = [len(await check_cell(table, *row)) for row in rows]
    # A table in which everything is denied would prove nothing.
    assert len(rows) >= 72
    assert min(sizes) == 0
    assert len(set(sizes)) > 5


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(cell=st.tuples(*map(st.sampled_from, COLUMNS)))
async def test_any_cell_lists_what_it_can_execute(table: Table, cell: tuple[str, str, str, str]) -> None:
    await check_cell(table, *cell)


@pytest.mark.parametrize(("clients", "tools"), [("absent", "list"), ("one", "all"), ("none", "absent")])
async def test_executing_one_call_agrees_with_the_list(table: Table, clients: str, tools: str) -> None:
    stage, agent = table.stage, await table.key_of("absent", "override")
    headers = headers_of(agent, clients, tools)
    expected = expected_names("absent", "override", clients, tools)
    for name in ("all_closed-read", "list_open-write", "off_open-read", "empty_open-read"):
        nonce = uuid4().hex
        call = tool_call(name, {"nonce": nonce})
        answer = await stage.http.post("/v1/mcp/tool/execute", headers=headers, json=call)
        assert (answer.status_code == 200) == (name in expected), answer.text
        assert stage.probe.count(nonce) == (1 if name in expected else 0)


async def test_the_three_rows_of_the_document(gateway: Stage) -> None:
    await gateway.connect("doc", ["read", "write", "delete"])
    write = {"x-mcp-include-tools": "doc-write"}
    rows: list[tuple[dict[str, list[str]] | None, dict[str, str], set[str]]] = [
        ({"doc": ["read"]}, write, {"doc-read"}),
        (None, {"x-mcp-include-clients": "doc", **write}, {"doc-write"}),
        (None, {"x-mcp-include-clients": "doc"}, {"doc-read", "doc-write", "doc-delete"}),
    ]
    for grants, headers, expected in rows:
        agent = await gateway.key(grants=grants)
        answer = await gateway.http.get("/v1/mcp/tools", headers={**agent.headers, **headers})
        names = listed_names(answer)
        assert {name for name in names if name.startswith("doc-")} == expected
