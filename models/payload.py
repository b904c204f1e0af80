"""Payloads: canonical JSON bytes, stored once under their digest."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache

from sqlalchemy import BigInteger, Insert, bindparam, exists, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import digest
from models.base import Base, Digest, utc_now
from models.database import WriteSession


class Payload(Base):
    """The bytes of arguments, a result or an error, immutable."""

    __tablename__ = "payloads"

    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    content: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


def insert_ignoring_conflict(session: Session, table: type[Base], *rows: dict[str, object]) -> int:
    """Insert rows, leave rows alone that are there already, and tell how many were new.

    No exception is raised for a duplicate, so the transaction stays usable on PostgreSQL.
    """
    if not rows:
        return 0
    statement = _insert_ignoring(table, session.get_bind().dialect.name)
    return session.connection().execute(statement, list(rows)).rowcount


@cache
def _insert_ignoring(table: type[Base], dialect: str) -> Insert:
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def store_payload(session: WriteSession, content: bytes) -> str:
    """Store bytes, unless they are stored already, and return their digest."""
    return store_payloads(session, [content])[0]


def store_payloads(session: WriteSession, contents: Sequence[bytes]) -> list[str]:
    """Store contents, those that are not stored already, in one statement, and return their digests.

    Until the transaction ends nobody can delete those that are stored already: it is about to name them.
    """
    now = utc_now()
    names = [digest(content) for content in contents]
    # In one order everywhere, so that two transactions that store the same never wait for each other.
    rows: list[dict[str, object]] = [
        {"digest": name, "size": len(content), "content": content, "created_at": now}
        for name, content in sorted(dict(zip(names, contents, strict=True)).items())
    ]
    if rows:
        session.connection().execute(_storing(session.get_bind().dialect.name), rows)
    return names


@cache
def _storing(dialect: str) -> Insert:
    """Return the statement that stores a content, and locks the row of one that is stored already.

    SQLite has one writer, so nothing needs a lock there. On PostgreSQL the lock is that of a foreign key: it
    is shared by all who store the same, and only the deleting of the row waits for it. A row that another
    transaction inserts while this statement runs is left alone without a lock.
    """
    if dialect != "postgresql":
        return _insert_ignoring(Payload, dialect)
    names = ("digest", "size", "content", "created_at")
    columns = [Payload.__table__.c[name] for name in names]
    stored = (
        select(Payload.digest)
        .where(Payload.digest == bindparam("digest"))
        .with_for_update(read=True, key_share=True)
        .cte("stored")
    )
    new = select(*(bindparam(one.name, type_=one.type) for one in columns)).where(
        ~exists(select(stored.c.digest))
    )
    return postgresql.insert(Payload).from_select(list(names), new).on_conflict_do_nothing()


_CONTENT = select(Payload.content).where(Payload.digest == bindparam("digest"))


def load_payload(session: Session, name: str) -> bytes | None:
    """Return the bytes of a digest, or None."""
    content: bytes | None = session.connection().scalar(_CONTENT, {"digest": name})
    return content
