"""Unknown outcomes and what operators say of them: a later fact, kept beside a status that never changes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from governance.canonical import JSON
from governance.codes import TERMINAL_ROUND_STATES, InvocationOutcome, InvocationStatus, RoundState
from governance.resolutions import OnUnknown, ResolutionKind, is_open_question, retry_number, retry_suffix
from governance.snapshots import ToolSnapshot
from models.base import utc_now
from models.binding import ToolBinding
from models.database import WriteSession
from models.invocation import ToolInvocation, lock_invocation
from models.round import Round, RoundCall, lock_round
from models.tool import ToolSnapshotRow


class ResolutionError(Exception):
    """The root of what `resolve` refuses."""


class NotUnknownError(ResolutionError):
    """The outcome of the invocation is known, or was resolved before."""

    def __init__(self, invocation_id: str, status: str, resolved: ResolutionKind | None) -> None:
        """Name the invocation and how it stands."""
        how = f"was resolved as {resolved.value!r}" if resolved else f"is {status!r} with a known outcome"
        super().__init__(f"Invocation {invocation_id!r} {how}; only an unknown outcome can be resolved.")
        self.invocation_id = invocation_id
        self.status = status
        self.resolved = resolved


class RoundStillRunsError(ResolutionError):
    """The call can be made again only once its round has ended, or where the round waits for that."""

    def __init__(self, round_id: str) -> None:
        """Name the round."""
        super().__init__(f"Round {round_id!r} still runs; retry the call when it has ended.")
        self.round_id = round_id


@dataclass(frozen=True)
class Verdict:
    """What an operator says: `result_digest` only of a success, and by whom and why."""

    kind: ResolutionKind
    by: str
    note: str | None = None
    result_digest: str | None = None


@dataclass(frozen=True)
class Resolved:
    """What was written down, and who is to be told of it."""

    invocation_id: str
    round_id: str
    workflow_id: str
    position: int
    kind: ResolutionKind
    round_waits: bool
    """The round goes on by itself once it is woken; else it has ended."""
    retry: "OpenRetry | None"
    """The call to make again, of a retry."""


def resolve(session: WriteSession, invocation_id: str, verdict: Verdict) -> Resolved:
    """Write down what an operator says of an unknown outcome; once, and never over a status.

    Raises:
        NotUnknownError: there is nothing to resolve.
        RoundStillRunsError: a retry has to wait for the round's end.
    """
    invocation = lock_invocation(session, invocation_id)
    if not is_open_question(invocation.outcome, invocation.resolution_kind):
        raise NotUnknownError(invocation_id, invocation.status.value, invocation.resolution_kind)
    round_ = lock_round(session, invocation.round_id)
    ended = round_.state in TERMINAL_ROUND_STATES
    waits = round_.on_unknown is OnUnknown.WAIT and not ended
    if verdict.kind is ResolutionKind.RETRY and not (ended or waits):
        raise RoundStillRunsError(round_.id)
    call = session.scalars(select(RoundCall).where(RoundCall.invocation_id == invocation_id)).one()
    retry_key = _next_key(invocation) if verdict.kind is ResolutionKind.RETRY else None
    invocation.resolution_kind = verdict.kind
    invocation.resolution = {
        "kind": verdict.kind.value,
        "by": verdict.by,
        "at": utc_now().isoformat(),
        "note": verdict.note,
        "result_digest": verdict.result_digest,
        "retry_key": retry_key,
    }
    session.flush()
    refresh_has_unknown(session, round_.id)
    retry = None if retry_key is None else _open_retry(session, invocation, call, retry_key)
    return Resolved(invocation_id, round_.id, round_.workflow_id, call.position, verdict.kind, waits, retry)


_OPEN_QUESTION = (
    select(ToolInvocation.id)
    .where(ToolInvocation.round_id == bindparam("round"))
    .where(ToolInvocation.outcome == InvocationOutcome.UNKNOWN)
    .where(ToolInvocation.resolution_kind.is_(None))
    .limit(1)
)


def refresh_has_unknown(session: WriteSession, round_id: str) -> bool:
    """Set whether a round has an unknown outcome that nobody has resolved; return it."""
    open_question = session.scalar(_OPEN_QUESTION, {"round": round_id})
    row = lock_round(session, round_id)
    if row.has_unknown is not (open_question is not None):
        row.has_unknown = open_question is not None
        session.flush()
    return row.has_unknown


def retry_key_of(invocation: ToolInvocation) -> str | None:
    """Return the key under which an operator wants the call of an invocation made again, or None."""
    facts: Mapping[str, JSON] = invocation.resolution or {}
    key = facts.get("retry_key")
    return key if invocation.resolution_kind is ResolutionKind.RETRY and isinstance(key, str) else None


def _next_key(invocation: ToolInvocation) -> str:
    key = invocation.idempotency_key or ""
    number = retry_number(key)
    first = key.removesuffix(retry_suffix(number)) if number else key
    return first + retry_suffix(number + 1)


@dataclass(frozen=True)
class OpenRetry:
    """A retry that an operator asked for and that nobody has begun."""

    invocation_id: str
    """The one whose outcome is unknown."""
    round_id: str
    position: int
    stage: int
    retry_key: str
    timeout_s: float

    @property
    def activity_id(self) -> str:
        """The activity id that makes the key."""
        return self.retry_key.removeprefix(f"{self.round_id}/")


def _open_retry(session: Session, invocation: ToolInvocation, call: RoundCall, key: str) -> OpenRetry:
    content = session.scalar(
        select(ToolSnapshotRow.content)
        .join(ToolBinding, ToolBinding.snapshot_digest == ToolSnapshotRow.digest)
        .where(ToolBinding.id == invocation.tool_binding_id)
    )
    timeout_s = ToolSnapshot.from_json(json.loads(content or b"{}")).timeout_s
    return OpenRetry(invocation.id, call.round_id, call.position, call.stage or 0, key, timeout_s)


def load_open_retries(session: Session, after: str | None, limit: int) -> tuple[OpenRetry, ...]:
    """Return retries of ended rounds whose new invocation does not exist, oldest invocation first.

    `after` is the invocation that the page before ended with.
    """
    query = (
        select(ToolInvocation, RoundCall)
        .join(RoundCall, RoundCall.invocation_id == ToolInvocation.id)
        .join(Round, Round.id == ToolInvocation.round_id)
        .where(ToolInvocation.outcome == InvocationOutcome.UNKNOWN)
        .where(ToolInvocation.resolution_kind == ResolutionKind.RETRY)
        .where(Round.state.in_(TERMINAL_ROUND_STATES))
        .order_by(ToolInvocation.id)
        .limit(limit)
    )
    rows = session.execute(query if after is None else query.where(ToolInvocation.id > after)).all()
    found: list[OpenRetry] = []
    for invocation, call in rows:
        key = retry_key_of(invocation)
        if key is not None:
            found.append(_open_retry(session, invocation, call, key))
    return tuple(found)


def load_undelivered(session: Session, limit: int) -> tuple[tuple[str, str], ...]:
    """Return (workflow id, invocation id) of resolutions for rounds that still say that they wait."""
    rows = session.execute(
        select(Round.workflow_id, ToolInvocation.id)
        .join(RoundCall, RoundCall.round_id == Round.id)
        .join(ToolInvocation, ToolInvocation.id == RoundCall.invocation_id)
        .where(Round.state == RoundState.WAITING_UNKNOWN)
        .where(ToolInvocation.outcome == InvocationOutcome.UNKNOWN)
        .where(ToolInvocation.status == InvocationStatus.FAILED)
        .where(ToolInvocation.resolution_kind.is_not(None))
        .order_by(ToolInvocation.id)
        .limit(limit)
    ).all()
    return tuple((workflow_id, invocation_id) for workflow_id, invocation_id in rows)
