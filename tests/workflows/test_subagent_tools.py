"""subagent_spawn and subagent_list through the runner: profiles, nesting, who may write, who sees what."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import select

from governance.canonical import JSON
from models.conversation import Addressability, Conversation
from models.database import Database, ReadSession, WriteSession
from models.round import Round
from models.spawning import SpawnRequest, SpawnRule, SubagentRefused, spawn_subagent
from models.subagent import SubagentSession
from models.task import Task
from tests.models.governed import Built, begin, build_program, build_task
from tests.workflows.governed import Rounds, call, spawn
from workflows.messages import InlineCall

pytestmark = pytest.mark.anyio

PROFILES: dict[str, Any] = {"main": {}, "researcher": {}}


def build(session: WriteSession) -> tuple[Built, str, str]:
    built = build_program(session, profile_catalog=PROFILES)
    conversation_id = begin(session, built)
    return built, conversation_id, build_task(session, built, conversation_id=conversation_id).id


async def results(rounds: Rounds, round_id: str) -> list[Mapping[str, JSON]]:
    """Return the results of a round's calls, all of which succeeded."""
    outcomes = await rounds.outcome(round_id)
    assert [status for status, _ in outcomes] == ["succeeded"] * len(outcomes)
    return [json.loads(content) for _, content in outcomes]


async def test_a_profile_that_the_catalog_lacks_is_refused_by_the_schema_before_anything_runs(
    rounds: Rounds, database: Database
) -> None:
    built, _, task_id = await database.write(build)

    round_id = await rounds.run(built.key_id, spawn(profile_key="nobody"), task_id=task_id)

    assert [status for status, _ in await rounds.outcome(round_id)] == ["invalid_arguments"]
    assert await database.read(lambda session: session.scalars(select(SubagentSession.id)).all()) == []


async def test_a_spawn_that_passed_the_schema_is_refused_for_an_unknown_profile_all_the_same(
    rounds: Rounds, database: Database
) -> None:
    built, _, task_id = await database.write(build)
    round_id = await rounds.run(built.key_id, call("subagent_list"), task_id=task_id)

    def spawn_as(session: WriteSession, profile_key: str) -> None:
        request = SpawnRequest.of(round_id, task_id, {"content": "x", "profile_key": profile_key})
        spawn_subagent(session, request)

    for profile_key in ("nobody", "Main"):
        with pytest.raises(SubagentRefused) as refused:
            await database.write(spawn_as, profile_key)
        assert refused.value.rule is SpawnRule.UNKNOWN_PROFILE
    assert await database.read(lambda session: session.scalars(select(SubagentSession.id)).all()) == []


async def test_a_subagents_own_spawn_is_nested_below_it_and_hidden_from_its_owner(
    rounds: Rounds, database: Database
) -> None:
    built, conversation_id, task_id = await database.write(build)

    first = await rounds.run(built.key_id, spawn(profile_key="researcher"), task_id=task_id)
    [child] = await results(rounds, first)
    second = await rounds.run(built.key_id, spawn(), task_id=child["agent_task_run_id"])
    [grandchild] = await results(rounds, second)
    third = await rounds.run(built.key_id, call("subagent_list"), task_id=task_id)
    [seen_by_owner] = await results(rounds, third)
    fourth = await rounds.run(built.key_id, call("subagent_list"), task_id=child["agent_task_run_id"])
    [seen_by_child] = await results(rounds, fourth)

    assert (child["subagent_depth"], child["parent_subagent_session_id"]) == (0, None)
    assert (grandchild["subagent_depth"], grandchild["parent_subagent_session_id"]) == (
        1,
        child["subagent_session_id"],
    )
    assert seen_by_owner == {"entries": [entry_of(child)]}
    assert seen_by_child == {"entries": [entry_of(grandchild)]}

    def stored(session: ReadSession) -> list[tuple[str | None, Addressability]]:
        rows = [session.get_one(Conversation, made["conversation_id"]) for made in (child, grandchild)]
        return [(row.parent_conversation_id, row.addressability) for row in rows]

    assert await database.read(stored) == [
        (conversation_id, Addressability.AGENTS),
        (child["conversation_id"], Addressability.AGENTS),
    ]


def entry_of(spawned: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return what a list shows of a subagent that was just started in scope conversation."""
    return {
        "subagent_session_id": spawned["subagent_session_id"],
        "conversation_id": spawned["conversation_id"],
        "origin_turn_id": None,
        "parent_subagent_session_id": spawned["parent_subagent_session_id"],
        "profile_key": spawned["profile_key"],
        "scope": "conversation",
        "derived_close_status": "open",
        "observed_status": "running",
        "subagent_depth": spawned["subagent_depth"],
    }


async def test_a_conversation_with_a_person_is_addressable_by_anyone(database: Database) -> None:
    _, conversation_id, _ = await database.write(build)

    def look(session: ReadSession) -> Addressability:
        return session.get_one(Conversation, conversation_id).addressability

    assert await database.read(look) is Addressability.ANYONE


async def test_a_list_shows_the_callers_own_subagents_oldest_first_and_nobody_elses(
    rounds: Rounds, database: Database
) -> None:
    built, _, task_id = await database.write(build)
    other, _, other_task_id = await database.write(build)
    sibling = await database.write(lambda session: build_task(session, built).id)
    both = [
        InlineCall("a", "subagent_spawn", {"content": "x", "scope": "turn"}),
        InlineCall("b", "subagent_spawn", {"content": "y", "profile_key": "main"}),
    ]

    made = await results(rounds, await rounds.run(built.key_id, *both, task_id=task_id))

    async def listed(key_id: str, task: str) -> list[Mapping[str, JSON]]:
        [result] = await results(rounds, await rounds.run(key_id, call("subagent_list"), task_id=task))
        return list(result["entries"])

    def turn_of(session: ReadSession) -> str:
        return session.get_one(Task, task_id).turn_id

    turn_id = await database.read(turn_of)
    expected = [
        {**entry_of(made[0]), "scope": "turn", "origin_turn_id": turn_id},
        entry_of(made[1]),
    ]
    assert await listed(built.key_id, task_id) == expected
    assert await listed(built.key_id, sibling) == []
    assert await listed(other.key_id, other_task_id) == []


async def test_a_list_in_a_conversation_without_subagents_is_empty_and_starts_nothing(
    rounds: Rounds, database: Database
) -> None:
    built, conversation_id, _ = await database.write(build)

    round_id = await rounds.run(built.key_id, call("subagent_list"), conversation_id=conversation_id)
    [result] = await results(rounds, round_id)

    assert result == {"entries": []}

    def conversations(session: ReadSession) -> tuple[int, str | None]:
        return (
            len(session.scalars(select(Conversation.id)).all()),
            session.get_one(Round, round_id).conversation_id,
        )

    assert await database.read(conversations) == (1, conversation_id)
