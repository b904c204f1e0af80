"""Listing tools over HTTP: the three levels of the filter, the explanation, the format."""

from typing import Any

import pytest

from models.database import WriteSession
from models.key import ApiKey, replace_tool_grants
from tests.api.bench import Agent, APIBench, error_of
from tests.support.world import ConnectionPlan, add_connection

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
FILES = ConnectionPlan(
    name="files",
    tools={"read": SCHEMA, "write": SCHEMA, "delete": SCHEMA},
    tools_to_execute=["read", "write"],
)


async def listed(api: APIBench, agent: Agent, headers: dict[str, str] | None = None) -> list[str]:
    response = await api.http.get("/v1/mcp/tools", headers={**agent.headers, **(headers or {})})
    assert response.status_code == 200, response.text
    return [tool["function"]["name"] for tool in response.json()["tools"]]


async def grant(api: APIBench, agent: Agent, tools: list[str]) -> None:
    def change(session: WriteSession) -> None:
        docs = add_connection(session, ConnectionPlan(name="docs", tools_to_execute=["*"]))
        key = session.get_one(ApiKey, agent.key_id)
        replace_tool_grants(session, key, ((docs.id, tuple(tools)),))

    await api.database.write(change)


@pytest.mark.anyio
async def test_tools_are_listed_in_function_format_by_name(api: APIBench) -> None:
    agent = await api.agent(FILES)

    response = await api.http.get("/v1/mcp/tools", headers=agent.headers)

    assert response.json() == {
        "tools": [
            {
                "type": "function",
                "function": {"name": name, "description": f"Does {tool}.", "parameters": SCHEMA},
            }
            for name, tool in (("files-read", "read"), ("files-write", "write"))
        ]
    }
    again = await api.http.get("/v1/mcp/tools", headers=agent.headers)
    assert again.content == response.content


@pytest.mark.anyio
async def test_without_key_config_and_headers_the_connection_baseline_is_listed(api: APIBench) -> None:
    assert await listed(api, await api.agent(FILES)) == ["files-read", "files-write"]


@pytest.mark.anyio
async def test_without_key_config_the_request_narrows(api: APIBench) -> None:
    agent = await api.agent(FILES)

    assert await listed(api, agent, {"x-mcp-include-tools": "files-write, files-delete"}) == ["files-write"]


@pytest.mark.anyio
async def test_a_key_config_overrides_the_request(api: APIBench) -> None:
    agent = await api.agent(FILES)
    await grant(api, agent, ["read"])

    assert await listed(api, agent, {"x-mcp-include-tools": "docs-write"}) == ["docs-read"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "names"),
    [
        ({"x-mcp-include-clients": "files"}, ["files-read", "files-write"]),
        ({"x-mcp-include-clients": "other"}, []),
        ({"x-mcp-include-clients": ""}, []),
        ({"x-mcp-include-clients": " , ,"}, []),
        ({"x-mcp-include-tools": "none"}, []),
        ({"X-MCP-Include-Tools": "files-*"}, ["files-read", "files-write"]),
        ({"x-mcp-include-tools": "*"}, ["files-read", "files-write"]),
        ({"x-mcp-include-tools": "files-read", "x-mcp-include-clients": "none"}, []),
    ],
)
async def test_headers_narrow(api: APIBench, headers: dict[str, str], names: list[str]) -> None:
    assert await listed(api, await api.agent(FILES), headers) == names


@pytest.mark.anyio
async def test_repeated_headers_are_one_list(api: APIBench) -> None:
    agent = await api.agent(FILES)
    repeated = [("x-mcp-include-tools", "files-read"), ("x-mcp-include-tools", "files-write")]

    response = await api.http.get("/v1/mcp/tools", headers=[*agent.headers.items(), *repeated])

    assert len(response.json()["tools"]) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("entry", ["files-re*", "files_read", "files-*,none"])
async def test_a_header_that_means_nothing_certain_is_refused(api: APIBench, entry: str) -> None:
    agent = await api.agent(FILES)

    response = await api.http.get("/v1/mcp/tools", headers={**agent.headers, "x-mcp-include-tools": entry})

    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "invalid_filter"
    assert set(error["details"]) == {"where", "entry", "reason"}


@pytest.mark.anyio
async def test_an_explanation_names_the_level_that_removed_each_tool(api: APIBench) -> None:
    agent = await api.agent(FILES, may_explain=True)
    headers = {**agent.headers, "x-mcp-include-tools": "files-read"}

    response = await api.http.get("/v1/mcp/tools?explain=1", headers=headers)

    body: dict[str, Any] = response.json()
    assert [tool["function"]["name"] for tool in body["tools"]] == ["files-read"]
    assert body["hidden"] == [
        {"name": "files-delete", "level": "connection", "reason": "not_on_connection_list"},
        {"name": "files-write", "level": "request", "reason": "not_in_request"},
    ]


@pytest.mark.anyio
async def test_a_key_that_may_not_explain_is_refused_an_explanation(api: APIBench) -> None:
    agent = await api.agent(FILES)

    response = await api.http.get("/v1/mcp/tools?explain=1", headers=agent.headers)

    assert (response.status_code, error_of(response)["code"]) == (403, "forbidden")


@pytest.mark.anyio
async def test_listing_takes_one_transaction(api: APIBench) -> None:
    agent = await api.agent(FILES)
    before = (api.database.counts.reads, api.database.counts.writes)

    await api.http.get("/v1/mcp/tools", headers=agent.headers)

    assert (api.database.counts.reads - before[0], api.database.counts.writes - before[1]) == (1, 0)
