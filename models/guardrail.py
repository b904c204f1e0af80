"""The guardrails of an installation: each edit is a new set, and a call names the set that it is under."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Integer, bindparam, case, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from governance.guardrails import Guardrail
from models.base import Base, Configuration, table_of, utc_now
from models.database import WriteSession
from models.round import RoundCall


class GuardState(StrEnum):
    """Where an admitted call stands with the guardrails before it."""

    PENDING = "pending"
    """They have not judged it; until they have, nobody may open it."""

    PASSED = "passed"


class GuardrailSet(Base):
    """The whole ordered list of guardrails as an operator set it once; immutable."""

    __tablename__ = "guardrail_sets"

    revision: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    guardrails: Mapped[list[JSON]] = mapped_column(Configuration)
    """As configured, a webhook's secret sealed: see `governance.guardrail_settings`."""
    count: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


_SETS = table_of(GuardrailSet)

ACTIVE_REVISION = (
    select(case((_SETS.c.count > 0, _SETS.c.revision)))
    .order_by(_SETS.c.revision.desc())
    .limit(1)
    .scalar_subquery()
)
"""The revision of the set in force, null where it is empty: a column for a statement that runs anyway."""

_LATEST = select(GuardrailSet).order_by(GuardrailSet.revision.desc()).limit(1)
_OF_REVISION = select(_SETS.c.guardrails).where(_SETS.c.revision == bindparam("set_revision"))
_CALLS = table_of(RoundCall)
_GUARD = (
    _CALLS.update()
    .where(_CALLS.c.round_id == bindparam("round"), _CALLS.c.position == bindparam("place"))
    .values(guardrails_revision=bindparam("set_revision"), guard_state=bindparam("its_state"))
)


@dataclass(frozen=True)
class GuardedPosition:
    """A call that guardrails are meant for; `pending` where some stand before it."""

    position: int
    pending: bool


def guardrail_purpose(name: str) -> str:
    """Return what a webhook's secret is sealed for."""
    return f"guardrail:{name}"


def load_latest(session: Session) -> tuple[int, list[JSON]]:
    """Return the set in force, as stored, and its revision; (0, []) where there never was one."""
    row = session.scalar(_LATEST)
    return (0, []) if row is None else (row.revision, list(row.guardrails))


def load_guardrails(session: Session, revision: int) -> tuple[Guardrail, ...]:
    """Return the guardrails of a revision in order."""
    stored: Sequence[Mapping[str, JSON]] = session.scalars(_OF_REVISION, {"set_revision": revision}).one()
    return tuple(map(Guardrail.from_json, stored))


def replace_guardrails(session: WriteSession, guardrails: Sequence[JSON]) -> int:
    """Store the whole list, which the caller has checked, and return its revision.

    Two edits at once collide on the revision, and the later one fails.
    """
    last = session.scalar(select(func.max(GuardrailSet.revision))) or 0
    row = GuardrailSet(revision=last + 1, guardrails=list(guardrails), count=len(guardrails))
    session.add(row)
    session.flush()
    return row.revision


def guard_calls(
    session: WriteSession, round_id: str, revision: int, calls: Iterable[GuardedPosition]
) -> None:
    """Note for calls of a round which guardrails they are under."""
    rows = [
        {
            "round": round_id,
            "place": call.position,
            "set_revision": revision,
            "its_state": GuardState.PENDING if call.pending else GuardState.PASSED,
        }
        for call in calls
    ]
    if rows:
        session.connection().execute(_GUARD, rows)
