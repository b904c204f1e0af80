"""Slots of connections: which calls a server works on now, of all workers, and who waits in which order.

A row is a ticket: it waits until it is granted. The connection's row is the lock, so whoever takes a ticket
or is granted a slot does so alone. What a dead worker held ends with its lease, and a waiter that does not
come back is passed over; nothing has to be cleaned up for the queue to go on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, ColumnElement, ForeignKey, Index, String, bindparam, case, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, PublicId, table_of, utc_now
from models.connection import Connection
from models.database import WriteSession

SLOT_LEASE_S = 20.0
"""How long the slots of a dead worker stay taken."""

FIRST_LOOK_S = 0.2
"""When the first in the queue looks again, if nobody wakes it."""

LOOK_GROWTH = 1.6
"""How much longer each further look waits: a queue of any length costs a round a bounded history."""

LONGEST_LOOK_S = 2.0
"""The longest wait between looks; for a long queue timeout, the share of it that `LOOKS_IN_TIMEOUT` makes."""

LOOKS_IN_TIMEOUT = 12
"""Looks within a queue timeout, once their wait has grown: a round's history stays bounded."""

PATIENCE_S = 15.0
"""How long a waiter may be late before it is passed over; it keeps its place for when it comes."""

KEPT_S = 600.0
"""How long the ticket of a waiter that never came back is kept."""


class ConnectionSlot(Base):
    """A ticket of one call: it waits, or it holds a slot since `granted_at`, until `expires_at` at most."""

    __tablename__ = "connection_slots"
    __table_args__ = (Index("ix_connection_slots_connection_id_number", "connection_id", "number"),)

    call_key: Mapped[str] = mapped_column(String(128), primary_key=True)
    """The call's idempotency key: every attempt of it has one ticket."""
    connection_id: Mapped[str] = mapped_column(PublicId, ForeignKey("connections.id", ondelete="CASCADE"))
    number: Mapped[int] = mapped_column(BigInteger)
    """The order of arrival within the connection."""
    workflow_id: Mapped[str] = mapped_column(String(255))
    position: Mapped[int]
    lease_token: Mapped[str] = mapped_column(String(36))
    """Whose lease it is; one that was replaced neither renews nor gives up the slot."""
    looks: Mapped[int] = mapped_column(default=0)
    queued_at: Mapped[datetime] = mapped_column(default=utc_now)
    granted_at: Mapped[datetime | None]
    expires_at: Mapped[datetime]


@dataclass(frozen=True)
class SlotRequest:
    """A call that wants a slot. With `must` it gets one whatever the cap: its server works on it already."""

    connection_id: str
    cap: int
    queue_timeout_s: float
    call_key: str
    workflow_id: str
    position: int
    lease_token: str
    lease_s: float
    must: bool = False


@dataclass(frozen=True)
class Waiter:
    """A call that a free slot is for: which workflow to wake, and at which position the call is."""

    workflow_id: str
    position: int


@dataclass(frozen=True)
class SlotGranted:
    """The slot is the call's; `wake` is the next waiter where more slots are free."""

    wake: Waiter | None = None


@dataclass(frozen=True)
class SlotBusy:
    """No slot is free: look again after `wait_s`; `ahead` calls are before this one in the queue."""

    ahead: int
    wait_s: float


@dataclass(frozen=True)
class QueueTimedOut:
    """The call has waited as long as it may; its ticket is gone."""

    waited_s: float


_SLOTS = table_of(ConnectionSlot)
_CONNECTIONS = table_of(Connection)
# Not the strongest lock: rows that refer to the connection may be inserted meanwhile.
_LOCK = (
    select(_CONNECTIONS.c.id)
    .where(_CONNECTIONS.c.id == bindparam("connection"))
    .with_for_update(key_share=True)
)
_OWN = select(ConnectionSlot).where(ConnectionSlot.call_key == bindparam("call"))
_OF_CONNECTION = _SLOTS.c.connection_id == bindparam("connection")
_LIVE = _SLOTS.c.expires_at > bindparam("now")
_WAITS = _LIVE & _SLOTS.c.granted_at.is_(None)


def _counted(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


_OTHERS = select(
    _counted(_LIVE & _SLOTS.c.granted_at.is_not(None)).label("held"),
    _counted(_WAITS & (_SLOTS.c.number < bindparam("number"))).label("ahead"),
    _counted(_WAITS).label("waiting"),
    _counted(_SLOTS.c.expires_at < bindparam("long_ago")).label("forgotten"),
    func.coalesce(func.max(_SLOTS.c.number), 0).label("last"),
).where(_OF_CONNECTION, _SLOTS.c.call_key != bindparam("call"))
_NEXT = (
    select(_SLOTS.c.workflow_id, _SLOTS.c.position)
    .where(_OF_CONNECTION, _LIVE, _SLOTS.c.granted_at.is_(None))
    .order_by(_SLOTS.c.number)
    .limit(1)
)
_SWEEP = _SLOTS.delete().where(_OF_CONNECTION, _SLOTS.c.expires_at < bindparam("long_ago"))
_RELEASE = (
    _SLOTS.delete()
    .where(_SLOTS.c.call_key == bindparam("call"), _SLOTS.c.lease_token == bindparam("token"))
    .returning(_SLOTS.c.connection_id)
)
_RENEW = (
    _SLOTS.update()
    .where(_SLOTS.c.lease_token.in_(bindparam("tokens", expanding=True)))
    .values(expires_at=bindparam("until"))
)
_NO_NUMBER = 2**62
"""Behind everybody."""


def take_slot(session: WriteSession, wanted: SlotRequest) -> SlotGranted | SlotBusy | QueueTimedOut:
    """Give a call a slot of its connection, in order of arrival, or say how to go on waiting."""
    session.execute(_LOCK, {"connection": wanted.connection_id})
    now = utc_now()
    long_ago = now - timedelta(seconds=KEPT_S)
    own = session.scalar(_OWN, {"call": wanted.call_key})
    number = _NO_NUMBER if own is None else own.number
    of_connection = {"connection": wanted.connection_id, "long_ago": long_ago}
    others = session.execute(
        _OTHERS, {**of_connection, "call": wanted.call_key, "now": now, "number": number}
    ).one()
    if others.forgotten:
        session.execute(_SWEEP, of_connection)
    if own is None:
        own = ConnectionSlot(
            call_key=wanted.call_key,
            connection_id=wanted.connection_id,
            number=others.last + 1,
            workflow_id=wanted.workflow_id,
            position=wanted.position,
            queued_at=now,
            looks=0,
        )
        session.add(own)
    own.lease_token = wanted.lease_token
    # A slot that was granted before is still this call's, if its lease has not ended.
    kept = own.granted_at is not None and own.expires_at > now
    if wanted.must or kept or others.held + others.ahead < wanted.cap:
        own.granted_at = own.granted_at if kept else now
        own.expires_at = now + timedelta(seconds=wanted.lease_s)
        session.flush()
        is_room = others.waiting and others.held + 1 < wanted.cap
        return SlotGranted(_waiter(session, wanted.connection_id, now) if is_room else None)
    waited_s = (now - own.queued_at).total_seconds()
    if waited_s >= wanted.queue_timeout_s:
        session.delete(own)
        session.flush()
        return QueueTimedOut(waited_s)
    wait_s = min(_look_after_s(own.looks, others.ahead, wanted), wanted.queue_timeout_s - waited_s)
    own.granted_at = None
    own.looks += 1
    own.expires_at = now + timedelta(seconds=wait_s + PATIENCE_S)
    session.flush()
    return SlotBusy(others.ahead, wait_s)


def release_slot(session: WriteSession, call_key: str, lease_token: str) -> Waiter | None:
    """Give a slot, or a place in the queue, up; return who is next."""
    freed = session.connection().scalar(_RELEASE, {"call": call_key, "token": lease_token})
    return None if freed is None else _waiter(session, freed, utc_now())


def drop_ticket(session: WriteSession, call_key: str) -> None:
    """Take a call out of the queue, whoever put it there."""
    session.connection().execute(_SLOTS.delete().where(_SLOTS.c.call_key == call_key))


def drop_waiting(session: WriteSession, workflow_id: str) -> None:
    """Take the calls of a workflow that still wait out of their queues."""
    session.connection().execute(
        _SLOTS.delete().where(_SLOTS.c.workflow_id == workflow_id, _SLOTS.c.granted_at.is_(None))
    )


def renew_slots(session: WriteSession, lease_tokens: Iterable[str], lease_s: float) -> None:
    """Let the slots of these leases last from now."""
    until = utc_now() + timedelta(seconds=lease_s)
    session.connection().execute(_RENEW, {"tokens": list(lease_tokens), "until": until})


def load_slots(session: Session, connection_id: str) -> tuple[ConnectionSlot, ...]:
    """Return the tickets of a connection in order of arrival, as they are now."""
    query = select(ConnectionSlot).where(ConnectionSlot.connection_id == connection_id)
    return tuple(session.scalars(query.order_by(ConnectionSlot.number)))


def _waiter(session: Session, connection_id: str, now: datetime) -> Waiter | None:
    row = session.connection().execute(_NEXT, {"connection": connection_id, "now": now}).one_or_none()
    return None if row is None else Waiter(row.workflow_id, row.position)


def _look_after_s(looks: int, ahead: int, wanted: SlotRequest) -> float:
    """Say when to look again: later the further behind, and later each time."""
    longest = max(LONGEST_LOOK_S, wanted.queue_timeout_s / LOOKS_IN_TIMEOUT)
    # The exponent is bounded, so that no power of it grows out of a float.
    grown = FIRST_LOOK_S * (1 + ahead // wanted.cap) * LOOK_GROWTH ** min(looks, 30)
    return float(min(grown, longest))
