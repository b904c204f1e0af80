"""The ledger: invocations of bindings. Each physical send of one is a row of `models.send`.

An invocation is one use of a binding. The life cycle is five small functions: `start`, `provision`,
`complete`, `fail` and `cancel`; the last three are `settle` with a status. The first terminal state
wins; what comes later changes nothing and is the caller's to record as an audit fact.

Locks are taken in one order everywhere: binding, invocation, round.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Insert,
    String,
    UniqueConstraint,
    bindparam,
    func,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from governance.codes import InvocationOutcome, InvocationStatus
from governance.failures import CallError
from governance.resolutions import ResolutionKind
from models.base import Base, Configuration, Digest, EnumByValue, PublicId, new_id, table_of, utc_now
from models.binding import BINDINGS, BindingRef, ToolBinding
from models.database import WriteSession


class ToolInvocation(Base):
    """One use of a binding; the database holds that definition and implementation are the binding's."""

    __tablename__ = "tool_invocations"
    __table_args__ = (
        UniqueConstraint("tool_binding_id", "attempt_no"),
        Index(
            "idx_tool_invocations_binding_idempotency",
            "tool_binding_id",
            "idempotency_key",
            unique=True,
            sqlite_where=text("idempotency_key IS NOT NULL"),
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        ForeignKeyConstraint(
            ["tool_binding_id", "tool_definition_id", "tool_implementation_id", "owner_id"],
            [
                "tool_bindings.id",
                "tool_bindings.tool_definition_id",
                "tool_bindings.tool_implementation_id",
                "tool_bindings.owner_id",
            ],
            name="fk_tool_invocations_binding",
        ),
        CheckConstraint("owner_id = coalesce(task_id, round_id)", name="owner_is_the_task_or_round"),
        # What a task's binding is used in is a round of the task.
        ForeignKeyConstraint(
            ["round_id", "task_id"],
            ["rounds.id", "rounds.task_id"],
            name="fk_tool_invocations_round_of_the_task",
            ondelete="CASCADE",
        ),
        Index(
            "ix_tool_invocations_unknown",
            "id",
            sqlite_where=text("outcome = 'unknown'"),
            postgresql_where=text("outcome = 'unknown'"),
        ),
        Index(
            "ix_tool_invocations_running",
            "id",
            sqlite_where=text("status = 'running'"),
            postgresql_where=text("status = 'running'"),
        ),
        CheckConstraint("(status = 'running') = (finished_at IS NULL)", name="finished_when_terminal"),
    )

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    tool_binding_id: Mapped[str] = mapped_column(PublicId)
    tool_definition_id: Mapped[str] = mapped_column(PublicId)
    tool_implementation_id: Mapped[str] = mapped_column(PublicId)
    owner_id: Mapped[str] = mapped_column(PublicId)
    """The binding's owner: its task, or else its round."""
    task_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("tasks.id", ondelete="CASCADE"), index=True
    )
    round_id: Mapped[str] = mapped_column(PublicId, ForeignKey("rounds.id", ondelete="CASCADE"), index=True)
    """The round that made the call; for a task's binding, one of the task's rounds."""
    attempt_no: Mapped[int]
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    status: Mapped[InvocationStatus] = mapped_column(EnumByValue(InvocationStatus))
    outcome: Mapped[InvocationOutcome] = mapped_column(
        EnumByValue(InvocationOutcome), default=InvocationOutcome.KNOWN
    )
    price: Mapped[int] = mapped_column(BigInteger, default=0)
    """What it costs if it is sent, in billionths of the currency; fixed when it is provisioned."""
    request_digest: Mapped[str] = mapped_column(Digest, ForeignKey("payloads.digest"))
    response_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("payloads.digest"))
    is_error: Mapped[bool] = mapped_column(default=False)
    """The tool answered and said that it failed; the content is kept."""
    error: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """Why there is no good result, as `governance.failures.CallError`."""
    lease_token: Mapped[str | None] = mapped_column(String(36))
    """Who may send now; a worker whose token is no longer here has been replaced and must not send."""
    resolution_kind: Mapped[ResolutionKind | None] = mapped_column(EnumByValue(ResolutionKind))
    """What an operator said later of an unknown outcome; a terminal status never changes."""
    resolution: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """By whom, when, the note and what follows: see `models.resolution`."""
    started_at: Mapped[datetime] = mapped_column(default=utc_now)
    finished_at: Mapped[datetime | None]


class RequestMismatchError(Exception):
    """The idempotency key was used before with another request."""

    def __init__(self, idempotency_key: str) -> None:
        """Name the key."""
        super().__init__(
            f"The idempotency key {idempotency_key!r} belongs to another request; use a new key."
        )
        self.idempotency_key = idempotency_key


@dataclass(frozen=True)
class CallRequest:
    """What is asked of a binding: in which round, the digest of the arguments as they are sent, its price."""

    round_id: str
    digest: str
    price: int = 0


@dataclass(frozen=True)
class Provisioned:
    """An invocation, to be read and not to be changed, and whether it is new."""

    invocation: ToolInvocation
    created: bool


_INVOCATIONS = table_of(ToolInvocation)
_LOCK_BINDING = select(BINDINGS.c.id).where(BINDINGS.c.id == bindparam("binding")).with_for_update()
_OF_KEY = select(ToolInvocation).where(
    ToolInvocation.tool_binding_id == bindparam("binding"), ToolInvocation.idempotency_key == bindparam("key")
)
_NEXT_ATTEMPT = (
    select(func.coalesce(func.max(_INVOCATIONS.c.attempt_no), 0) + 1)
    .where(_INVOCATIONS.c.tool_binding_id == bindparam("binding"))
    .scalar_subquery()
)
_TAKE_OVER = (
    _INVOCATIONS.update()
    .where(_INVOCATIONS.c.id == bindparam("invocation"), _INVOCATIONS.c.status == InvocationStatus.RUNNING)
    .values(lease_token=bindparam("token"))
    .returning(_INVOCATIONS.c.id)
)
_LOCKED = (
    select(ToolInvocation)
    .where(ToolInvocation.id == bindparam("invocation"))
    .with_for_update()
    .execution_options(populate_existing=True)
)
_SETTLE = (
    _INVOCATIONS.update()
    .where(_INVOCATIONS.c.id == bindparam("invocation"), _INVOCATIONS.c.status == InvocationStatus.RUNNING)
    .values(
        status=bindparam("new_status"),
        outcome=bindparam("new_outcome"),
        response_digest=bindparam("response"),
        is_error=bindparam("failed"),
        error=bindparam("why"),
        lease_token=None,
        finished_at=bindparam("now"),
    )
    .returning(_INVOCATIONS.c.price, _INVOCATIONS.c.started_at)
)
_SETTLE_OWN = _SETTLE.where(_INVOCATIONS.c.lease_token == bindparam("token"))
_OF_ROUND = select(ToolInvocation).where(ToolInvocation.round_id == bindparam("round"))
_OPEN_OF_ROUND = (
    select(_INVOCATIONS.c.id)
    .where(_INVOCATIONS.c.round_id == bindparam("round"), _INVOCATIONS.c.status == InvocationStatus.RUNNING)
    # Always in this order, so that two transactions never wait for each other.
    .order_by(_INVOCATIONS.c.id)
    .with_for_update()
)


def start(
    session: WriteSession,
    binding: ToolBinding | BindingRef,
    request: CallRequest,
    idempotency_key: str | None,
    lease_token: str,
) -> ToolInvocation:
    """Insert a running invocation with the binding's next attempt number, under a lock on the binding.

    Raises:
        LookupError: an invocation of this key is there already.
    """
    session.connection().execute(_LOCK_BINDING, {"binding": binding.id})
    made = _insert(session, binding, request, idempotency_key, lease_token)
    if made is None:
        raise LookupError(f"The idempotency key {idempotency_key!r} was used before.")
    return made


def provision(
    session: WriteSession,
    binding: ToolBinding | BindingRef,
    request: CallRequest,
    idempotency_key: str | None,
    lease_token: str,
) -> Provisioned:
    """Return the invocation of a key, or start it; a blank key is never deduplicated.

    Raises:
        RequestMismatchError: the key was used with another request digest.
    """
    session.connection().execute(_LOCK_BINDING, {"binding": binding.id})
    return provision_held(session, binding, request, idempotency_key, lease_token)


def provision_held(
    session: WriteSession,
    binding: ToolBinding | BindingRef,
    request: CallRequest,
    idempotency_key: str | None,
    lease_token: str,
) -> Provisioned:
    """Do the work of `provision` for a caller that holds the binding's row already.

    Raises:
        RequestMismatchError: the key was used with another request digest.
    """
    key = (idempotency_key or "").strip() or None
    made = _insert(session, binding, request, key, lease_token)
    if made is not None:
        return Provisioned(made, created=True)
    found = session.scalars(_OF_KEY, {"binding": binding.id, "key": key}).one()
    if found.request_digest != request.digest:
        raise RequestMismatchError(found.idempotency_key or "")
    return Provisioned(found, created=False)


@cache
def _insertion(dialect: str) -> Insert:
    """Return the statement that inserts an invocation, unless its key is taken, and that numbers it.

    The caller holds the binding's row, so nobody else counts its attempts meanwhile.
    """
    if dialect == "postgresql":
        insert: Insert = postgresql.insert(_INVOCATIONS).on_conflict_do_nothing()
    else:
        insert = sqlite.insert(_INVOCATIONS).on_conflict_do_nothing()
    return insert.values(attempt_no=_NEXT_ATTEMPT).returning(_INVOCATIONS.c.attempt_no)


def _insert(
    session: WriteSession,
    binding: ToolBinding | BindingRef,
    request: CallRequest,
    key: str | None,
    lease_token: str,
) -> ToolInvocation | None:
    """Insert a running invocation; None when its key is taken. What comes back is not the session's."""
    connection = session.connection()
    values: dict[str, Any] = {
        "id": new_id(),
        "tool_binding_id": binding.id,
        "tool_definition_id": binding.tool_definition_id,
        "tool_implementation_id": binding.tool_implementation_id,
        "owner_id": binding.owner_id,
        "task_id": binding.task_id,
        "round_id": request.round_id,
        "idempotency_key": key,
        "status": InvocationStatus.RUNNING,
        "outcome": InvocationOutcome.KNOWN,
        "price": request.price,
        "is_error": False,
        "request_digest": request.digest,
        "lease_token": lease_token,
        "started_at": utc_now(),
    }
    attempt_no = connection.scalar(_insertion(connection.dialect.name), {**values, "binding": binding.id})
    return None if attempt_no is None else ToolInvocation(attempt_no=attempt_no, **values)


def take_over(session: WriteSession, invocation_id: str, lease_token: str) -> bool:
    """Make `lease_token` the only one that may send; False when the invocation is terminal.

    It holds the row from here to the commit, so the sends read afterwards are all that there will be.
    """
    taken = {"invocation": invocation_id, "token": lease_token}
    return session.connection().scalar(_TAKE_OVER, taken) is not None


def lock_invocation(session: WriteSession, invocation_id: str) -> ToolInvocation:
    """Return an invocation as it is now, and hold its row until the commit."""
    return session.scalars(_LOCKED, {"invocation": invocation_id}).one()


@dataclass(frozen=True)
class Settlement:
    """The terminal state of an invocation."""

    status: InvocationStatus
    outcome: InvocationOutcome = InvocationOutcome.KNOWN
    response_digest: str | None = None
    is_error: bool = False
    error: CallError | None = None


@dataclass(frozen=True)
class Settled:
    """What is known of an invocation at its end that was fixed at its start."""

    price: int
    started_at: datetime


def settle(session: WriteSession, invocation_id: str, settlement: Settlement) -> bool:
    """Move a running invocation to its terminal state; False when it was terminal already."""
    return settle_running(session, invocation_id, settlement) is not None


def settle_running(
    session: WriteSession, invocation_id: str, settlement: Settlement, lease_token: str | None = None
) -> Settled | None:
    """Do the work of `settle`, and return what was fixed at the start; None when it was terminal already.

    With `lease_token` it is also None when that lease is no longer the invocation's.
    """
    settled = {
        "invocation": invocation_id,
        "new_status": settlement.status,
        "new_outcome": settlement.outcome,
        "response": settlement.response_digest,
        "failed": settlement.is_error,
        "why": None if settlement.error is None else settlement.error.to_json(),
        "now": utc_now(),
    }
    if lease_token is None:
        row = session.connection().execute(_SETTLE, settled).one_or_none()
    else:
        row = session.connection().execute(_SETTLE_OWN, settled | {"token": lease_token}).one_or_none()
    return None if row is None else Settled(*row)


def complete(session: WriteSession, invocation_id: str, response_digest: str) -> bool:
    """Record a good result; False when the invocation was terminal already."""
    return settle(
        session, invocation_id, Settlement(InvocationStatus.SUCCEEDED, response_digest=response_digest)
    )


def fail(session: WriteSession, invocation_id: str, error: CallError, outcome: InvocationOutcome) -> bool:
    """Record a failure; False when the invocation was terminal already."""
    return settle(session, invocation_id, Settlement(InvocationStatus.FAILED, outcome, error=error))


def cancel(session: WriteSession, invocation_id: str, error: CallError, outcome: InvocationOutcome) -> bool:
    """Record a cancellation; False when the invocation was terminal already."""
    return settle(session, invocation_id, Settlement(InvocationStatus.CANCELED, outcome, error=error))


def find_invocation(session: Session, binding_id: str, idempotency_key: str) -> ToolInvocation | None:
    """Return the invocation of a binding that was started under a key, or None."""
    return session.scalars(_OF_KEY, {"binding": binding_id, "key": idempotency_key}).one_or_none()


def load_invocations(session: Session, round_id: str) -> dict[str, ToolInvocation]:
    """Return the invocations of a round by id."""
    rows = session.scalars(_OF_ROUND, {"round": round_id})
    return {row.id: row for row in rows}


def lock_open_invocations(
    session: WriteSession, round_id: str, ids: Collection[str] | None = None
) -> tuple[str, ...]:
    """Return the ids of the running invocations of a round, or of those in `ids`, and hold their rows.

    None of them can be marked as sent, taken over or settled by anyone else until the commit.
    """
    query = _OPEN_OF_ROUND if ids is None else _OPEN_OF_ROUND.where(_INVOCATIONS.c.id.in_(list(ids)))
    return tuple(session.connection().scalars(query, {"round": round_id}))
