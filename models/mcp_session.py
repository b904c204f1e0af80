"""MCP sessions, usable by any worker: one row for each connection and scope, its id sealed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import ForeignKey, String, UniqueConstraint, bindparam, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from models.base import Base, Configuration, EnumByValue, PublicId, new_id, utc_now
from models.conversation import Conversation
from models.database import WriteSession
from models.key import ApiKey
from models.payload import insert_ignoring_conflict

LAST_EVENT_MAX_BYTES = 4096
"""Most of the last event, as JSON, that a session's row keeps."""


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
    """The newest event of the session's stream, at most `LAST_EVENT_MAX_BYTES`: {"id", "message", "at"}."""
    row_version: Mapped[int] = mapped_column(default=0)
    """Counts changes; clearing and storing compare it, so of two workers one wins."""
    lease_token: Mapped[str | None] = mapped_column(String(36))
    lease_expires_at: Mapped[datetime | None]
    stream_token: Mapped[str | None] = mapped_column(String(36))
    """Who holds the session's event stream: servers allow one, so of all workers one may."""
    stream_expires_at: Mapped[datetime | None]
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
    last_used_at: datetime


STORED_SESSION = (
    McpSession.scope,
    McpSession.id,
    McpSession.state,
    McpSession.connection_version,
    McpSession.sealed,
    McpSession.row_version,
    McpSession.last_used_at,
)
"""The columns of a scope and, from the second on, of its `StoredSession`, in its order."""

_STORED = select(*STORED_SESSION[1:]).where(
    McpSession.connection_id == bindparam("connection"), McpSession.scope == bindparam("scope_name")
)


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
    stream_token: str | None = None
    """Who holds the event stream already, which was opened with the session."""


def store_opened(
    session: WriteSession,
    connection_id: str,
    scope: str,
    token: str,
    opened: OpenedSession,
    stream_lease: timedelta = timedelta(0),
) -> StoredSession | None:
    """Store a session that the holder of `token` opened; None when the lease was lost meanwhile."""
    now = utc_now()
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
            stream_token=opened.stream_token,
            stream_expires_at=None if opened.stream_token is None else now + stream_lease,
            last_event=None,
            last_used_at=now,
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
        .values(
            state=SessionState.CLOSED,
            sealed=None,
            row_version=McpSession.row_version + 1,
            stream_token=None,
            stream_expires_at=None,
        )
        .returning(McpSession.id)
    )
    return changed is not None


def end_unused(session: WriteSession, unused: "UnusedSession") -> bool:
    """Close a session that nobody needs, unless it was replaced, or used again, since it was looked at."""
    untouched = session.scalar(
        select(McpSession.id)
        .where(McpSession.id == unused.id, McpSession.last_used_at == unused.last_used_at)
        .with_for_update()
    )
    return untouched is not None and clear_session(session, unused.id, unused.row_version)


def use_again(session: WriteSession, session_row_id: str, observed_version: int) -> bool:
    """Note that a session is in use from now on; False where it is not open any more."""
    used = session.scalar(
        update(McpSession)
        .where(McpSession.id == session_row_id, McpSession.row_version == observed_version)
        .where(McpSession.state == SessionState.OPEN)
        .values(last_used_at=utc_now())
        .returning(McpSession.id)
    )
    return used is not None


def touch_sessions(session: WriteSession, session_row_ids: Sequence[str]) -> None:
    """Note that sessions are in use now, so that they do not count as idle."""
    session.execute(
        update(McpSession).where(McpSession.id.in_(session_row_ids)).values(last_used_at=utc_now())
    )


@dataclass(frozen=True)
class UnusedSession:
    """An open session that nobody needs any more."""

    id: str
    connection_id: str
    scope: str
    sealed: bytes | None
    negotiated: Mapping[str, JSON]
    row_version: int
    last_used_at: datetime


def load_unused(session: Session, idle_since: datetime, limit: int) -> tuple[UnusedSession, ...]:
    """Return open sessions that were last used before `idle_since`, or whose key is deleted."""
    open_rows = select(
        McpSession.id,
        McpSession.connection_id,
        McpSession.scope,
        McpSession.sealed,
        McpSession.negotiated,
        McpSession.row_version,
        McpSession.last_used_at,
    ).where(McpSession.state == SessionState.OPEN)
    idle = session.execute(
        open_rows.where(McpSession.last_used_at < idle_since).order_by(McpSession.last_used_at).limit(limit)
    ).all()
    live = session.execute(
        open_rows.where(McpSession.last_used_at >= idle_since).order_by(McpSession.last_used_at).limit(limit)
    ).all()
    keyless = _without_key(session, [row.scope for row in live])
    rows = [*idle, *(row for row in live if row.scope in keyless)]
    return tuple(
        UnusedSession(
            row.id,
            row.connection_id,
            row.scope,
            row.sealed,
            row.negotiated or {},
            row.row_version,
            row.last_used_at,
        )
        for row in rows
    )


def _ids_in(scopes: Sequence[str], kind: str) -> dict[str, str]:
    """Return the id that each scope of a kind names; an address may follow it."""
    return {scope: scope.removeprefix(kind).partition("@")[0] for scope in scopes if scope.startswith(kind)}


def _without_key(session: Session, scopes: Sequence[str]) -> set[str]:
    """Return the scopes whose key, or whose conversation's key, does not exist any more.

    The session of a binding is left to the idle sweep.
    """
    key_of = _ids_in(scopes, "key:")
    conversation_of = _ids_in(scopes, "conversation:")
    owners = {
        row.id: row.key_id
        for row in session.execute(
            select(Conversation.id, Conversation.key_id).where(
                Conversation.id.in_(set(conversation_of.values()))
            )
        )
    }
    key_of |= {scope: owners[name] for scope, name in conversation_of.items() if name in owners}
    present = set(session.scalars(select(ApiKey.id).where(ApiKey.id.in_(set(key_of.values())))))
    return {scope for scope, key_id in key_of.items() if key_id not in present}
