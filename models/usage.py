"""Usage: one row for each tool call and chat request that ended or was refused, written where it ended.

Rows are only ever appended, in the transaction that they tell of, so that every sum is a sum of rows.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Date, Index, Integer, String, case, func, select, tuple_
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.codes import InvocationOutcome, InvocationStatus
from models.base import Base, EnumByValue, PublicId, table_of, utc_now
from models.database import WriteSession


class UsageKind(StrEnum):
    """What was asked for."""

    TOOL_CALL = "tool_call"
    CHAT = "chat"


class UsageStatus(StrEnum):
    """How it ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    UNKNOWN = "unknown"
    """It was sent, and nobody knew whether it ran."""
    DENIED = "denied"
    """It was not allowed, and nothing was sent."""


class UsageRecord(Base):
    """One request of a key; no foreign keys, since usage outlives what it tells of."""

    __tablename__ = "usage_records"
    __table_args__ = (Index("ix_usage_records_key_id_day", "key_id", "day"),)

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    at: Mapped[datetime] = mapped_column(default=utc_now)
    day: Mapped[date] = mapped_column(Date, index=True)
    """The day of `at`, in UTC."""
    key_id: Mapped[str] = mapped_column(PublicId)
    kind: Mapped[UsageKind] = mapped_column(EnumByValue(UsageKind))
    tool: Mapped[str] = mapped_column(String(512), default="")
    """The exposed name, as it was asked for; empty for a chat request."""
    model: Mapped[str] = mapped_column(String(128), default="")
    """The neutral name; empty for a tool call."""
    round_id: Mapped[str | None] = mapped_column(PublicId, index=True)
    invocation_id: Mapped[str | None] = mapped_column(PublicId, unique=True)
    request_id: Mapped[str | None] = mapped_column(String(64))
    status: Mapped[UsageStatus] = mapped_column(EnumByValue(UsageStatus))
    code: Mapped[str | None] = mapped_column(String(64))
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cost: Mapped[int] = mapped_column(BigInteger, default=0)
    """In billionths of the installation's currency."""


@dataclass(frozen=True)
class Used:
    """A row to append."""

    key_id: str
    kind: UsageKind
    status: UsageStatus
    tool: str = ""
    model: str = ""
    round_id: str | None = None
    invocation_id: str | None = None
    request_id: str | None = None
    code: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0


_RECORDS = table_of(UsageRecord)
_INSERT = _RECORDS.insert()


def append_usage(session: WriteSession, *used: Used) -> None:
    """Append rows in the caller's transaction, in one statement."""
    if not used:
        return
    now = utc_now()
    session.connection().execute(
        _INSERT,
        [{**asdict(row), "tool": row.tool[:512], "at": now, "day": now.date()} for row in used],
    )


def usage_status(status: InvocationStatus, outcome: InvocationOutcome) -> UsageStatus:
    """Return how a tool call that was admitted ended."""
    if outcome is InvocationOutcome.UNKNOWN:
        return UsageStatus.UNKNOWN
    return UsageStatus(status.value)


class UsageGroup(StrEnum):
    """What usage is summed by."""

    KEY = "key"
    TOOL = "tool"
    MODEL = "model"
    DAY = "day"


@dataclass(frozen=True)
class UsageFilter:
    """Which rows are summed; None leaves a field open. Both days belong to the span."""

    key_id: str | None = None
    tool: str | None = None
    model: str | None = None
    round_id: str | None = None
    first_day: date | None = None
    last_day: date | None = None


@dataclass(frozen=True)
class UsageSum:
    """A sum of rows, and what they have in common: a value for each thing they were summed by."""

    group: tuple[Any, ...]
    requests: int
    tool_calls: int
    chats: int
    by_status: dict[UsageStatus, int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int


_COLUMNS: dict[UsageGroup, ColumnElement[Any]] = {
    UsageGroup.KEY: _RECORDS.c.key_id,
    UsageGroup.TOOL: _RECORDS.c.tool,
    UsageGroup.MODEL: _RECORDS.c.model,
    UsageGroup.DAY: _RECORDS.c.day,
}
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost")


def sum_usage(
    session: Session,
    wanted: UsageFilter,
    groups: Sequence[UsageGroup],
    *,
    after: Sequence[Any] | None = None,
    limit: int | None = None,
) -> list[UsageSum]:
    """Sum the rows by `groups`, in the order of their values; without groups, one sum of all.

    `after` is the group of the last sum of the page before.
    """
    columns = [_COLUMNS[group] for group in groups]
    query = select(
        *columns,
        func.count().label("requests"),
        *(_count(_RECORDS.c.kind == kind).label(kind.value) for kind in UsageKind),
        *(_count(_RECORDS.c.status == status).label(f"is_{status.value}") for status in UsageStatus),
        *(func.coalesce(func.sum(_RECORDS.c[name]), 0).label(name) for name in _TOKENS),
    ).where(*_conditions(wanted))
    if columns:
        query = query.group_by(*columns).order_by(*columns).limit(limit)
    if columns and after is not None:
        query = query.where(tuple_(*columns) > tuple_(*after, types=[column.type for column in columns]))
    return [_sum_of(row._mapping, row[: len(columns)]) for row in session.execute(query)]  # noqa: SLF001 - the public accessor of a row.


def load_usage(session: Session, round_id: str) -> list[UsageRecord]:
    """Return the rows of a round, oldest first."""
    query = select(UsageRecord).where(UsageRecord.round_id == round_id).order_by(UsageRecord.id)
    return list(session.scalars(query))


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _conditions(wanted: UsageFilter) -> list[ColumnElement[bool]]:
    equal = {"key_id": wanted.key_id, "tool": wanted.tool, "model": wanted.model, "round_id": wanted.round_id}
    conditions = [_RECORDS.c[name] == value for name, value in equal.items() if value is not None]
    if wanted.first_day is not None:
        conditions.append(_RECORDS.c.day >= wanted.first_day)
    if wanted.last_day is not None:
        conditions.append(_RECORDS.c.day <= wanted.last_day)
    return conditions


def _sum_of(row: Any, group: Sequence[Any]) -> UsageSum:
    return UsageSum(
        group=tuple(group),
        requests=row["requests"],
        tool_calls=row[UsageKind.TOOL_CALL.value],
        chats=row[UsageKind.CHAT.value],
        by_status={status: row[f"is_{status.value}"] for status in UsageStatus},
        # PostgreSQL sums whole numbers to decimals.
        **{name: int(row[name]) for name in _TOKENS},
    )
