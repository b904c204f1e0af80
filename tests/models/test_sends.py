"""Physical sends: fenced by the lease, true about what left."""

import asyncio
import threading

import pytest

from governance.codes import InvocationOutcome, SendOutcome
from models.database import Database, ReadSession, WriteSession
from models.invocation import ToolInvocation, fail, lock_invocation, lock_open_invocations, take_over
from models.send import ToolSend, close_send, load_doubtful, load_sends, mark_sent, open_send
from tests.models.frozen import Frozen
from tests.models.test_invocations import ERROR

pytestmark = pytest.mark.anyio


async def opened(database: Database, frozen: Frozen) -> tuple[str, str]:
    """Provision a call and open its first send; return both ids."""

    def work(session: WriteSession) -> tuple[str, str]:
        invocation = frozen.provision(session, "k", token="token-1").invocation
        return invocation.id, open_send(session, invocation, 1, "worker").id

    return await database.write(work)


async def sends_of(database: Database, invocation_id: str) -> tuple[ToolSend, ...]:
    def read(session: ReadSession) -> tuple[ToolSend, ...]:
        return load_sends(session, invocation_id)

    return await database.read(read)


async def test_a_send_is_marked_once_by_the_holder_of_the_lease(database: Database, frozen: Frozen) -> None:
    invocation_id, send_id = await opened(database, frozen)

    assert not await database.write(mark_sent, send_id, "someone-else", None)
    assert await database.write(mark_sent, send_id, "token-1", "d" * 64)
    assert not await database.write(mark_sent, send_id, "token-1", None)

    [send] = await sends_of(database, invocation_id)
    assert send.sent_at is not None
    assert (send.session_digest, send.outcome, send.may_have_run) == ("d" * 64, None, True)


async def test_a_worker_that_was_replaced_may_not_send(database: Database, frozen: Frozen) -> None:
    invocation_id, send_id = await opened(database, frozen)
    await database.write(take_over, invocation_id, "token-2")

    assert not await database.write(mark_sent, send_id, "token-1", None)
    assert not await database.write(mark_sent, send_id, "token-2", None)
    assert [send.sent_at for send in await sends_of(database, invocation_id)] == [None]


async def test_a_terminal_call_may_not_be_sent(database: Database, frozen: Frozen) -> None:
    invocation_id, send_id = await opened(database, frozen)
    await database.write(fail, invocation_id, ERROR, InvocationOutcome.KNOWN)

    assert not await database.write(mark_sent, send_id, "token-1", None)


@pytest.mark.parametrize(
    ("outcome", "doubtful"),
    [
        (SendOutcome.UNKNOWN, True),
        (SendOutcome.NOT_SENT, False),
        (SendOutcome.REFUSED, False),
        (SendOutcome.ANSWERED, False),
    ],
)
async def test_only_a_send_that_left_without_an_answer_is_doubtful(
    outcome: SendOutcome, *, doubtful: bool, database: Database, frozen: Frozen
) -> None:
    invocation_id, send_id = await opened(database, frozen)
    assert await database.read(load_doubtful, [invocation_id]) == frozenset()
    await database.write(mark_sent, send_id, "token-1", None)
    assert await database.read(load_doubtful, [invocation_id]) == {invocation_id}

    await database.write(close_send, send_id, outcome)

    assert (invocation_id in await database.read(load_doubtful, [invocation_id])) is doubtful
    [send] = await sends_of(database, invocation_id)
    assert (send.answered_at is not None) is (outcome in {SendOutcome.ANSWERED, SendOutcome.REFUSED})


@pytest.mark.parametrize("intruder", ["take_over", "finalize"])
async def test_whoever_looks_at_sends_sees_a_send_that_is_being_marked(
    intruder: str, database: Database, frozen: Frozen
) -> None:
    """The race that loses effects: A marks its send while B decides that nothing was sent."""
    invocation_id, send_id = await opened(database, frozen)
    marked, go_on = threading.Event(), threading.Event()

    def mark_and_hold(session: WriteSession) -> bool:
        may = mark_sent(session, send_id, "token-1", None)
        marked.set()
        assert go_on.wait(5)
        return may

    def look(session: WriteSession) -> list[bool]:
        if intruder == "take_over":
            assert take_over(session, invocation_id, "token-2")
        else:
            lock_open_invocations(session, frozen.round_id)
        return [send.may_have_run for send in load_sends(session, invocation_id)]

    marking = asyncio.create_task(database.write(mark_and_hold))
    await asyncio.to_thread(marked.wait, 5)
    looking = asyncio.create_task(database.write(look))
    # The other transaction must be waiting by now, and not have looked past the open one.
    done, _ = await asyncio.wait({looking}, timeout=0.2)
    go_on.set()

    assert not done
    assert await marking is True
    assert await looking == [True]


async def test_a_send_that_waits_for_a_take_over_is_refused(database: Database, frozen: Frozen) -> None:
    invocation_id, send_id = await opened(database, frozen)
    taken, go_on = threading.Event(), threading.Event()

    def take_and_hold(session: WriteSession) -> None:
        assert take_over(session, invocation_id, "token-2")
        taken.set()
        assert go_on.wait(5)

    taking = asyncio.create_task(database.write(take_and_hold))
    await asyncio.to_thread(taken.wait, 5)
    marking = asyncio.create_task(database.write(mark_sent, send_id, "token-1", None))
    await asyncio.sleep(0)
    go_on.set()
    await taking

    assert await marking is False


async def test_a_send_needs_the_lease_of_its_invocation(database: Database, frozen: Frozen) -> None:
    invocation_id, _ = await opened(database, frozen)
    await database.write(fail, invocation_id, ERROR, InvocationOutcome.KNOWN)

    def work(session: WriteSession) -> ToolInvocation:
        invocation = lock_invocation(session, invocation_id)
        open_send(session, invocation, 2, "worker")
        return invocation

    with pytest.raises(ValueError, match="lease"):
        await database.write(work)
