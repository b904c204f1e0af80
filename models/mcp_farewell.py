"""Sessions whose connection was deleted or dials otherwise now: kept until their servers were told.

A row holds what the one DELETE needs, as it was when the session was in use. The API writes it in the
transaction of the change; the sweep, which may dial, takes it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import String, delete, insert, literal_column, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from models.base import Base, EnumByValue, PublicId, new_id, utc_now
from models.connection import (
    Connection,
    ConnectionTarget,
    EventStream,
    Network,
    OnSessionLoss,
    SessionScope,
    Transport,
    target_of,
)
from models.database import WriteSession
from models.invocation import ToolInvocation
from models.mcp_session import McpSession, SessionState, clear_session
from models.send import ToolSend


class McpFarewell(Base):
    """One session to end at its server; it outlives its connection, so nothing refers to that."""

    __tablename__ = "mcp_farewells"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    connection_id: Mapped[str] = mapped_column(PublicId)
    """What the sealed values are bound to, together with the scope."""
    connection_version: Mapped[int]
    scope: Mapped[str] = mapped_column(String(128))
    url: Mapped[str] = mapped_column(String(2048))
    """The connection's address then: the headers belong to its origin."""
    session_url: Mapped[str] = mapped_column(String(2048))
    """The address that the session was opened at: its id goes to no other one."""
    network: Mapped[Network] = mapped_column(EnumByValue(Network))
    protocol_version: Mapped[str] = mapped_column(String(32))
    transport: Mapped[Transport] = mapped_column(EnumByValue(Transport))
    sealed_auth: Mapped[bytes | None]
    ca_bundle: Mapped[str | None]
    sealed_session: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)


@dataclass(frozen=True)
class Farewell:
    """A session to end, as a value: how its server was dialled, and the session as it was sealed."""

    id: str
    target: ConnectionTarget
    session_url: str
    scope: str
    sealed_session: bytes
    created_at: datetime


def end_sessions(session: WriteSession, target: ConnectionTarget) -> None:
    """Close every session of a connection that is deleted or dials otherwise from now on.

    `target` says how the connection was dialled until now.
    """
    # Closed rows are held too: a worker that is just opening a session cannot store it beside a deletion.
    rows = session.execute(
        select(McpSession.id, McpSession.scope, McpSession.state, McpSession.sealed, McpSession.negotiated)
        .where(McpSession.connection_id == target.id)
        .order_by(McpSession.id)
        .with_for_update()
    ).all()
    ended = [row for row in rows if row.state is SessionState.OPEN]
    if not ended:
        return
    _remember(session, target, [(row.scope, row.sealed, row.negotiated) for row in ended])
    session.execute(
        update(McpSession)
        .where(McpSession.connection_id == target.id, McpSession.state == SessionState.OPEN)
        .values(
            state=SessionState.CLOSED,
            sealed=None,
            row_version=McpSession.row_version + 1,
            stream_token=None,
            stream_expires_at=None,
        )
    )


def replace_session(session: WriteSession, session_row_id: str, observed_version: int) -> bool:
    """Close a session that an earlier version of its connection opened, if it is still the one observed."""
    row = session.execute(
        select(McpSession.connection_id, McpSession.scope, McpSession.sealed, McpSession.negotiated)
        .where(McpSession.id == session_row_id, McpSession.row_version == observed_version)
        .with_for_update()
    ).one_or_none()
    if row is None or not clear_session(session, session_row_id, observed_version):
        return False
    connection = session.get_one(Connection, row.connection_id)
    _remember(session, target_of(connection), [(row.scope, row.sealed, row.negotiated)])
    return True


def _remember(
    session: WriteSession,
    target: ConnectionTarget,
    ended: Sequence[tuple[str, bytes | None, Mapping[str, JSON] | None]],
) -> None:
    now = utc_now()
    farewells: list[dict[str, object]] = []
    for scope, sealed, negotiated in ended:
        agreed = negotiated or {}
        if sealed is None or agreed.get("hasSessionId") is False:
            continue  # The server keeps nothing that a DELETE could name.
        opened_at = agreed.get("url")
        farewells.append(
            {
                "id": new_id(),
                "connection_id": target.id,
                "connection_version": target.version,
                "scope": scope,
                "url": target.url,
                "session_url": opened_at if isinstance(opened_at, str) else target.url,
                "network": target.network,
                "protocol_version": target.protocol_version,
                "transport": target.transport,
                "sealed_auth": target.sealed_auth,
                "ca_bundle": target.ca_bundle,
                "sealed_session": sealed,
                "created_at": now,
            }
        )
    if farewells:
        session.execute(insert(McpFarewell), farewells)


def load_farewells(session: Session, limit: int) -> tuple[Farewell, ...]:
    """Return sessions that are to be ended at their servers, longest waiting first."""
    rows = session.scalars(select(McpFarewell).order_by(McpFarewell.created_at).limit(limit))
    return tuple(
        Farewell(row.id, _target(row), row.session_url, row.scope, row.sealed_session, row.created_at)
        for row in rows
    )


def _target(row: McpFarewell) -> ConnectionTarget:
    """Return how to dial; what matters to calls only has its default."""
    return ConnectionTarget(
        id=row.connection_id,
        name="",
        url=row.url,
        network=row.network,
        protocol_version=row.protocol_version,
        event_stream=EventStream.NEVER,
        session_scope=SessionScope.KEY,
        on_session_loss=OnSessionLoss.REPORT,
        refusal_statuses=(),
        enabled=True,
        version=row.connection_version,
        transport=row.transport,
        sealed_auth=row.sealed_auth,
        ca_bundle=row.ca_bundle,
    )


def load_sessions_in_call(session: Session, digests: Sequence[str]) -> frozenset[str]:
    """Return which sessions, by the digests of their ids, have a call under way.

    Calls outlive an edit of their connection, and most servers end them together with their session.
    """
    found = session.scalars(
        select(ToolSend.session_digest)
        .join(ToolInvocation, ToolInvocation.id == ToolSend.invocation_id)
        # Written out, not bound: only so does SQLite see that the index of running calls holds them all.
        .where(ToolInvocation.status == literal_column("'running'"))
        .where(ToolSend.session_digest.in_(digests), ToolSend.outcome.is_(None))
    )
    return frozenset(digest for digest in found if digest is not None)


def take_farewells(session: WriteSession, ids: Sequence[str], expired_before: datetime) -> frozenset[str]:
    """Remove rows, and return those of `ids` that the caller alone has to act on.

    Rows written before `expired_before` are removed without being returned, whether named or not.
    """
    session.execute(delete(McpFarewell).where(McpFarewell.created_at < expired_before))
    return frozenset(
        session.scalars(delete(McpFarewell).where(McpFarewell.id.in_(ids)).returning(McpFarewell.id))
    )
