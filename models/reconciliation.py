"""What crashes may have left behind: rows that say something goes on, for a reconciler to look into."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from governance.canonical import JSON
from governance.codes import TERMINAL_ROUND_STATES, InvocationStatus, RoundState
from governance.resolutions import OnUnknown
from models.invocation import ToolInvocation
from models.round import Round, RoundCall


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
