"""The chain that seals the audit trail: links, their head, and the two functions that append and remove.

Events are appended unchained, so that no writer waits for another. Whoever holds the head's row chains them
in batches; see docs/decisions/0014-audit-chain.md. Triggers refuse every change of events and links, and
every removal that `prune` has not recorded in the head before.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, CheckConstraint, Integer, String, bindparam, delete, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.audit_chain import GENESIS, ChainedEvent, ChainHead, link_hash
from governance.canonical import JSON
from models.audit import AuditEvent, AuditFact, AuditKind, append_audit
from models.base import Base, Digest, table_of, utc_now
from models.database import ReadSession, WriteSession

SEAL_BATCH = 500
"""Events that one transaction chains: some 15 ms, for which SQLite holds its write lock."""

STRAGGLER_S = 60.0
"""How long an event may stay uncommitted behind a later one on PostgreSQL; statements end after 15 s.

One that takes longer still is chained when everything is, before a verification.
"""

HEAD_ID = 1


class AuditLink(Base):
    """The place of one event in the chain; no foreign key, so that a removed event leaves its link."""

    __tablename__ = "audit_links"

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False
    )
    event_id: Mapped[int] = mapped_column(BigInteger, unique=True)
    hash: Mapped[str] = mapped_column(Digest)


class AuditHead(Base):
    """The one row that says how far the trail is sealed, and from where it still has its events."""

    __tablename__ = "audit_head"
    __table_args__ = (CheckConstraint(f"id = {HEAD_ID}", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    length: Mapped[int] = mapped_column(BigInteger, default=0)
    hash: Mapped[str] = mapped_column(String(64), default=GENESIS)
    sealed_at: Mapped[datetime | None]
    low_event_id: Mapped[int] = mapped_column(BigInteger, default=0)
    """Every event up to this id is chained, or is found when everything is looked through."""
    pruned_length: Mapped[int] = mapped_column(BigInteger, default=0)
    """Links up to this number were removed on purpose."""
    pruned_hash: Mapped[str] = mapped_column(String(64), default=GENESIS)
    pruned_at: Mapped[datetime | None]


@dataclass(frozen=True)
class SealedHead:
    """The head as a value: where the chain ends, and where what is kept of it begins."""

    end: ChainHead
    start: ChainHead
    sealed_at: datetime | None
    pruned_at: datetime | None


@dataclass(frozen=True)
class Pruned:
    """What was removed: how many events, and the head from which the trail goes on."""

    removed: int
    start: ChainHead


def event_facts(row: AuditEvent) -> dict[str, JSON]:
    """Return an event as it is chained and shown."""
    return {
        "id": row.id,
        "at": row.at.isoformat(),
        "kind": row.kind.value,
        "actor": row.actor,
        "request_id": row.request_id,
        "round_id": row.round_id,
        "invocation_id": row.invocation_id,
        "tool_name": row.tool_name,
        "code": row.code,
        "arguments_digest": row.arguments_digest,
        "data": row.data,
    }


_LINKS = table_of(AuditLink)
_INSERT_LINKS = _LINKS.insert()
_HELD_HEAD = select(AuditHead).where(AuditHead.id == HEAD_ID).execution_options(populate_existing=True)
_UNCHAINED = (
    select(AuditEvent)
    .where(
        AuditEvent.id > bindparam("low"),
        ~select(AuditLink.number).where(AuditLink.event_id == AuditEvent.id).exists(),
    )
    .order_by(AuditEvent.id)
    .limit(bindparam("most"))
)
_NEXT_LINKS = (
    select(AuditLink)
    .where(AuditLink.number > bindparam("after"))
    .order_by(AuditLink.number)
    .limit(bindparam("most"))
)
_SETTLED = select(func.max(AuditEvent.id)).where(
    AuditEvent.id > bindparam("low"), AuditEvent.at < bindparam("before")
)
_NEWER = select(AuditEvent.id).where(AuditEvent.id > bindparam("low")).limit(1)


def load_head(session: Session) -> SealedHead:
    """Return the head as it is now."""
    row = session.scalars(_HELD_HEAD).one()
    return SealedHead(
        end=ChainHead(row.length, row.hash),
        start=ChainHead(row.pruned_length, row.pruned_hash),
        sealed_at=row.sealed_at,
        pruned_at=row.pruned_at,
    )


def is_behind(session: ReadSession) -> bool:
    """Say whether there may be events to chain; cheap, for a sealer that is mostly idle."""
    low = session.scalar(select(AuditHead.low_event_id).where(AuditHead.id == HEAD_ID)) or 0
    return session.scalar(_NEWER, {"low": low}) is not None


def seal_batch(session: WriteSession, *, everything: bool = False, most: int = SEAL_BATCH) -> int:
    """Chain the oldest events that are not, and return how many; 0 too where somebody else is at it.

    The head's row is the lease: it is held for this transaction and free again whatever becomes of us. With
    `everything` the whole trail is looked through for events without a link, and another sealer is waited
    for.
    """
    head = session.scalars(_HELD_HEAD.with_for_update(skip_locked=not everything)).one_or_none()
    if head is None:
        return 0
    low = 0 if everything else head.low_event_id
    events = session.scalars(_UNCHAINED, {"low": low, "most": most}).all()
    if events:
        _chain(session, head, events)
    if len(events) < most:
        head.low_event_id = _settled(session, head, events)
    session.flush()
    return len(events)


def _chain(session: WriteSession, head: AuditHead, events: Sequence[AuditEvent]) -> None:
    number, previous = head.length, head.hash
    links: list[dict[str, object]] = []
    for event in events:
        number += 1
        previous = link_hash(previous, number, event_facts(event))
        links.append({"number": number, "event_id": event.id, "hash": previous})
    session.connection().execute(_INSERT_LINKS, links)
    head.length, head.hash, head.sealed_at = number, previous, utc_now()


def _settled(session: WriteSession, head: AuditHead, events: Sequence[AuditEvent]) -> int:
    """Return the id up to which no event can come to light any more."""
    if session.get_bind().dialect.name == "sqlite":
        # One writer at a time: ids become visible in their order.
        return events[-1].id if events else head.low_event_id
    before = utc_now() - timedelta(seconds=STRAGGLER_S)
    return session.scalar(_SETTLED, {"low": head.low_event_id, "before": before}) or head.low_event_id


def load_links(session: Session, after: int, most: int) -> list[ChainedEvent]:
    """Return the next links after a number, each with its event as it is now."""
    links = session.scalars(_NEXT_LINKS, {"after": after, "most": most}).all()
    wanted = select(AuditEvent).where(AuditEvent.id.in_([link.event_id for link in links]))
    events = {event.id: event for event in session.scalars(wanted)}
    return [
        ChainedEvent(
            link.number,
            link.event_id,
            link.hash,
            event_facts(events[link.event_id]) if link.event_id in events else None,
        )
        for link in links
    ]


def links_of(session: Session, event_ids: Sequence[int]) -> dict[int, AuditLink]:
    """Return the links of events by the event's id; an event that is not sealed yet has none."""
    if not event_ids:
        return {}
    rows = session.scalars(select(AuditLink).where(AuditLink.event_id.in_(list(event_ids))))
    return {row.event_id: row for row in rows}


def hashes_at(session: Session, numbers: Collection[int]) -> dict[int, str]:
    """Return the hashes of links by number, the one that pruning left as the start included."""
    start = load_head(session).start
    rows = session.scalars(select(AuditLink).where(AuditLink.number.in_(list(numbers))))
    return {start.length: start.hash, **{row.number: row.hash for row in rows}}


def prune(session: WriteSession, before: datetime, actor: str, request_id: str | None) -> Pruned:
    """Remove the sealed events older than `before`, up to the first that is not; nothing that is unsealed.

    The head keeps where the rest begins, and the removal is itself an event of the trail.
    """
    head = session.scalars(_HELD_HEAD.with_for_update()).one()
    first_kept = session.scalar(
        select(func.min(AuditLink.number))
        .join(AuditEvent, AuditEvent.id == AuditLink.event_id)
        .where(AuditEvent.at >= before)
    )
    last = head.length if first_kept is None else first_kept - 1
    if last <= head.pruned_length:
        return Pruned(0, ChainHead(head.pruned_length, head.pruned_hash))
    hash_ = session.scalars(select(AuditLink.hash).where(AuditLink.number == last)).one()
    removed = last - head.pruned_length
    # The triggers let go what the head says was pruned, and nothing else.
    session.execute(
        # SQLite gives the ids of the newest rows out again once they are gone, so the next look is at all.
        update(AuditHead).values(pruned_length=last, pruned_hash=hash_, pruned_at=utc_now(), low_event_id=0),
        execution_options={"synchronize_session": False},
    )
    gone = select(AuditLink.event_id).where(AuditLink.number <= last)
    session.execute(
        delete(AuditEvent).where(AuditEvent.id.in_(gone)), execution_options={"synchronize_session": False}
    )
    session.execute(
        delete(AuditLink).where(AuditLink.number <= last), execution_options={"synchronize_session": False}
    )
    fact = AuditFact(
        AuditKind.AUDIT_PRUNED,
        actor=actor,
        request_id=request_id,
        data={"before": before.isoformat(), "through": last, "hash": hash_, "removed": removed},
    )
    append_audit(session, fact)
    return Pruned(removed, ChainHead(last, hash_))
