"""End a round: settle what is still open, count, and write the terminal state. Idempotent by the round."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from temporalio import activity

from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import (
    TERMINAL_ROUND_STATES,
    Classification,
    ErrorCode,
    InvocationOutcome,
    InvocationStatus,
    RoundState,
)
from models.audit import AuditFact, AuditKind, append_audit
from models.base import utc_now
from models.database import Database, WriteSession
from models.invocation import Settlement, ToolInvocation, load_invocations, load_open_invocations, settle
from models.round import NewEvent, Round, RoundCall, append_events, load_round_calls


@dataclass(frozen=True)
class FinalizeRound:
    """Which round to end, and whether it was canceled."""

    round_id: str
    canceled: bool = False


@dataclass(frozen=True)
class FinalizedRound:
    """How the calls of a round ended, by count."""

    state: str
    succeeded: int
    failed: int
    refused: int
    canceled: int
    unknown: int


class RoundFinalizer:
    """Holds what finalizing needs."""

    def __init__(self, database: Database) -> None:
        """Use a database."""
        self._database = database

    @activity.defn(name="finalize_round")
    async def finalize_round(self, request: FinalizeRound) -> FinalizedRound:
        """End a round; a second time changes nothing and counts again."""
        return await self._database.write(finalize, request)


def finalize(session: WriteSession, request: FinalizeRound) -> FinalizedRound:
    """Do the work of `finalize_round` in one transaction.

    A call that is still open was abandoned by its worker: if nothing was sent for it, it is failed as
    not_sent (or canceled); if something was, nobody knows whether it ran.
    """
    row = session.scalars(select(Round).where(Round.id == request.round_id).with_for_update()).one()
    calls = load_round_calls(session, row.id)
    by_invocation = {call.invocation_id: call for call in calls if call.invocation_id is not None}
    for invocation, was_sent in load_open_invocations(session, row.id):
        _settle_abandoned(session, row, by_invocation[invocation.id], (invocation, was_sent), request)
    session.expire_all()
    counts = _count(calls, load_invocations(session, row.id), canceled=request.canceled)
    if row.state not in TERMINAL_ROUND_STATES:
        row.state = RoundState(counts.state)
        row.has_unknown = counts.unknown > 0
        row.finished_at = utc_now()
        session.flush()
        append_events(session, row.id, [NewEvent(f"round_{counts.state}", _tally(counts))])
    return FinalizedRound(
        row.state.value, counts.succeeded, counts.failed, counts.refused, counts.canceled, counts.unknown
    )


def _settle_abandoned(
    session: WriteSession,
    row: Round,
    call: RoundCall,
    open_invocation: tuple[ToolInvocation, bool],
    request: FinalizeRound,
) -> None:
    invocation, was_sent = open_invocation
    settlement = _abandoned(call.tool_name, was_sent=was_sent, canceled=request.canceled)
    if not settle(session, invocation.id, settlement):
        return
    code = settlement.error.code.value if settlement.error else None
    facts: dict[str, JSON] = {
        "position": call.position,
        "status": settlement.status.value,
        "outcome": settlement.outcome.value,
    }
    append_audit(
        session,
        AuditFact(
            AuditKind.CALL_SETTLED,
            actor=row.key_id,
            request_id=row.request_id,
            round_id=row.id,
            invocation_id=invocation.id,
            tool_name=call.tool_name,
            code=code,
            data=facts,
        ),
    )
    event = {"tool_call_id": call.call_id, "tool": call.tool_name, "stage": call.stage, "code": code, **facts}
    append_events(session, row.id, [NewEvent("call_finished", {**event, "invocation_id": invocation.id})])


def _abandoned(tool: str, *, was_sent: bool, canceled: bool) -> Settlement:
    if was_sent:
        error = call_error(
            ErrorCode.OUTCOME_UNKNOWN,
            {"tool": tool, "reason": "worker_lost", "outcome": "unknown"},
            Classification.TRANSPORT,
        )
        status = InvocationStatus.CANCELED if canceled else InvocationStatus.FAILED
        return Settlement(status, InvocationOutcome.UNKNOWN, error=error)
    if canceled:
        error = call_error(ErrorCode.CANCELED, {"tool": tool, "outcome": "not_sent"})
        return Settlement(InvocationStatus.CANCELED, error=error)
    error = call_error(ErrorCode.NOT_SENT, {"tool": tool, "outcome": "not_sent"}, retryable=True)
    return Settlement(InvocationStatus.FAILED, error=error)


def _count(
    calls: Sequence[RoundCall], invocations: dict[str, ToolInvocation], *, canceled: bool
) -> FinalizedRound:
    by_status = dict.fromkeys(InvocationStatus, 0)
    refused = never_started = 0
    for call in calls:
        if call.refusal is not None:
            refused += 1
        elif call.invocation_id is None:
            never_started += 1
        else:
            by_status[invocations[call.invocation_id].status] += 1
    unknown = sum(invocation.outcome is InvocationOutcome.UNKNOWN for invocation in invocations.values())
    return FinalizedRound(
        state=(RoundState.CANCELED if canceled else RoundState.COMPLETED).value,
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
