"""Implementations that an operator adds over HTTP, and approvals that calls need: which server is reached."""

from typing import Any

import pytest

from activities.ledger import OpenCall
from governance.canonical import JSON
from tests.api.bench import APIBench, error_of, start_round, tool_call
from tests.api.places import agent_of, outcomes, servers, statuses
from tests.support.programs import definition, register_runtime, runtime_tool
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, text_result
from tests.support.world import ConnectionPlan

pytestmark = pytest.mark.anyio


async def definition_named(api: APIBench, name: str) -> dict[str, Any]:
    found = await api.operator("GET", "/api/v1/tools", params={"tool_name": name})
    [shown] = found.json()["items"]
    return dict(shown)


async def add(api: APIBench, definition_id: str, client: str, upstream_name: str) -> dict[str, Any]:
    body = {"client": client, "upstream_name": upstream_name}
    made = await api.operator("POST", f"/api/v1/tools/{definition_id}/implementations", json=body)
    assert made.status_code == 201, made.text
    [added] = [row for row in made.json()["implementations"] if row["is_added"] and not row["retired"]]
    return dict(added)


async def test_a_round_reaches_the_server_of_an_implementation_that_was_added(live_api: APIBench) -> None:
    async with servers(live_api) as world:
        agent = await live_api.agent()
        found = await definition_named(live_api, "files-read")
        added = await add(live_api, found["id"], "backup", "read")
        wanted = {"files-read": added["implementation_ref"]}

        assert await statuses(live_api, agent, [tool_call("files-read")]) == ["succeeded"]
        assert world.counts() == {"files": 1, "backup": 0}
        chosen = await statuses(live_api, agent, [tool_call("files-read")], implementations=wanted)
        assert (chosen, world.counts()) == (["succeeded"], {"files": 1, "backup": 1})

        # It survives syncs of both connections, and is gone once it is removed.
        for client in ("files", "backup"):
            synced = await live_api.operator("POST", f"/api/v1/mcp/clients/{client}/refresh")
            assert synced.is_success, synced.text
        again = await statuses(live_api, agent, [tool_call("files-read")], implementations=wanted)
        assert (again, world.counts()) == (["succeeded"], {"files": 1, "backup": 2})
        removed = await live_api.operator(
            "DELETE", f"/api/v1/tools/{found['id']}/implementations/{added['id']}"
        )
        assert removed.status_code == 200, removed.text
        after = await statuses(live_api, agent, [tool_call("files-read")], implementations=wanted)
        assert (after, world.counts()) == (["implementation_not_allowed"], {"files": 1, "backup": 2})
        # The tools of the other connection are what they were.
        assert await statuses(live_api, agent, [tool_call("backup-read")]) == ["succeeded"]


async def test_an_added_implementation_of_a_whitelisted_tool_is_reached_once_it_is_approved(
    live_api: APIBench,
) -> None:
    async with servers(live_api) as world:
        runtime = await register_runtime(live_api)
        await runtime.declare(runtime_tool("exec_command"))
        program = await world.program()
        patched = await live_api.operator(
            "PATCH", f"/api/v1/programs/{program.name}", json={"execution_runtime": runtime.name}
        )
        assert patched.status_code == 200, patched.text
        agent = await agent_of(program)
        found = await definition_named(live_api, "exec_command")
        added = await add(live_api, found["id"], "backup", "write")
        round_: dict[str, Any] = {
            "conversation_id": await program.conversation(),
            "implementations": {"exec_command": added["implementation_ref"]},
        }
        call = [tool_call("exec_command")]

        assert found["governance_mode"] == "whitelist_only"
        assert await statuses(live_api, agent, call, **round_) == ["implementation_not_allowed"]
        assert world.counts()["backup"] == 0
        path = f"/api/v1/tools/{found['id']}/approved"
        approved = {"implementations": [added["implementation_ref"]]}
        assert (await live_api.operator("PUT", path, json=approved)).status_code == 200
        assert await statuses(live_api, agent, call, **round_) == ["succeeded"]
        # A handshake projects the version again, and leaves what the operator added alone.
        assert (await program.handshake()).status_code == 200
        assert await statuses(live_api, agent, call, **round_) == ["succeeded"]
        assert world.counts() == {"files": 0, "backup": 2}


async def test_the_key_needs_the_connection_of_the_implementation_that_it_asks_for(
    live_api: APIBench,
) -> None:
    async with servers(live_api) as world:
        agent = await live_api.agent()
        configs = [{"client": "files", "tools_to_execute": ["*"]}]
        path = f"/api/v1/mcp/keys/{agent.key_id}/tools"
        assert (await live_api.operator("PUT", path, json={"mcp_configs": configs})).is_success
        found = await definition_named(live_api, "files-read")
        wanted = {"files-read": (await add(live_api, found["id"], "backup", "read"))["implementation_ref"]}

        refused = await statuses(live_api, agent, [tool_call("files-read")], implementations=wanted)

        assert refused == ["tool_not_allowed"]
        assert world.counts() == {"files": 0, "backup": 0}


@pytest.mark.parametrize(
    ("tool", "client", "upstream_name", "status", "code"),
    [
        ("files-read", "files", "nothing", 422, "invalid_request"),
        ("files-read", "files", "read", 422, "invalid_request"),
        ("files-read", "nowhere", "read", 404, "not_found"),
        ("subagent_list", "files", "read", 403, "implementation_not_allowed"),
    ],
)
async def test_what_cannot_stand_in_for_a_tool_is_refused(
    tool: str, client: str, upstream_name: str, status: int, code: str, api: APIBench
) -> None:
    await api.agent(ConnectionPlan())
    if tool == "subagent_list":
        made = await api.operator("POST", "/api/v1/programs", json={"name": "program"})
        assert made.status_code == 201
        version = await api.operator("POST", "/api/v1/programs/program/versions", json=definition())
        assert version.status_code == 201
    found = await definition_named(api, tool)

    response = await api.operator(
        "POST",
        f"/api/v1/tools/{found['id']}/implementations",
        json={"client": client, "upstream_name": upstream_name},
    )

    assert (response.status_code, error_of(response)["code"]) == (status, code)


async def test_only_what_an_operator_added_is_removed(api: APIBench) -> None:
    await api.agent(ConnectionPlan())
    found = await definition_named(api, "files-read")
    path = f"/api/v1/tools/{found['id']}/implementations"

    response = await api.operator("DELETE", f"{path}/{found['implementations'][0]['id']}")
    missing = await api.operator("DELETE", f"{path}/{found['id']}")

    assert (response.status_code, error_of(response)["code"]) == (409, "wrong_state")
    assert missing.status_code == 404


async def test_deleting_a_connection_takes_its_added_implementations_away(api: APIBench) -> None:
    await api.agent(ConnectionPlan())
    await api.agent(ConnectionPlan(name="backup"), name="other")
    found = await definition_named(api, "files-read")
    added = await add(api, found["id"], "backup", "read")

    deleted = await api.operator("DELETE", "/api/v1/mcp/clients/backup")

    assert deleted.is_success, deleted.text
    shown = await definition_named(api, "files-read")
    assert {row["id"]: (row["retired"], row["is_added"]) for row in shown["implementations"]} == {
        found["implementations"][0]["id"]: (False, False),
        added["id"]: (True, False),
    }
    assert shown["retired"] is False


async def test_a_call_that_needs_an_approval_is_refused_and_not_sent(live_api: APIBench) -> None:
    async with servers(live_api, ("files",)) as world:
        agent = await live_api.agent(may_explain=True)
        found = await definition_named(live_api, "files-read")
        path = f"/api/v1/tools/{found['id']}/approval"
        calls = [tool_call("files-read", {}, "a"), tool_call("files-write", {}, "b")]

        put = await live_api.operator("PUT", path, json={"required": True})
        refused = await statuses(live_api, agent, calls)
        explained = await live_api.operator("GET", "/api/v1/explain", params={"key": agent.key_id})
        listed = await live_api.http.get("/v1/mcp/tools", headers=agent.headers)
        counts = world.counts()
        freed = await live_api.operator("PUT", path, json={"required": False})
        allowed = await statuses(live_api, agent, calls)

    assert (put.json()["requires_approval"], freed.json()["requires_approval"]) == (True, False)
    assert (refused, counts) == (["approval_unavailable", "succeeded"], {"files": 1})
    assert (allowed, world.counts()) == (["succeeded", "succeeded"], {"files": 3})
    decisions = {row["tool"]: row["decision"] for row in explained.json()["tools"] if row["client"]}
    assert decisions == {"files-read": "needs_approval", "files-write": "allowed"}
    # A model may see it: a person can agree.
    assert "files-read" in listed.text


async def test_an_approval_that_is_required_while_a_round_runs_stops_its_next_call(
    engine_api: APIBench,
) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan())
    found = await definition_named(api, "files-write")

    async def require_approval(call: OpenCall) -> JSON:
        path = f"/api/v1/tools/{found['id']}/approval"
        assert (await api.operator("PUT", path, json={"required": True})).is_success
        return text_result("done")

    runner = ScriptedRunner(require_approval)
    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        calls = [tool_call("files-read", {}, "a"), tool_call("files-write", {}, "b")]
        response = await start_round(api, agent, calls)

    assert outcomes(response) == ["succeeded", "approval_unavailable"]
    assert response.json()["results"][1]["error"]["details"]["outcome"] == "not_sent"
    assert runner.sent == ["a"]
