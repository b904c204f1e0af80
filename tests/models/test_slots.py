"""Slots of a connection: in order of arrival, never more than the cap, and none that stays taken for ever."""

from dataclasses import replace
from datetime import timedelta

import pytest

from models.base import new_id, utc_now
from models.database import Database, WriteSession
from models.slot import (
    FIRST_LOOK_S,
    KEPT_S,
    LONGEST_LOOK_S,
    LOOKS_IN_TIMEOUT,
    ConnectionSlot,
    QueueTimedOut,
    SlotBusy,
    SlotGranted,
    SlotRequest,
    Waiter,
    drop_waiting,
    load_slots,
    release_slot,
    renew_slots,
    take_slot,
)
from tests.support.world import build_world

pytestmark = pytest.mark.anyio

Found = SlotGranted | SlotBusy | QueueTimedOut


class Line:
    """Calls that want slots of one connection."""

    def __init__(self, database: Database, connection_id: str, cap: int = 1) -> None:
        self.database = database
        self.wanted = SlotRequest(connection_id, cap, 30.0, "", "", 0, "", 20.0)
        self.tokens: dict[str, str] = {}

    async def take(self, call: str, **changes: object) -> Found:
        self.tokens[call] = new_id()
        wanted = replace(
            self.wanted,
            call_key=call,
            workflow_id=f"workflow of {call}",
            lease_token=self.tokens[call],
            **changes,  # type: ignore[arg-type]
        )
        return await self.database.write(take_slot, wanted)

    async def release(self, call: str) -> Waiter | None:
        return await self.database.write(release_slot, call, self.tokens[call])

    async def expire(self, call: str, ago_s: float = 1.0) -> None:
        def change(session: WriteSession) -> None:
            session.get_one(ConnectionSlot, call).expires_at = utc_now() - timedelta(seconds=ago_s)

        await self.database.write(change)

    async def calls(self) -> list[tuple[str, bool]]:
        rows = await self.database.read(load_slots, self.wanted.connection_id)
        return [(row.call_key, row.granted_at is not None) for row in rows]


@pytest.fixture
async def line(database: Database) -> Line:
    return Line(database, (await build_world(database)).connection_id)


def granted(found: Found) -> bool:
    return isinstance(found, SlotGranted)


def ahead(found: Found) -> int:
    assert isinstance(found, SlotBusy), found
    return found.ahead


async def test_slots_go_to_who_came_first(line: Line) -> None:
    assert granted(await line.take("a"))
    places = [ahead(await line.take(call)) for call in ("b", "c")]
    woken = await line.release("a")
    # Who is not next gets none, although one is free.
    assert ahead(await line.take("c")) == 1
    assert granted(await line.take("b"))

    assert places == [0, 1]
    assert woken == Waiter("workflow of b", 0)
    assert await line.calls() == [("b", True), ("c", False)]


async def test_a_call_that_comes_again_keeps_its_slot_and_its_place(line: Line) -> None:
    await line.take("a")
    await line.take("b")
    await line.take("c")

    assert granted(await line.take("a"))
    assert ahead(await line.take("b")) == 0
    assert await line.calls() == [("a", True), ("b", False), ("c", False)]


async def test_a_cap_holds_and_each_grant_wakes_the_next_while_slots_are_free(line: Line) -> None:
    line.wanted = replace(line.wanted, cap=2)
    for call in ("a", "b", "c", "d"):
        await line.take(call)
    await line.release("a")
    await line.release("b")
    found = await line.take("c")

    assert found == SlotGranted(Waiter("workflow of d", 0))
    assert await line.calls() == [("c", True), ("d", False)]


async def test_the_slot_of_a_dead_worker_ends_with_its_lease(line: Line) -> None:
    await line.take("a")
    assert ahead(await line.take("b")) == 0
    await line.expire("a")

    assert granted(await line.take("b"))


async def test_a_lease_that_is_renewed_does_not_end(line: Line) -> None:
    await line.take("a")
    await line.expire("a")
    await line.database.write(renew_slots, [line.tokens["a"]], 20.0)

    assert ahead(await line.take("b")) == 0


async def test_a_waiter_that_does_not_come_back_is_passed_over_and_keeps_its_place(line: Line) -> None:
    await line.take("a")
    await line.take("gone")
    await line.take("b")
    await line.expire("gone")
    await line.release("a")
    assert granted(await line.take("b"))
    await line.release("b")
    await line.take("c")

    assert ahead(await line.take("d")) == 0
    # It was before d all the time.
    assert ahead(await line.take("gone")) == 0
    assert ahead(await line.take("d")) == 1


async def test_a_ticket_that_nobody_comes_for_is_swept(line: Line) -> None:
    await line.take("a")
    await line.take("gone")
    await line.expire("gone", KEPT_S + 1)
    await line.take("b")

    assert await line.calls() == [("a", True), ("b", False)]


async def test_a_worker_that_was_replaced_gives_up_no_slot(line: Line) -> None:
    await line.take("a")
    old = line.tokens["a"]
    await line.take("a")
    await line.database.write(release_slot, "a", old)

    assert await line.calls() == [("a", True)]


async def test_what_a_server_works_on_already_has_a_slot_whatever_the_cap(line: Line) -> None:
    await line.take("a")

    assert granted(await line.take("b", must=True))
    assert await line.calls() == [("a", True), ("b", True)]


async def test_a_call_that_waited_too_long_leaves_the_queue(line: Line) -> None:
    await line.take("a")
    await line.take("b", queue_timeout_s=1.0)

    def long_ago(session: WriteSession) -> None:
        session.get_one(ConnectionSlot, "b").queued_at = utc_now() - timedelta(seconds=2)

    await line.database.write(long_ago)
    found = await line.take("b", queue_timeout_s=1.0)

    assert isinstance(found, QueueTimedOut)
    assert found.waited_s >= 2
    assert await line.calls() == [("a", True)]


async def test_a_canceled_workflow_leaves_every_queue(line: Line) -> None:
    await line.take("a")
    await line.take("b")
    await line.database.write(drop_waiting, "workflow of b")
    await line.database.write(drop_waiting, "workflow of a")

    assert await line.calls() == [("a", True)]


async def test_a_wait_grows_with_each_look_and_with_the_place_and_ends_at_the_timeout(line: Line) -> None:
    await line.take("a")
    waits = [found.wait_s for _ in range(20) if isinstance(found := await line.take("b"), SlotBusy)]
    further = await line.take("c")
    late = await line.take("d", queue_timeout_s=0.05)

    assert waits[0] == FIRST_LOOK_S
    assert waits == sorted(waits)
    assert waits[-1] == max(LONGEST_LOOK_S, 30.0 / LOOKS_IN_TIMEOUT)
    assert isinstance(further, SlotBusy)
    assert further.wait_s == 2 * FIRST_LOOK_S
    assert isinstance(late, SlotBusy)
    assert late.wait_s <= 0.05
    # Whatever the timeout, a call looks a bounded number of times until then.
    assert sum(waits[:17]) >= 30.0
