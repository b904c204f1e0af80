"""The account of a key: what it may spend, and what it has spent in the windows of now.

Limits and counters are one row, so that a check is two statements: take the row, write it back. Whoever holds
the row holds the account; on PostgreSQL the others wait, on SQLite there is one writer anyway. How many calls
run at once is counted from the calls' own rows, so that no counter of them can be left behind.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    ForeignKey,
    bindparam,
    case,
    func,
    literal_column,
    select,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.quotas import (
    LIMIT_FIELDS,
    ONE_CHAT,
    Demand,
    Exceeded,
    Limits,
    Spent,
    charged,
    denied,
    judge,
    judge_concurrency,
    nothing_spent,
    spent_at,
)
from models.base import Base, PublicId, new_id, table_of, utc_now
from models.database import WriteSession
from models.invocation import ToolInvocation
from models.key import ApiKey
from models.round import Round


class KeyQuota(Base):
    """Limits of a key and its counters; a key without a row has no limits and costs no statement."""

    __tablename__ = "key_quotas"

    key_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("api_keys.id", ondelete="CASCADE"), primary_key=True
    )
    requests_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    requests_per_day: Mapped[int | None] = mapped_column(BigInteger)
    tool_calls_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    tool_calls_per_day: Mapped[int | None] = mapped_column(BigInteger)
    concurrent_calls: Mapped[int | None] = mapped_column(BigInteger)
    budget_per_day: Mapped[int | None] = mapped_column(BigInteger)
    budget_per_month: Mapped[int | None] = mapped_column(BigInteger)
    minute: Mapped[datetime]
    """When the minute began that `minute_…` counts; likewise `day` and `month`."""
    day: Mapped[datetime]
    month: Mapped[datetime]
    minute_requests: Mapped[int] = mapped_column(BigInteger, default=0)
    minute_calls: Mapped[int] = mapped_column(BigInteger, default=0)
    day_requests: Mapped[int] = mapped_column(BigInteger, default=0)
    day_calls: Mapped[int] = mapped_column(BigInteger, default=0)
    day_cost: Mapped[int] = mapped_column(BigInteger, default=0)
    month_cost: Mapped[int] = mapped_column(BigInteger, default=0)
    last_running: Mapped[int] = mapped_column(BigInteger, default=0)
    """How many other calls ran when the last one was judged; written by the statement that judges."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)


class ChatLease(Base):
    """A chat request under way, of a key whose concurrent calls are limited; it ends by itself."""

    __tablename__ = "chat_leases"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    key_id: Mapped[str] = mapped_column(PublicId, index=True)
    """No foreign key: whoever inserts a lease holds the account and must not wait for the key's row."""
    expires_at: Mapped[datetime]


_QUOTAS = table_of(KeyQuota)
_LEASES = table_of(ChatLease)
_INVOCATIONS = table_of(ToolInvocation)
_ROUNDS = table_of(Round)
_COUNTERS = ("minute_requests", "minute_calls", "day_requests", "day_calls", "day_cost", "month_cost")
_WINDOWS = ("minute", "day", "month")

_TAKE = select(_QUOTAS).where(_QUOTAS.c.key_id == bindparam("key")).with_for_update()
_LOOK = select(_QUOTAS).where(_QUOTAS.c.key_id == bindparam("key"))

_CALLS_NOW = (
    select(func.count())
    .select_from(_INVOCATIONS)
    .join(_ROUNDS, _ROUNDS.c.id == _INVOCATIONS.c.round_id)
    # Written out, not bound: only so does SQLite see that the index of running calls holds them all.
    .where(_INVOCATIONS.c.status == literal_column("'running'"))
    .where(_ROUNDS.c.key_id == bindparam("key"), _INVOCATIONS.c.id != bindparam("own", type_=PublicId))
    .scalar_subquery()
)
_CHATS_NOW = (
    select(func.count())
    .select_from(_LEASES)
    .where(_LEASES.c.key_id == bindparam("key"), _LEASES.c.expires_at > bindparam("now"))
    .scalar_subquery()
)
_NOW = select((_CALLS_NOW + _CHATS_NOW).label("running"))
_RUNNING = select(
    bindparam("key", type_=PublicId).label("key_id"), (_CALLS_NOW + _CHATS_NOW).label("running")
).subquery("live")

_WRITE = (
    _QUOTAS.update()
    .where(_QUOTAS.c.key_id == bindparam("key"))
    .values({name: bindparam(f"new_{name}", type_=_QUOTAS.c[name].type) for name in (*_COUNTERS, *_WINDOWS)})
)
_WRITE_IF_FREE = (
    _QUOTAS.update()
    .where(_QUOTAS.c.key_id == _RUNNING.c.key_id)
    .values(
        {
            **{name: bindparam(f"new_{name}", type_=_QUOTAS.c[name].type) for name in _WINDOWS},
            **{
                name: case(
                    (
                        _RUNNING.c.running < _QUOTAS.c.concurrent_calls,
                        bindparam(f"new_{name}", type_=_QUOTAS.c[name].type),
                    ),
                    else_=bindparam(f"refused_{name}", type_=_QUOTAS.c[name].type),
                )
                for name in _COUNTERS
            },
            "last_running": _RUNNING.c.running,
        }
    )
    .returning(_QUOTAS.c.last_running)
)
_CLOSE_LEASE = _LEASES.delete().where(
    _LEASES.c.key_id == bindparam("key"),
    (_LEASES.c.id == bindparam("lease")) | (_LEASES.c.expires_at <= bindparam("now")),
)
_GIVE_BACK = (
    _QUOTAS.update()
    # Nothing was taken from an account that was opened after the call was.
    .where(_QUOTAS.c.key_id == bindparam("key"), _QUOTAS.c.created_at <= bindparam("since"))
    .values(
        day_cost=_QUOTAS.c.day_cost
        - case((_QUOTAS.c.day == bindparam("of_day"), bindparam("amount", type_=BigInteger)), else_=0),
        month_cost=_QUOTAS.c.month_cost
        - case((_QUOTAS.c.month == bindparam("of_month"), bindparam("amount", type_=BigInteger)), else_=0),
    )
)


def spend(
    session: WriteSession, key_id: str, demand: Demand, own_id: str, now: datetime | None = None
) -> Exceeded | None:
    """Take a demand from a key's account, or say which limit forbids it; two statements.

    A demand that is refused is taken as far as its requests go. `own_id` is the invocation that asks, which
    is not to count as running beside itself; any new id for what is no invocation.
    """
    return _spend(session, key_id, demand, own_id, now or utc_now())[1]


def spend_chat(session: WriteSession, key_id: str, lease_id: str, lease_s: float) -> Exceeded | None:
    """Take a chat request from a key's account, or say which limit forbids it.

    Where calls at once are limited it then counts as running, until it is closed or the time is over.
    """
    now = utc_now()
    limits, exceeded = _spend(session, key_id, ONE_CHAT, lease_id, now)
    if exceeded is None and limits.concurrent_calls is not None:
        lease = {"id": lease_id, "key_id": key_id, "expires_at": now + timedelta(seconds=lease_s)}
        session.connection().execute(_LEASES.insert(), lease)
    return exceeded


def _spend(
    session: WriteSession, key_id: str, demand: Demand, own_id: str, now: datetime
) -> tuple[Limits, Exceeded | None]:
    connection = session.connection()
    row = _taken(connection, key_id)
    if row is None:
        return Limits(), None
    limits, before = _limits_of(row), spent_at(_spent_of(row), now)
    exceeded = judge(limits, before, demand, now)
    allowed, refused = charged(before, demand), denied(before, demand)
    if exceeded is not None or limits.concurrent_calls is None:
        written = refused if exceeded is not None else allowed
        connection.execute(_WRITE, {"key": key_id, **_values("new", written)})
        return limits, exceeded
    # A statement of its own, after the row is held: on PostgreSQL the one that waited for the row does not
    # see what was committed meanwhile.
    values = {"key": key_id, "own": own_id, "now": now, **_values("new", allowed), **_refused(refused)}
    return limits, judge_concurrency(limits, connection.execute(_WRITE_IF_FREE, values).scalar_one())


def spend_refused(session: WriteSession, key_id: str, requests: int, now: datetime | None = None) -> None:
    """Count requests that were refused for another reason than the quota; two statements."""
    now = now or utc_now()
    connection = session.connection()
    row = _taken(connection, key_id)
    if row is not None:
        after = denied(spent_at(_spent_of(row), now), Demand(requests))
        connection.execute(_WRITE, {"key": key_id, **_values("new", after)})


def spend_cost(session: WriteSession, key_id: str, cost: int, now: datetime | None = None) -> None:
    """Take money that only the answer told of; what it was asked for has been counted already."""
    now = now or utc_now()
    connection = session.connection()
    row = _taken(connection, key_id)
    if row is not None:
        after = charged(spent_at(_spent_of(row), now), Demand(0, 0, cost))
        connection.execute(_WRITE, {"key": key_id, **_values("new", after)})


def give_back(session: WriteSession, key_id: str, amount: int, since: datetime) -> None:
    """Give back what was taken at `since` for a call that then surely did not run; one statement."""
    of = nothing_spent(since)
    values = {"key": key_id, "since": since, "amount": amount, "of_day": of.day, "of_month": of.month}
    session.connection().execute(_GIVE_BACK, values)


def look(session: Session, key_id: str, demand: Demand, now: datetime | None = None) -> Exceeded | None:
    """Say which limit would forbid a demand now, concurrent calls left out, and take nothing."""
    now = now or utc_now()
    found = session.connection().execute(_LOOK, {"key": key_id}).mappings().one_or_none()
    if found is None:
        return None
    row = dict(found)
    return judge(_limits_of(row), spent_at(_spent_of(row), now), demand, now)


def find_quota(session: Session, key_id: str, *, for_update: bool = False) -> KeyQuota | None:
    """Return the account of a key, None where it has no limits."""
    return session.get(KeyQuota, key_id, with_for_update=for_update, populate_existing=True)


def set_quota(session: WriteSession, key: ApiKey, limits: Limits) -> KeyQuota:
    """Set the limits of a key; what it has spent already stays counted."""
    now = utc_now()
    quota = find_quota(session, key.id, for_update=True)
    if quota is None:
        fresh = nothing_spent(now)
        quota = KeyQuota(key_id=key.id, minute=fresh.minute, day=fresh.day, month=fresh.month, created_at=now)
        session.add(quota)
    for name in LIMIT_FIELDS:
        setattr(quota, name, getattr(limits, name))
    quota.updated_at = now
    key.has_quota = True
    session.flush()
    return quota


def remove_quota(session: WriteSession, key: ApiKey) -> None:
    """Take all limits of a key away, and with them what it has spent."""
    quota = find_quota(session, key.id, for_update=True)
    if quota is not None:
        session.delete(quota)
    key.has_quota = False
    session.flush()


def limits_of(quota: KeyQuota) -> Limits:
    """Return the limits of an account."""
    return Limits(**{name: getattr(quota, name) for name in LIMIT_FIELDS})


def spent_of(quota: KeyQuota, now: datetime) -> Spent:
    """Return what counts of an account at a time."""
    stored = Spent(**{name: getattr(quota, name) for name in (*_WINDOWS, *_COUNTERS)})
    return spent_at(stored, now)


def count_running(session: Session, key_id: str, now: datetime | None = None) -> int:
    """Return how many calls and chat requests of a key run now."""
    values = {"key": key_id, "own": new_id(), "now": now or utc_now()}
    return int(session.connection().execute(_NOW, values).scalar_one())


def close_lease(session: WriteSession, key_id: str, lease_id: str) -> None:
    """Count a chat request as running no more, and sweep those of its key that ended by themselves."""
    values = {"key": key_id, "lease": lease_id, "now": utc_now()}
    session.connection().execute(_CLOSE_LEASE, values)


def _taken(connection: Connection, key_id: str) -> Mapping[str, Any] | None:
    """Return the account of a key and hold it until the commit."""
    row = connection.execute(_TAKE, {"key": key_id}).mappings().one_or_none()
    return None if row is None else dict(row)


def _limits_of(row: Mapping[str, Any]) -> Limits:
    return Limits(**{name: row[name] for name in LIMIT_FIELDS})


def _spent_of(row: Mapping[str, Any]) -> Spent:
    return Spent(**{name: row[name] for name in (*_WINDOWS, *_COUNTERS)})


def _values(prefix: str, spent: Spent) -> dict[str, object]:
    return {f"{prefix}_{name}": getattr(spent, name) for name in (*_COUNTERS, *_WINDOWS)}


def _refused(spent: Spent) -> dict[str, object]:
    return {f"refused_{name}": getattr(spent, name) for name in _COUNTERS}
