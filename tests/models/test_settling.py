"""Who may end a call: its owner, and whoever has its answer; the first end stands, later words are kept."""

import asyncio

import pytest
from temporalio.exceptions import ApplicationError

from activities.finalizing import FinalizeRound, finalize
from activities.freezing import FreezeRound, freeze
from activities.ledger import (
    CallOutcome,
    CallPlace,
    LeaseLostError,
    OpenCall,
    Owner,
    SettledCall,
    canceled_outcome,
    mark_call_sent,
    settle_call,
    unknown_outcome,
)
from activities.opening import open_call
from governance.canonical import JSON, canonical_bytes, digest
from governance.codes import IdempotencyClass, InvocationOutcome, InvocationStatus, RoundState, SendOutcome
from models.audit import AuditEvent, AuditKind
from models.database import Database, ReadSession
from models.invocation import Settlement, ToolInvocation
from models.payload import load_payload
from models.round import Round
from models.send import load_sends
from tests.models.frozen import Frozen, freeze_world
from tests.support.scripted_runner import text_result
from tests.support.world import ConnectionPlan, add_round

pytestmark = pytest.mark.anyio

SAFE = ConnectionPlan(idempotency=IdempotencyClass.SAFE)


async def open_as(database: Database, frozen: Frozen, token: str) -> OpenCall | SettledCall:
    place = CallPlace(frozen.round_id, 0, 0, "s0.c0")
    opened = await database.write(open_call, place, Owner("worker", token), frozen.tools)
    assert isinstance(opened, OpenCall | SettledCall)
    return opened


async def own(database: Database, frozen: Frozen, token: str, *, sends: bool = True) -> OpenCall:
    """Open the call as another worker does, and mark it as sent."""
    opened = await open_as(database, frozen, token)
    assert isinstance(opened, OpenCall)
    if sends:
        await database.write(mark_call_sent, opened, opened.send_id, None)
    return opened


def answer(text: str) -> CallOutcome:
    content = canonical_bytes(text_result(text))
    return CallOutcome(Settlement(InvocationStatus.SUCCEEDED), SendOutcome.ANSWERED, content)


async def settle(database: Database, call: OpenCall, outcome: CallOutcome) -> SettledCall:
    return await database.write(settle_call, call, call.send_id, outcome)


async def row_of(database: Database, call: OpenCall) -> ToolInvocation:
    return await database.read(lambda session: session.get_one(ToolInvocation, call.invocation_id))


async def audited(database: Database) -> list[tuple[AuditKind, JSON]]:
    """Return how the audit trail tells of ends, with the digest of what was answered."""

    def read(session: ReadSession) -> list[tuple[AuditKind, JSON]]:
        kinds = (AuditKind.CALL_SETTLED, AuditKind.LATE_RESULT)
        rows = session.query(AuditEvent).where(AuditEvent.kind.in_(kinds)).order_by(AuditEvent.id)
        return [(row.kind, row.data["result_digest"]) for row in rows]

    return await database.read(read)


async def test_of_two_workers_with_an_answer_the_first_stands_and_the_other_is_kept(
    database: Database,
) -> None:
    frozen = await freeze_world(database, SAFE)
    calls = [await own(database, frozen, token) for token in ("token-1", "token-2")]

    ends = await asyncio.gather(*(settle(database, call, answer(call.owner.lease_token)) for call in calls))

    row = await row_of(database, calls[0])
    digests = {digest(canonical_bytes(text_result(call.owner.lease_token))) for call in calls}
    [(first, won), (second, late)] = await audited(database)
    assert (first, second) == (AuditKind.CALL_SETTLED, AuditKind.LATE_RESULT)
    assert {won, late} == digests
    assert row.response_digest == won
    assert {end.result_digest for end in ends} == {won}
    assert await database.read(load_payload, str(late)) is not None


@pytest.mark.parametrize("sends", [True, False], ids=["sent", "not sent"])
@pytest.mark.parametrize("how", ["unanswered", "canceled", "not sent"])
async def test_a_replaced_worker_without_an_answer_ends_nothing(
    how: str, *, sends: bool, database: Database
) -> None:
    frozen = await freeze_world(database, SAFE)
    replaced = await own(database, frozen, "token-1", sends=sends)
    owner = await own(database, frozen, "token-2")
    outcome = {
        "unanswered": unknown_outcome("files-read", "no_answer"),
        "canceled": canceled_outcome("files-read", was_sent=sends),
        "not sent": CallOutcome(Settlement(InvocationStatus.FAILED), SendOutcome.NOT_SENT),
    }[how]

    with pytest.raises(LeaseLostError):
        await settle(database, replaced, outcome)
    running = await row_of(database, owner)
    await settle(database, owner, answer("done"))

    assert running.status is InvocationStatus.RUNNING
    assert (await row_of(database, owner)).status is InvocationStatus.SUCCEEDED


async def test_a_replaced_worker_with_the_answer_ends_the_call(database: Database) -> None:
    frozen = await freeze_world(database, SAFE)
    replaced = await own(database, frozen, "token-1")
    owner = await own(database, frozen, "token-2")

    await settle(database, replaced, answer("done"))
    ended = await settle(database, owner, unknown_outcome("files-read", "no_answer"))

    assert (ended.status, ended.outcome) == (InvocationStatus.SUCCEEDED, InvocationOutcome.KNOWN)
    assert [kind for kind, _ in await audited(database)] == [AuditKind.CALL_SETTLED, AuditKind.LATE_RESULT]


async def test_a_send_that_was_answered_is_never_told_as_unanswered_by_who_resumed_it(
    database: Database,
) -> None:
    """Who fetches an answer shares the send of who sent; that one may have had the answer all the while."""
    frozen = await freeze_world(database)
    sender = await own(database, frozen, "token-1")
    heard: dict[str, JSON] = {"send_id": sender.send_id, "request_id": "1", "last_event_id": "e1"}
    place, owner = sender.place, Owner("worker", "token-2")
    resumed = await database.write(open_call, place, owner, frozen.tools, heard)
    assert isinstance(resumed, OpenCall)
    assert resumed.send_id == sender.send_id

    await settle(database, sender, answer("done"))
    await settle(database, resumed, unknown_outcome("files-read", "no_answer"))

    [send] = await database.read(load_sends, sender.invocation_id)
    assert (send.outcome, send.answered_at is None) == (SendOutcome.ANSWERED, False)


async def test_an_answer_that_comes_after_the_lease_was_lost_is_kept_as_a_fact(database: Database) -> None:
    """The lease of an unsafe call ran out while its server still worked on it."""
    frozen = await freeze_world(database)
    call = await own(database, frozen, "token-1")
    judged = await open_as(database, frozen, "token-2")
    late = await settle(database, call, answer("done"))

    assert isinstance(judged, SettledCall)
    assert (judged.status, judged.outcome) == (InvocationStatus.FAILED, InvocationOutcome.UNKNOWN)
    assert (late.status, late.outcome) == (judged.status, judged.outcome)
    digest_ = digest(canonical_bytes(text_result("done")))
    assert await audited(database) == [(AuditKind.CALL_SETTLED, None), (AuditKind.LATE_RESULT, digest_)]


@pytest.mark.parametrize("first", ["cancel", "answer"])
async def test_of_a_cancel_and_an_answer_the_first_stands(first: str, database: Database) -> None:
    frozen = await freeze_world(database)
    call = await own(database, frozen, "token-1")
    canceling = FinalizeRound(frozen.round_id, canceled=True)

    if first == "cancel":
        await database.write(finalize, canceling)
        await settle(database, call, answer("done"))
    else:
        await settle(database, call, answer("done"))
        await database.write(finalize, canceling)

    row = await row_of(database, call)
    ended = {
        "cancel": (InvocationStatus.CANCELED, InvocationOutcome.UNKNOWN),
        "answer": (InvocationStatus.SUCCEEDED, InvocationOutcome.KNOWN),
    }[first]
    assert (row.status, row.outcome) == ended


async def test_a_round_that_ended_before_it_was_frozen_never_starts(database: Database) -> None:
    """Its workflow was terminated before its first step, and is reset after the reconciler ended it."""
    frozen = await freeze_world(database)
    round_id = await database.write(add_round, frozen.world.key_id, [], "round:late")
    await database.write(finalize, FinalizeRound(round_id, failure="workflow_ended_early"))
    request = FreezeRound("round:late", frozen.world.key_id, round_id, round_id, "")

    with pytest.raises(ApplicationError, match="ended as failed"):
        await database.write(freeze, request, frozen.tools)

    assert (await database.read(lambda session: session.get_one(Round, round_id))).state is RoundState.FAILED
