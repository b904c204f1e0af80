"""Tasks end over HTTP: once, for good, with the rounds that still run."""

import asyncio
from dataclasses import replace

import pytest

from activities.ledger import OpenCall
from governance.canonical import JSON
from models.conversation import Conversation, ConversationState
from models.database import WriteSession
from tests.api.bench import APIBench, api_bench, error_of, start_round, tool_call
from tests.api.places import agent_of, statuses
from tests.support.programs import Program, definition, mcp_tool, register
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.world import ConnectionPlan, add_connection

pytestmark = pytest.mark.anyio


async def searching(api: APIBench) -> Program:
    await api.database.write(add_connection, ConnectionPlan())
    declared = definition(tool_catalog=[mcp_tool("search", "files", "read")])
    return await register(api, declared, grants=["files"])


@pytest.mark.parametrize(
    ("ending", "state"), [("complete", "completed"), ("fail", "failed"), ("cancel", "canceled")]
)
async def test_a_task_ends_once_and_takes_no_more_rounds(ending: str, state: str, api: APIBench) -> None:
    program = await register(api)
    agent, conversation_id = await agent_of(program), await program.conversation()
    task_id = (await program.new_task(conversation_id))["agent_task_run_id"]
    others = {"complete", "fail", "cancel"} - {ending}

    ended = await program.post(f"tasks/{task_id}/{ending}", {})
    again = await program.post(f"tasks/{task_id}/{ending}", {})
    otherwise = [await program.post(f"tasks/{task_id}/{other}", {}) for other in sorted(others)]
    round_ = await start_round(api, agent, [tool_call("subagent_list")], task_id=task_id)
    second = await program.new_task(conversation_id)

    assert (ended.status_code, ended.json()["state"]) == (200, state)
    assert ended.json()["finished_at"] is not None
    assert again.json() == ended.json()
    assert {(answer.status_code, error_of(answer)["details"]["state"]) for answer in otherwise} == {
        (409, state)
    }
    assert (round_.status_code, error_of(round_)["code"]) == (409, "wrong_state")
    # The work may be tried again.
    assert (second["attempt_no"], second["state"]) == (2, "queued")


async def test_only_its_own_version_ends_a_task(api: APIBench) -> None:
    program, other = await register(api), await register(api)
    task_id = (await program.new_task(await program.conversation()))["agent_task_run_id"]

    assert (await other.post(f"tasks/{task_id}/complete", {})).status_code == 404
    assert (await program.get(f"tasks/{task_id}")).json()["state"] == "queued"


async def test_a_task_runs_from_its_first_round_and_is_canceled_with_those_that_run(
    engine_api: APIBench,
) -> None:
    api, started = engine_api, asyncio.Event()

    async def endless(_call: OpenCall) -> JSON:
        started.set()
        await asyncio.Event().wait()

    program = await searching(api)
    agent = await agent_of(program)
    task_id = (await program.new_task(await program.conversation()))["agent_task_run_id"]
    async with round_worker(api.temporal, api.database, ScriptedRunner(endless), task_queue=api.task_queue):
        calls = [tool_call("search", {}, "a"), tool_call("search", {}, "b")]
        accepted = await start_round(api, agent, calls, task_id=task_id, wait=0)
        async with asyncio.timeout(10):
            await started.wait()
        running = (await program.get(f"tasks/{task_id}")).json()["state"]
        early = await program.post(f"tasks/{task_id}/complete", {})
        canceled = await program.post(f"tasks/{task_id}/cancel", {})
        path = f"/v1/rounds/{accepted.json()['round_id']}"
        async with asyncio.timeout(10):
            while (shown := await api.http.get(path, headers=agent.headers)).json()["finished_at"] is None:
                await api.deps.engine.wait_for_round(f"round:{accepted.json()['round_id']}", 0.2)

    assert running == "running"
    assert (early.status_code, error_of(early)["details"]["state"]) == (409, "running")
    assert (canceled.status_code, canceled.json()["state"]) == (200, "canceled")
    assert shown.json()["state"] == "canceled"
    assert [row["status"] for row in shown.json()["results"]] == ["canceled", "canceled"]


async def test_a_cancel_that_cannot_reach_a_running_round_ends_the_task_and_is_told_when_asked_again(
    engine_api: APIBench,
) -> None:
    api, started = engine_api, asyncio.Event()

    async def endless(_call: OpenCall) -> JSON:
        started.set()
        await asyncio.Event().wait()

    program = await searching(api)
    agent = await agent_of(program)
    task_id = (await program.new_task(await program.conversation()))["agent_task_run_id"]
    async with round_worker(api.temporal, api.database, ScriptedRunner(endless), task_queue=api.task_queue):
        accepted = await start_round(api, agent, [tool_call("search")], task_id=task_id, wait=0)
        path = f"/v1/rounds/{accepted.json()['round_id']}"
        async with asyncio.timeout(10):
            await started.wait()
        async with api_bench(api.deps.settings, None, api.database) as cut_off:
            unheard = await replace(program, api=cut_off).post(f"tasks/{task_id}/cancel", {})
        between = await api.http.get(path, headers=agent.headers)
        after = (await program.get(f"tasks/{task_id}")).json()["state"]
        more = await start_round(api, agent, [tool_call("search")], task_id=task_id)
        heard = await program.post(f"tasks/{task_id}/cancel", {})
        async with asyncio.timeout(10):
            while (shown := await api.http.get(path, headers=agent.headers)).json()["finished_at"] is None:
                await api.deps.engine.wait_for_round(f"round:{accepted.json()['round_id']}", 0.2)

    assert (unheard.status_code, error_of(unheard)["code"]) == (503, "cancel_unavailable")
    assert (after, between.json()["state"]) == ("canceled", "running")
    assert (more.status_code, error_of(more)["code"]) == (409, "wrong_state")
    assert (heard.status_code, shown.json()["state"]) == (200, "canceled")
    assert [row["status"] for row in shown.json()["results"]] == ["canceled"]


async def test_a_round_that_has_ended_does_not_keep_a_task_from_ending(engine_api: APIBench) -> None:
    api = engine_api
    program = await searching(api)
    agent = await agent_of(program)
    task_id = (await program.new_task(await program.conversation()))["agent_task_run_id"]
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        assert await statuses(api, agent, [tool_call("search")], task_id=task_id) == ["succeeded"]

    ended = await program.post(f"tasks/{task_id}/complete", {})

    assert (ended.status_code, ended.json()["state"]) == (200, "completed")


async def test_a_task_whose_round_never_started_is_canceled_at_once(api: APIBench) -> None:
    program = await searching(api)
    agent = await agent_of(program)
    task_id = (await program.new_task(await program.conversation()))["agent_task_run_id"]
    refused = await start_round(api, agent, [tool_call("search")], task_id=task_id)

    # Without an engine the round was abandoned at once, so nothing is left to tell.
    canceled = await program.post(f"tasks/{task_id}/cancel", {})

    assert (refused.status_code, canceled.status_code) == (503, 200)


@pytest.mark.parametrize("state", [ConversationState.CLOSING, ConversationState.CLOSED])
async def test_a_conversation_that_is_not_active_takes_no_task(
    state: ConversationState, api: APIBench
) -> None:
    program = await register(api)
    conversation_id = await program.conversation()

    def close(session: WriteSession) -> None:
        session.get_one(Conversation, conversation_id).state = state

    await api.database.write(close)
    response = await program.task(conversation_id)

    assert response.status_code == 409, response.text
    assert error_of(response)["details"] == {
        "what": "conversation",
        "name": conversation_id,
        "state": state.value,
    }


async def test_a_task_with_an_unknown_profile_is_refused(api: APIBench) -> None:
    program = await register(api, definition(profile_catalog={"main": {}}))

    response = await program.task(await program.conversation(), profile_key="nobody")

    assert response.status_code == 422
    assert error_of(response)["details"]["profile"] == "nobody"
