"""End a round, or a call that its worker left: settle what is open, count, write the state. Idempotent."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from temporalio import activity

from activities.ledger import (
    CallOutcome,
    SettledPlace,
    canceled_outcome,
    settle_as,
    unknown_outcome,
)
from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import (
    TERMINAL_ROUND_STATES,
    ErrorCode,
    InvocationStatus,
    RoundState,
    SendOutcome,
)
from governance.resolutions import effective_status
from models.database import Database, WriteSession
from models.ending import CallStanding, end_round, load_standings
from models.forgetting import forget_arguments
from models.invocation import Settlement, lock_open_invocations
from models.round import HeldRound, NewEvent, RoundCall, hold_round, load_round_calls
from models.send import load_doubtful
from models.slot import drop_waiting


@dataclass(frozen=True)
class FinalizeRound:
    """Which round to end, and how: canceled, or failed by our own fault for a reason."""

    round_id: str
    canceled: bool = False
    failure: str = ""
    workflow_id: str = ""
    """The workflow that ran the round; one that was replaced by a repeat ends nothing."""

    @property
    def state(self) -> RoundState:
        """The state that the round ends in."""
        if self.failure:
            return RoundState.FAILED
        return RoundState.CANCELED if self.canceled else RoundState.COMPLETED


@dataclass(frozen=True)
class FinalizedRound:
    """How the calls of a round ended, by count."""

    state: str
    succeeded: int
    failed: int
    refused: int
    canceled: int
    unknown: int


def _no_positions() -> list[int]:
    return []


@dataclass(frozen=True)
class SettleLost:
    """Calls whose activity ended without a word: by round and position."""

    round_id: str
    positions: list[int] = field(default_factory=_no_positions)


@dataclass(frozen=True)
class LostCalls:
    """Which of them have an unknown outcome now."""

    unknown: list[int]


class RoundFinalizer:
    """Holds what finalizing needs."""

    def __init__(self, database: Database) -> None:
        """Use a database."""
        self._database = database

    @activity.defn(name="finalize_round")
    async def finalize_round(self, request: FinalizeRound) -> FinalizedRound:
        """End a round; a second time changes nothing and counts again."""
        mine = replace(request, workflow_id=activity.info().workflow_id or "")
        return await self._database.write(finalize, mine)

    @activity.defn(name="settle_lost_calls")
    async def settle_lost_calls(self, request: SettleLost) -> LostCalls:
        """Settle calls whose activity failed, so that the barrier means what it says; idempotent."""
        return await self._database.write(settle_lost, request)


def finalize(session: WriteSession, request: FinalizeRound) -> FinalizedRound:
    """Do the work of `finalize_round` in one transaction.

    A call that is still open was abandoned by its worker: if nothing was sent for it, it is failed as
    not_sent (or canceled); if something was, nobody knows whether it ran. A round that has ended already
    stays as it is, and so do calls of it that an operator has had made again.
    """
    open_ids = lock_open_invocations(session, request.round_id)
    row = hold_round(session, request.round_id)
    replaced = request.workflow_id not in ("", row.workflow_id)
    if replaced or row.state in TERMINAL_ROUND_STATES:
        return _count(row.state, load_standings(session, row.id))
    if open_ids:
        calls = load_round_calls(session, row.id)
        _settle_abandoned(session, row, calls, open_ids, canceled=request.canceled)
    if request.canceled:
        drop_waiting(session, row.workflow_id)
    standings = load_standings(session, row.id)
    if any(one.awaits_guardrails for one in standings) and not request.failure:
        # Nobody will judge them any more, and what nobody has judged is not kept. A round that failed by our
        # own fault may be repeated, and is judged then.
        unjudged = {one.position for one in standings if one.awaits_guardrails}
        calls = load_round_calls(session, row.id)
        forget_arguments(session, [call for call in calls if call.position in unjudged])
    counts = _count(request.state, standings)
    event = NewEvent(f"round_{counts.state}", _tally(counts))
    end_round(session, row.id, request.state, request.failure[:255] or None, event)
    return counts


def settle_lost(session: WriteSession, request: SettleLost) -> LostCalls:
    """Do the work of `settle_lost_calls` in one transaction."""
    calls = [
        call
        for call in load_round_calls(session, request.round_id)
        if call.position in request.positions and call.invocation_id is not None
    ]
    ids = {call.invocation_id for call in calls if call.invocation_id is not None}
    open_ids = lock_open_invocations(session, request.round_id, ids)
    _settle_abandoned(session, hold_round(session, request.round_id), calls, open_ids, canceled=False)
    lost = {call.position for call in calls}
    standings = load_standings(session, request.round_id)
    return LostCalls([call.position for call in standings if call.position in lost and call.is_open_question])


def _settle_abandoned(
    session: WriteSession,
    row: HeldRound,
    calls: Sequence[RoundCall],
    open_ids: Sequence[str],
    *,
    canceled: bool,
) -> None:
    by_invocation = {call.invocation_id: call for call in calls}
    # Their rows are held: nothing can be marked as sent from here on.
    doubtful = load_doubtful(session, open_ids)
    for invocation_id in open_ids:
        call = by_invocation.get(invocation_id)
        if call is None:
            continue
        place = SettledPlace(
            invocation_id=invocation_id,
            round_id=row.id,
            position=call.position,
            stage=call.stage,
            tool_call_id=call.call_id,
            tool=call.tool_name,
            actor=row.key_id,
        )
        stopped = canceled or call.cancel_requested_at is not None
        was_sent = invocation_id in doubtful
        settle_as(session, place, _abandoned(call.tool_name, was_sent=was_sent, canceled=stopped))


def _abandoned(tool: str, *, was_sent: bool, canceled: bool) -> CallOutcome:
    if was_sent:
        status = InvocationStatus.CANCELED if canceled else InvocationStatus.FAILED
        return unknown_outcome(tool, "worker_lost", status)
    if canceled:
        return canceled_outcome(tool, was_sent=False)
    error = call_error(ErrorCode.NOT_SENT, {"tool": tool, "outcome": "not_sent"}, retryable=True)
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _count(state: RoundState, calls: Sequence[CallStanding]) -> FinalizedRound:
    by_status = dict.fromkeys(InvocationStatus, 0)
    refused = never_started = unknown = 0
    canceled = state is RoundState.CANCELED
    for call in calls:
        if call.is_refused:
            refused += 1
        elif call.status is None:
            never_started += 1
        else:
            by_status[effective_status(call.status, call.resolution)] += 1
            unknown += call.is_open_question
    return FinalizedRound(
        state=state.value,
        succeeded=by_status[InvocationStatus.SUCCEEDED],
        failed=by_status[InvocationStatus.FAILED] + (0 if canceled else never_started),
        refused=refused,
        canceled=by_status[InvocationStatus.CANCELED] + (never_started if canceled else 0),
        unknown=unknown,
    )


def _tally(counts: FinalizedRound) -> dict[str, JSON]:
    return {
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "refused": counts.refused,
        "canceled": counts.canceled,
        "unknown": counts.unknown,
    }
