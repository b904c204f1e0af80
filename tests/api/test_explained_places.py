"""What a program sees in a conversation, and why not more: listed for itself and explained to operators."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.api.bench import APIBench, error_of, start_round, tool_call
from tests.api.places import agent_of
from tests.support.programs import Program, definition, mcp_tool, register
from tests.support.world import ConnectionPlan, add_connection

pytestmark = pytest.mark.anyio

PROFILES = {
    "main": {"allowed_tool_names": ["search", "save", "subagent_spawn"]},
    "lister": {"allowed_tool_names": ["subagent_list"]},
}
TOOLS = [mcp_tool("search", "files", "read"), mcp_tool("save", "files", "write")]


async def program_on_files(api: APIBench, **parts: Any) -> Program:
    await api.database.write(add_connection, ConnectionPlan())
    declared = definition(tool_catalog=TOOLS, profile_catalog=PROFILES, **parts)
    return await register(api, declared, grants=["files"])


async def explained(api: APIBench, program: Program, conversation_id: str, **asked: str) -> dict[str, Any]:
    response = await api.operator(
        "GET",
        "/api/v1/explain",
        params={"key": program.key_id, "conversation": conversation_id, **asked},
    )
    assert response.status_code == 200, response.text
    return {row["tool"]: row["reason"] or row["decision"] for row in response.json()["tools"]}


async def listed(
    program: Program, conversation_id: str, headers: Mapping[str, str] | None = None, **asked: str
) -> set[str]:
    response = await program.api.http.get(
        f"/program_api/conversations/{conversation_id}/tools",
        params=asked,
        headers={"authorization": f"Bearer {program.secret}", **(headers or {})},
    )
    assert response.status_code == 200, response.text
    return {tool["function"]["name"] for tool in response.json()["tools"]}


async def test_each_level_of_a_conversation_is_explained_and_the_list_agrees(api: APIBench) -> None:
    program = await program_on_files(api)
    plain = await program.conversation()
    without = await program.conversation(subagents={"enabled": False})

    assert await explained(api, program, plain) == {
        "files-read": "not_in_profile",
        "files-write": "not_in_profile",
        "save": "allowed",
        "search": "allowed",
        "subagent_list": "not_in_profile",
        "subagent_spawn": "allowed",
    }
    assert await listed(program, plain) == {"save", "search", "subagent_spawn"}
    lister = await explained(api, program, plain, profile="lister")
    assert {name for name, reason in lister.items() if reason == "allowed"} == {"subagent_list"}
    assert await listed(program, plain, profile="lister") == {"subagent_list"}
    assert (await explained(api, program, without))["subagent_spawn"] == "withheld_by_subagent_policy"
    assert await listed(program, without) == {"save", "search"}

    await api.operator(
        "PUT",
        f"/api/v1/mcp/keys/{program.key_id}/tools",
        json={"mcp_configs": [{"client": "files", "tools_to_execute": ["read"]}]},
    )
    assert (await explained(api, program, plain))["save"] == "not_on_key_list"
    assert await listed(program, plain) == {"search", "subagent_spawn"}
    nothing = await explained(api, program, plain, include_tools="none")
    assert (nothing["search"], nothing["subagent_spawn"]) == ("request_asks_for_no_tools",) * 2
    assert await listed(program, plain, {"x-mcp-include-tools": "none"}) == set()
    await api.operator("PATCH", "/api/v1/mcp/clients/files", json={"tools_to_execute": []})
    assert (await explained(api, program, plain))["search"] == "not_on_connection_list"
    assert await listed(program, plain) == {"subagent_spawn"}


async def test_without_a_conversation_a_key_is_explained_at_the_gateway(api: APIBench) -> None:
    program = await program_on_files(api)

    response = await api.operator("GET", "/api/v1/explain", params={"key": program.key_id})

    assert {row["tool"]: row["decision"] for row in response.json()["tools"]} == {
        "files-read": "allowed",
        "files-write": "allowed",
    }


async def test_a_spawned_conversation_has_the_profile_and_policy_of_its_subagent(live_api: APIBench) -> None:
    parts: dict[str, Any] = {"default_config_snapshot": {"subagents": {"allow_nested": False}}}
    program = await program_on_files(live_api, **parts)
    agent, conversation_id = await agent_of(program), await program.conversation()
    spawn = tool_call("subagent_spawn", {"content": "Look it up.", "profile_key": "main"})
    response = await start_round(live_api, agent, [spawn], conversation_id=conversation_id)
    assert [row["status"] for row in response.json()["results"]] == ["succeeded"], response.text
    made = await live_api.http.get(
        f"/v1/invocations/{response.json()['results'][0]['invocation_id']}/result", headers=agent.headers
    )
    child = made.json()["conversation_id"]

    reasons = await explained(live_api, program, child)

    assert reasons["subagent_spawn"] == "withheld_by_subagent_policy"
    assert await listed(program, child) == {"save", "search"}


async def test_the_spawn_tool_is_listed_with_the_profiles_that_may_be_named(api: APIBench) -> None:
    program = await program_on_files(api)
    conversation_id = await program.conversation()

    response = await program.get(f"conversations/{conversation_id}/tools")

    functions = {tool["function"]["name"]: tool["function"] for tool in response.json()["tools"]}
    profile = functions["subagent_spawn"]["parameters"]["properties"]["profile_key"]
    assert profile["enum"] == ["default", "main", "lister"]


async def test_a_program_is_told_what_is_hidden_only_where_its_key_may_explain(api: APIBench) -> None:
    program = await program_on_files(api)
    path = f"conversations/{await program.conversation()}/tools?explain=1&profile=lister"

    refused = await program.get(path)
    patched = await api.operator("PATCH", f"/api/v1/keys/{program.key_id}", json={"may_explain": True})
    told = await program.get(path)

    assert (refused.status_code, error_of(refused)["details"]["reason"]) == (403, "key_may_not_explain")
    assert patched.status_code == 200
    hidden = {tool["name"]: (tool["level"], tool["reason"]) for tool in told.json()["hidden"]}
    assert hidden["search"] == ("profile", "not_in_profile")
    assert "subagent_list" not in hidden


@pytest.mark.parametrize("who", ["operator", "program"])
async def test_a_foreign_conversation_or_unknown_profile_is_refused(who: str, api: APIBench) -> None:
    program = await program_on_files(api)
    other = await register(api)
    own, foreign = await program.conversation(), await other.conversation()

    async def ask(conversation_id: str, **asked: str) -> Any:
        if who == "operator":
            params = {"key": program.key_id, "conversation": conversation_id, **asked}
            return await api.operator("GET", "/api/v1/explain", params=params)
        query = "".join(f"?{name}={value}" for name, value in asked.items())
        return await program.get(f"conversations/{conversation_id}/tools{query}")

    missing, unknown = await ask(foreign), await ask(own, profile="nobody")

    assert (missing.status_code, error_of(missing)["details"]["what"]) == (404, "conversation")
    assert (unknown.status_code, error_of(unknown)["details"]["profile"]) == (400, "nobody")
