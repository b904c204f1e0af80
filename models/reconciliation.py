"""What crashes may have left behind: rows that say something goes on, and rounds that the engine lost.

A reconciler looks into the first; a caller may have the second repeated under their own key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from governance.canonical import JSON
from governance.codes import (
    TERMINAL_ROUND_STATES,
    ErrorCode,
    InvocationOutcome,
    InvocationStatus,
    RoundState,
)
from governance.resolutions import OnUnknown
from models.audit import AuditFact, AuditKind, append_audit
from models.database import WriteSession
from models.invocation import ToolInvocation, load_invocations
from models.round import NewEvent, Round, RoundCall, append_events, load_round_calls, lock_round

LOST_ROUND = "engine_lost_the_round"
"""Why a round failed whose workflow the engine does not have any more."""

WORKFLOW_ENDED_EARLY = "workflow_ended_early"
"""Why a round failed whose workflow failed, timed out or was terminated by hand."""

ENGINE_FAULTS = frozenset({LOST_ROUND, WORKFLOW_ENDED_EARLY, ErrorCode.ENGINE_UNAVAILABLE.value})
"""Reasons for which a round failed that its caller may repeat: none is the caller's or a tool's doing."""


@dataclass(frozen=True)
class UnfinishedRound:
    """A round that has not ended, with everything that starting it again needs."""

    id: str
    workflow_id: str
    key_id: str
    round_key: str
    body_digest: str
    state: RoundState
    on_unknown: OnUnknown
    request_filter: Mapping[str, JSON]
    tool_names: Sequence[str]


@dataclass(frozen=True)
class RunningRetry:
    """An invocation that runs although its round has ended: an operator's retry."""

    invocation_id: str
    round_id: str
    position: int
    idempotency_key: str


def load_unfinished(
    session: Session, before: datetime, after: str | None, limit: int
) -> tuple[UnfinishedRound, ...]:
    """Return rounds that were asked for before a moment and have not ended, by id, after the id `after`."""
    query = (
        select(Round)
        .where(Round.state.not_in(TERMINAL_ROUND_STATES), Round.created_at < before)
        .order_by(Round.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(Round.id > after)
    rows = session.scalars(query).all()
    names: dict[str, list[str]] = {row.id: [] for row in rows}
    requested = [row.id for row in rows if row.state is RoundState.REQUESTED]
    for round_id, name in session.execute(
        select(RoundCall.round_id, RoundCall.tool_name)
        .where(RoundCall.round_id.in_(requested))
        .order_by(RoundCall.round_id, RoundCall.position)
    ):
        names[round_id].append(name)
    return tuple(
        UnfinishedRound(
            id=row.id,
            workflow_id=row.workflow_id,
            key_id=row.key_id,
            round_key=row.round_key,
            body_digest=row.body_digest,
            state=row.state,
            on_unknown=row.on_unknown,
            request_filter=row.request_filter,
            tool_names=names[row.id],
        )
        for row in rows
    )


def load_unheard_cancels(session: Session, before: datetime, limit: int) -> tuple[tuple[str, int], ...]:
    """Return (workflow id, position) of calls that were told to stop before a moment and still run."""
    rows = session.execute(
        select(Round.workflow_id, RoundCall.position)
        .join(RoundCall, RoundCall.round_id == Round.id)
        .join(ToolInvocation, ToolInvocation.id == RoundCall.invocation_id)
        .where(RoundCall.cancel_requested_at < before)
        .where(ToolInvocation.status == InvocationStatus.RUNNING)
        .where(Round.state.not_in(TERMINAL_ROUND_STATES))
        .limit(limit)
    ).all()
    return tuple((workflow_id, position) for workflow_id, position in rows)


def load_running_retries(session: Session, before: datetime, limit: int) -> tuple[RunningRetry, ...]:
    """Return invocations that were started before a moment and run although their round has ended."""
    rows = session.execute(
        select(ToolInvocation.id, RoundCall.round_id, RoundCall.position, ToolInvocation.idempotency_key)
        .join(RoundCall, RoundCall.invocation_id == ToolInvocation.id)
        .join(Round, Round.id == ToolInvocation.round_id)
        .where(ToolInvocation.status == InvocationStatus.RUNNING, ToolInvocation.started_at < before)
        .where(Round.state.in_(TERMINAL_ROUND_STATES))
        .limit(limit)
    ).all()
    return tuple(RunningRetry(row[0], row[1], row[2], row[3] or "") for row in rows)


def may_be_repeated(state: RoundState, reason: str | None) -> bool:
    """Say whether a round failed by the engine's fault, so that its key may have it go on."""
    return state is RoundState.FAILED and reason in ENGINE_FAULTS


def repeat_round(session: WriteSession, round_id: str, request_id: str) -> Round:
    """Have a round that failed by the engine's fault go on: under its own id, and a workflow id of its own.

    The ledger stays. A call with a result, an unknown one too, keeps it and is never made again; a call that
    was opened and never left is made anew, under the same idempotency key. A round that did not fail like
    that, or goes on already, comes back as it is.
    """
    invocations = load_invocations(session, round_id)
    row = lock_round(session, round_id)
    if not may_be_repeated(row.state, row.state_reason):
        return row
    number = _run_number(row.workflow_id) + 1
    again = [
        call
        for call in load_round_calls(session, round_id)
        if call.invocation_id is not None and _never_left(invocations[call.invocation_id])
    ]
    for call in again:
        unsent = invocations[call.invocation_id or ""]
        # No upstream ever ran anything under this key, so the call's next invocation may have it.
        unsent.idempotency_key = f"{unsent.idempotency_key}/unsent{number - 1}"
        call.invocation_id = None
    reason = row.state_reason
    row.workflow_id = f"{row.workflow_id.removesuffix(_run_suffix(number - 1))}{_run_suffix(number)}"
    row.state, row.state_reason, row.finished_at = RoundState.REQUESTED, None, None
    session.flush()
    data: dict[str, JSON] = {"run": number, "reason": reason, "again": [call.position for call in again]}
    append_events(session, round_id, [NewEvent("round_repeated", data)])
    fact: dict[str, JSON] = {"repair": "repeated", **data}
    append_audit(
        session,
        AuditFact(AuditKind.RECONCILED, row.key_id, request_id=request_id, round_id=round_id, data=fact),
    )
    return row


def _never_left(invocation: ToolInvocation) -> bool:
    error: Mapping[str, JSON] = invocation.error or {}
    failed = invocation.status is InvocationStatus.FAILED and invocation.outcome is InvocationOutcome.KNOWN
    return failed and error.get("code") == ErrorCode.NOT_SENT.value


def _run_suffix(number: int) -> str:
    return f"/{number}" if number > 1 else ""


def _run_number(workflow_id: str) -> int:
    """Return which run of its round a workflow is: 1, or what its id ends with."""
    _, separator, number = workflow_id.rpartition("/")
    return int(number) if separator and number.isdecimal() else 1
