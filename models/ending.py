"""The end of a round: how each of its calls stands, and the one change of its row that is the last."""

from dataclasses import dataclass

from sqlalchemy import bindparam, false, func, literal, select
from sqlalchemy.orm import Session

from governance.codes import InvocationOutcome, InvocationStatus, RoundState
from governance.resolutions import ResolutionKind, is_open_question
from models.base import table_of, utc_now
from models.database import WriteSession
from models.guardrail import GuardState
from models.invocation import ToolInvocation
from models.round import NewEvent, Round, RoundCall, add_numbered_events


@dataclass(frozen=True)
class CallStanding:
    """How one call of a round stands; without an invocation it was refused or never started."""

    position: int
    is_refused: bool
    invocation_id: str | None
    status: InvocationStatus | None
    outcome: InvocationOutcome | None
    resolution: ResolutionKind | None
    awaits_guardrails: bool = False
    """Whether its guardrails have never judged it."""

    @property
    def is_open_question(self) -> bool:
        """Whether its outcome is unknown and nobody has resolved it."""
        return self.outcome is not None and is_open_question(self.outcome, self.resolution)


_ROUNDS = table_of(Round)
_CALLS = table_of(RoundCall)
_INVOCATIONS = table_of(ToolInvocation)
_STANDINGS = (
    select(
        _CALLS.c.position,
        _CALLS.c.refusal.is_not(None),
        _CALLS.c.invocation_id,
        _INVOCATIONS.c.status,
        _INVOCATIONS.c.outcome,
        _INVOCATIONS.c.resolution_kind,
        func.coalesce(_CALLS.c.guard_state == GuardState.PENDING.value, false()),
    )
    .select_from(_CALLS.outerjoin(_INVOCATIONS, _INVOCATIONS.c.id == _CALLS.c.invocation_id))
    .where(_CALLS.c.round_id == bindparam("round"))
    .order_by(_CALLS.c.position)
)
_HAS_OPEN_QUESTION = (
    select(literal(1))
    .where(_INVOCATIONS.c.round_id == bindparam("round"))
    .where(_INVOCATIONS.c.outcome == InvocationOutcome.UNKNOWN)
    .where(_INVOCATIONS.c.resolution_kind.is_(None))
    .exists()
)
_END = (
    _ROUNDS.update()
    .where(_ROUNDS.c.id == bindparam("round"))
    .values(
        state=bindparam("last_state"),
        state_reason=bindparam("reason"),
        finished_at=bindparam("now"),
        has_unknown=_HAS_OPEN_QUESTION,
        event_count=_ROUNDS.c.event_count + 1,
    )
    .returning(_ROUNDS.c.event_count)
)


def load_standings(session: Session, round_id: str) -> tuple[CallStanding, ...]:
    """Return how the calls of a round stand now, in the model's order."""
    rows = session.connection().execute(_STANDINGS, {"round": round_id})
    return tuple(CallStanding(*row) for row in rows)


def end_round(
    session: WriteSession, round_id: str, state: RoundState, reason: str | None, event: NewEvent
) -> None:
    """Write a round's last state, whether it leaves an open question, and its last event.

    The caller holds the round's row and has looked that the round may end so.
    """
    ended = {"round": round_id, "last_state": state, "reason": reason, "now": utc_now()}
    number: int = session.connection().execute(_END, ended).scalar_one()
    add_numbered_events(session, round_id, number, [event])
