"""Rounds in the database: events without gaps, budgets, states that are never left."""

import asyncio

import pytest

from governance.codes import RoundState
from models.database import Database, ReadSession, WriteSession
from models.round import (
    NewEvent,
    Round,
    abandon_round,
    append_events,
    change_round_state,
    load_events,
    take_repeat,
)
from tests.models.frozen import Frozen
from tests.support.world import Call, add_round, build_world

pytestmark = pytest.mark.anyio


async def state_of(database: Database, round_id: str) -> RoundState:
    def read(session: ReadSession) -> RoundState:
        return session.get_one(Round, round_id).state

    return await database.read(read)


async def test_event_numbers_have_no_gaps_under_parallel_writers(database: Database, frozen: Frozen) -> None:
    before = len(await database.read(load_events, frozen.round_id, 0))

    await asyncio.gather(
        *(
            database.write(append_events, frozen.round_id, [NewEvent("a", {"n": n}), NewEvent("b", {"n": n})])
            for n in range(20)
        )
    )

    events = await database.read(load_events, frozen.round_id, 0)
    assert [event.number for event in events] == list(range(1, before + 41))
    pairs = [(event.kind, event.data["n"]) for event in events[before:]]
    assert sorted(n for kind, n in pairs if kind == "a") == list(range(20))
    assert all(
        first[0] == "a" and second == ("b", first[1])
        for first, second in zip(pairs[::2], pairs[1::2], strict=True)
    )


async def test_a_writer_that_fails_leaves_no_number_unused(database: Database, frozen: Frozen) -> None:
    before = len(await database.read(load_events, frozen.round_id, 0))

    def append_and_fail(session: WriteSession) -> None:
        append_events(session, frozen.round_id, [NewEvent("lost", {})])
        raise RuntimeError("after the event")

    with pytest.raises(RuntimeError, match="after the event"):
        await database.write(append_and_fail)
    await database.write(append_events, frozen.round_id, [NewEvent("kept", {})])

    events = await database.read(load_events, frozen.round_id, before)
    assert [(event.number, event.kind) for event in events] == [(before + 1, "kept")]


async def test_only_a_round_that_never_began_is_abandoned(database: Database, frozen: Frozen) -> None:
    world = await build_world_again(database)
    requested = await database.write(add_round, world, [Call("files-read")], "round:requested")

    assert await database.write(abandon_round, requested, "engine_unavailable")
    assert not await database.write(abandon_round, requested, "again")
    assert not await database.write(abandon_round, frozen.round_id, "engine_unavailable")

    assert await state_of(database, requested) is RoundState.ABANDONED
    assert await state_of(database, frozen.round_id) is RoundState.RUNNING
    events = await database.read(load_events, requested, 0)
    assert [event.kind for event in events] == ["round_requested", "round_abandoned"]


async def build_world_again(database: Database) -> str:
    """Return the id of the key that asks for rounds without a binding."""

    def read(session: ReadSession) -> str:
        [key_id] = {row.key_id for row in session.query(Round)}
        return key_id

    return await database.read(read)


async def test_an_ended_round_never_changes_its_state(database: Database) -> None:
    world = await build_world(database)
    round_id = await database.write(add_round, world.key_id, [Call("files-read")], "round:ended")
    await database.write(abandon_round, round_id, "engine_unavailable")

    assert not await database.write(change_round_state, round_id, RoundState.RUNNING)
    assert await state_of(database, round_id) is RoundState.ABANDONED
    with pytest.raises(ValueError, match="finalizing"):
        await database.write(change_round_state, round_id, RoundState.COMPLETED)


async def test_a_round_has_one_budget_of_repeats(database: Database, frozen: Frozen) -> None:
    taken = await asyncio.gather(*(database.write(take_repeat, frozen.round_id, 7) for _ in range(20)))

    assert sum(taken) == 7
