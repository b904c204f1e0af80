"""MCP sessions, usable by any worker: one row for each connection and scope, its id sealed."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import ForeignKey, String, UniqueConstraint, bindparam, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from models.base import Base, Configuration, EnumByValue, PublicId, new_id, utc_now
from models.database import WriteSession
from models.payload import insert_ignoring_conflict


class SessionState(StrEnum):
    """Whether the stored session may be used."""

    OPEN = "open"
    CLOSED = "closed"


class McpSession(Base):
    """A session with one server for one scope; never shared between keys."""

    __tablename__ = "mcp_sessions"
    __table_args__ = (UniqueConstraint("connection_id", "scope"),)

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    connection_id: Mapped[str] = mapped_column(PublicId, ForeignKey("connections.id", ondelete="CASCADE"))
    scope: Mapped[str] = mapped_column(String(128))
    """`key:<id>`, `binding:<id>` or `conversation:<id>`."""
    state: Mapped[SessionState] = mapped_column(EnumByValue(SessionState), default=SessionState.CLOSED)
    connection_version: Mapped[int] = mapped_column(default=0)
    """The connection's version that the session was opened under; an edited connection opens a new one."""
    sealed: Mapped[bytes | None]
    """The transport's session as JSON, sealed; None while closed."""
    negotiated: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """What was negotiated, without the session id: {"protocolVersion", "era", "serverInfo"}."""
    last_event: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    row_version: Mapped[int] = mapped_column(default=0)
    """Counts changes; clearing and storing compare it, so of two workers one wins."""
    lease_token: Mapped[str | None] = mapped_column(String(36))
    lease_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    last_used_at: Mapped[datetime] = mapped_column(default=utc_now)


@dataclass(frozen=True)
class StoredSession:
    """A session row as a value."""

    id: str
    state: SessionState
    connection_version: int
    sealed: bytes | None
    row_version: int


_STORED = select(
    McpSession.id,
    McpSession.state,
    McpSession.connection_version,
    McpSession.sealed,
    McpSession.row_version,
).where(McpSession.connection_id == bindparam("connection"), McpSession.scope == bindparam("scope_name"))


def load_session(session: Session, connection_id: str, scope: str) -> StoredSession | None:
    """Return the stored session of a scope, open or closed, or None."""
    row = session.execute(_STORED, {"connection": connection_id, "scope_name": scope}).one_or_none()
    return None if row is None else StoredSession(*row)


def claim_opening(
    session: WriteSession, connection_id: str, scope: str, token: str, lease: timedelta
) -> StoredSession | None:
    """Take the right to initialize a session, unless another holder's lease is still alive.

    Returns None when the right was taken; otherwise the row as the other holder left it, to wait for
    or, if it is open by now, to use.
    """
    now = utc_now()
    insert_ignoring_conflict(
        session,
        McpSession,
        {
            "id": new_id(),
            "connection_id": connection_id,
            "scope": scope,
            "state": SessionState.CLOSED,
            "connection_version": 0,
            "row_version": 0,
            "created_at": now,
            "last_used_at": now,
        },
    )
    taken = session.scalar(
        update(McpSession)
        .where(McpSession.connection_id == connection_id, McpSession.scope == scope)
        .where(McpSession.state == SessionState.CLOSED)
        .where(McpSession.lease_expires_at.is_(None) | (McpSession.lease_expires_at <= now))
        .values(lease_token=token, lease_expires_at=now + lease)
        .returning(McpSession.id)
    )
    return None if taken is not None else load_session(session, connection_id, scope)


@dataclass(frozen=True)
class OpenedSession:
    """What initializing brought, sealed."""

    sealed: bytes
    negotiated: dict[str, JSON]
    connection_version: int


def store_opened(
    session: WriteSession, connection_id: str, scope: str, token: str, opened: OpenedSession
) -> StoredSession | None:
    """Store a session that the holder of `token` opened; None when the lease was lost meanwhile."""
    changed = session.scalar(
        update(McpSession)
        .where(McpSession.connection_id == connection_id, McpSession.scope == scope)
        .where(McpSession.lease_token == token)
        .values(
            state=SessionState.OPEN,
            sealed=opened.sealed,
            negotiated=opened.negotiated,
            connection_version=opened.connection_version,
            row_version=McpSession.row_version + 1,
            lease_token=None,
            lease_expires_at=None,
            last_used_at=utc_now(),
        )
        .returning(McpSession.id)
    )
    return None if changed is None else load_session(session, connection_id, scope)


def release_opening(session: WriteSession, connection_id: str, scope: str, token: str) -> None:
    """Give the right to initialize back after a failure."""
    session.execute(
        update(McpSession)
        .where(McpSession.connection_id == connection_id, McpSession.scope == scope)
        .where(McpSession.lease_token == token)
        .values(lease_token=None, lease_expires_at=None)
    )


def clear_session(session: WriteSession, session_row_id: str, observed_version: int) -> bool:
    """Close a session that the server has forgotten, if it is still the one that was observed."""
    changed = session.scalar(
        update(McpSession)
        .where(McpSession.id == session_row_id, McpSession.row_version == observed_version)
        .values(state=SessionState.CLOSED, sealed=None, row_version=McpSession.row_version + 1)
        .returning(McpSession.id)
    )
    return changed is not None


def close_sessions_of(session: WriteSession, scope: str) -> tuple[tuple[str, bytes], ...]:
    """Close every open session of a scope; return (connection id, sealed session) of each for a DELETE."""
    rows = session.execute(
        select(McpSession.connection_id, McpSession.sealed).where(
            McpSession.scope == scope, McpSession.state == SessionState.OPEN
        )
    ).all()
    session.execute(
        update(McpSession)
        .where(McpSession.scope == scope, McpSession.state == SessionState.OPEN)
        .values(state=SessionState.CLOSED, sealed=None, row_version=McpSession.row_version + 1)
    )
    return tuple((connection_id, sealed) for connection_id, sealed in rows if sealed is not None)
