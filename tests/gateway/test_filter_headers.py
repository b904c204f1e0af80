"""Filter headers that mean nothing certain are refused on every route, and reach nobody."""

from typing import Any

import pytest

from tests.api.bench import Agent, tool_call
from tests.gateway.stage import Stage, listed_names

pytestmark = pytest.mark.anyio

CLIENTS, TOOLS = "x-mcp-include-clients", "x-mcp-include-tools"

INVALID = [
    (CLIENTS, "[]"),
    (CLIENTS, '""'),
    (CLIENTS, "fil*"),
    (CLIENTS, "Files"),
    (CLIENTS, "files-read"),
    (CLIENTS, "none,files"),
    (CLIENTS, "files;other"),
    (TOOLS, "files-re*"),
    (TOOLS, "files-*x"),
    (TOOLS, "files"),
    (TOOLS, "files_read"),
    (TOOLS, "*-read"),
    (TOOLS, "files-read files-write"),
    (TOOLS, "none,files-read"),
    (TOOLS, "[]"),
    (TOOLS, "files-r\u00e9ad"),
]

NOTHING = ["", ",", ",, ,\t,", "none", "none , none", "none,,"]


@pytest.fixture
async def agent(gateway: Stage) -> Agent:
    names = (await gateway.operator("GET", "/api/v1/mcp/clients")).json()["items"]
    if not names:
        await gateway.connect("files", ["read", "write"])
    return await gateway.key()


def raw(name: str, value: str) -> tuple[bytes, bytes]:
    return name.encode(), value.encode("latin-1")


def everything(agent: Agent, *headers: tuple[bytes, bytes]) -> Any:
    return [(name.encode(), value.encode()) for name, value in agent.headers.items()] + list(headers)


@pytest.mark.parametrize(("header", "value"), INVALID)
async def test_a_doubtful_header_is_refused_on_every_route(
    gateway: Stage, agent: Agent, header: str, value: str
) -> None:
    headers = everything(agent, raw(header, value))
    call = tool_call("files-read")
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    answers = [
        await gateway.http.get("/v1/mcp/tools", headers=headers),
        await gateway.http.post("/v1/mcp/tool/execute", headers=headers, json=call),
        await gateway.http.post("/v1/rounds", headers=headers, json={"tool_calls": [call]}),
    ]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_filter")
        assert error["details"]["where"] == header
        assert error["details"]["reason"]
    mcp = await gateway.http.post("/mcp", headers=headers, json=message)
    assert (mcp.status_code, mcp.json()["error"]["data"]["code"]) == (400, "invalid_filter")
    assert gateway.probe.calls == []


@pytest.mark.parametrize("header", [CLIENTS, TOOLS, "X-MCP-INCLUDE-TOOLS"])
@pytest.mark.parametrize("value", NOTHING)
async def test_a_header_that_names_nothing_means_no_tools(
    gateway: Stage, agent: Agent, header: str, value: str
) -> None:
    headers = everything(agent, raw(header, value))
    assert listed_names(await gateway.http.get("/v1/mcp/tools", headers=headers)) == set()
    call = tool_call("files-read")
    answer = await gateway.http.post("/v1/mcp/tool/execute", headers=headers, json=call)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tool_not_allowed")
    assert gateway.probe.calls == []


async def test_a_repeated_header_is_one_list(gateway: Stage, agent: Agent) -> None:
    headers = everything(agent, raw(TOOLS, "files-read"), raw(TOOLS, ""), raw(TOOLS, "files-write"))
    answer = await gateway.http.get("/v1/mcp/tools", headers=headers)
    assert listed_names(answer) == {"files-read", "files-write"}


async def test_names_that_a_caller_may_not_use_reveal_nothing(gateway: Stage, agent: Agent) -> None:
    answers = [
        await gateway.http.get("/v1/mcp/tools", headers=everything(agent, raw(TOOLS, f"files-read,{name}")))
        for name in ("files-delete", "files-nothing", "elsewhere-read")
    ]
    assert len({answer.content for answer in answers}) == 1
