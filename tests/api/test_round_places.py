"""Rounds of tasks and conversations over HTTP: whose they are, what they see, which server is reached."""

from typing import Any

import pytest

from tests.api.bench import APIBench, error_of, start_round, tool_call
from tests.api.places import SEARCH, agent_of, servers, statuses
from tests.support.programs import definition, register

pytestmark = pytest.mark.anyio

NOBODYS = "0190a0a0-0000-7000-8000-000000000000"
PROFILES = {"main": {"allowed_tool_names": ["search"]}, "lister": {"allowed_tool_names": ["subagent_list"]}}


async def test_a_tasks_round_runs_on_what_was_frozen_with_the_task(live_api: APIBench) -> None:
    async with servers(live_api) as world:
        program = await world.program(tool_catalog=SEARCH)
        agent = await agent_of(program)
        task = await program.new_task(
            await program.conversation(), implementations={"search": "mcp/backup/read"}
        )

        response = await start_round(
            live_api,
            agent,
            [tool_call("search", {}, "a"), tool_call("subagent_list", {}, "b")],
            task_id=task["agent_task_run_id"],
        )

        assert response.status_code == 200, response.text
        assert [row["status"] for row in response.json()["results"]] == ["succeeded", "succeeded"]
        assert world.counts() == {"files": 0, "backup": 1}


async def test_a_conversations_round_reaches_the_server_that_it_asks_for(live_api: APIBench) -> None:
    async with servers(live_api) as world:
        program = await world.program(tool_catalog=SEARCH)
        agent = await agent_of(program)
        place: dict[str, Any] = {"conversation_id": await program.conversation()}
        wanted = {"implementations": {"search": "mcp/backup/read"}}

        assert await statuses(live_api, agent, [tool_call("search")], **place) == ["succeeded"]
        assert world.counts() == {"files": 1, "backup": 0}
        assert await statuses(live_api, agent, [tool_call("search")], **place, **wanted) == ["succeeded"]
        assert world.counts() == {"files": 1, "backup": 1}
        # Without the conversation there is no such tool.
        assert await statuses(live_api, agent, [tool_call("search")]) == ["tool_not_found"]


async def test_a_round_sees_the_tools_of_the_profile_that_it_asks_for(live_api: APIBench) -> None:
    async with servers(live_api) as world:
        program = await world.program(tool_catalog=SEARCH, profile_catalog=PROFILES)
        agent = await agent_of(program)
        place: dict[str, Any] = {"conversation_id": await program.conversation()}
        calls = [tool_call("search", {}, "a"), tool_call("subagent_list", {}, "b")]

        assert await statuses(live_api, agent, calls, **place) == ["succeeded", "tool_not_allowed"]
        assert await statuses(live_api, agent, calls, **place, profile_key="lister") == [
            "tool_not_allowed",
            "succeeded",
        ]
        assert world.counts()["files"] == 1


async def test_a_round_is_at_home_only_with_tasks_and_conversations_of_its_key(api: APIBench) -> None:
    program, stranger = await register(api), await api.agent(name="stranger")
    conversation_id = await program.conversation()
    task_id = (await program.new_task(conversation_id))["agent_task_run_id"]
    call = [tool_call("subagent_list")]

    answers = {
        what: await start_round(api, stranger, call, **{what: name})
        for what, name in (("task_id", task_id), ("conversation_id", conversation_id))
    }
    missing = await start_round(api, stranger, call, task_id=NOBODYS)

    assert {what: answer.status_code for what, answer in answers.items()} == {
        "task_id": 404,
        "conversation_id": 404,
    }
    assert error_of(answers["task_id"])["details"] == {"what": "task", "name": task_id}
    assert error_of(missing)["details"] == {"what": "task", "name": NOBODYS}


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ({"profile_key": "nobody"}, "profile_key"),
        ({"profile_key": "lister", "conversation_id": None}, "profile_key"),
        ({"task_id": "the task", "profile_key": "lister"}, "profile_key"),
        ({"task_id": "the task", "conversation_id": "another"}, "conversation_id"),
        ({"task_id": "the task", "implementations": {"search": "mcp/backup/read"}}, "implementations"),
        ({"task_id": "17"}, "task_id"),
    ],
)
async def test_a_place_that_means_nothing_is_refused_and_never_ignored(
    place: dict[str, Any], path: str, api: APIBench
) -> None:
    program = await register(api, definition(profile_catalog=PROFILES))
    agent = await agent_of(program)
    first, second = await program.conversation(), await program.conversation()
    task_id = (await program.new_task(first))["agent_task_run_id"]
    names = {"the task": task_id, "another": second}
    asked: dict[str, Any] = {"conversation_id": first} if "task_id" not in place else {}
    asked |= {
        name: names.get(value, value) if isinstance(value, str) else value for name, value in place.items()
    }

    response = await start_round(api, agent, [tool_call("subagent_list")], **asked)

    assert response.status_code == 400, response.text
    assert [problem["path"] for problem in error_of(response)["details"]["problems"]] == [path]


async def test_an_unknown_member_of_a_round_is_refused_and_a_message_of_a_model_is_taken(
    api: APIBench,
) -> None:
    agent = await api.agent()
    message = {"role": "assistant", "content": None, "refusal": None}

    typo = await start_round(api, agent, [tool_call("x")], taskid=NOBODYS)
    taken = await start_round(api, agent, [tool_call("x")], **message)

    assert typo.status_code == 400
    assert "taskid" in error_of(typo)["message"]
    # It was read; there is no engine here that could run it.
    assert (taken.status_code, error_of(taken)["code"]) == (503, "engine_unavailable")


async def test_a_repeat_in_another_place_is_another_request(live_api: APIBench) -> None:
    program = await register(live_api, definition(profile_catalog=PROFILES))
    agent, headers = await agent_of(program), {"idempotency-key": "order 17"}
    first, second = await program.conversation(), await program.conversation()
    call = [tool_call("subagent_list")]

    made = await start_round(live_api, agent, call, headers=headers, conversation_id=first)
    again = await start_round(live_api, agent, call, headers=headers, conversation_id=first)
    others = [
        await start_round(live_api, agent, call, headers=headers, **place)
        for place in (
            {},
            {"conversation_id": second},
            {"conversation_id": first, "profile_key": "lister"},
        )
    ]

    assert (again.status_code, again.json()) == (200, made.json())
    assert [error_of(other)["code"] for other in others] == ["idempotency_conflict"] * 3


async def test_a_program_that_acts_as_an_operators_key_has_the_built_in_tools(live_api: APIBench) -> None:
    owner = await live_api.agent(name="owner")
    program = await register(live_api, key_id=owner.key_id)
    place: dict[str, Any] = {"conversation_id": await program.conversation()}

    task = await program.new_task(place["conversation_id"])
    calls = [
        tool_call("subagent_spawn", {"content": "Look it up."}, "a"),
        tool_call("subagent_list", {}, "b"),
    ]

    assert [row["tool_name"] for row in task["bindings"]] == ["subagent_list", "subagent_spawn"]
    assert await statuses(live_api, owner, calls, **place) == ["succeeded", "succeeded"]
    assert await statuses(live_api, owner, calls, task_id=task["agent_task_run_id"]) == ["succeeded"] * 2
    # The same key outside its program has only what an operator gave it.
    assert await statuses(live_api, owner, calls) == ["tool_not_allowed"] * 2
