"""The event stream of an MCP session: held by one worker at a time, under a lease in the session's row."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from governance.canonical import JSON
from models.base import utc_now
from models.database import WriteSession
from models.mcp_session import McpSession, SessionState


@dataclass(frozen=True)
class StreamGranted:
    """The caller holds the stream; `last_event_id` is where its predecessor left off."""

    last_event_id: str | None


@dataclass(frozen=True)
class StreamTaken:
    """Another worker holds the stream until `until`, or none is to be tried before."""

    until: datetime


@dataclass(frozen=True)
class SessionGone:
    """The session was closed or replaced: its stream is of no use."""


StreamClaim = StreamGranted | StreamTaken | SessionGone


@dataclass(frozen=True)
class StreamLease:
    """Whose lease on which session: the row, its version as observed, and the holder's token."""

    row_id: str
    row_version: int
    token: str


def claim_stream(session: WriteSession, lease: StreamLease, duration: timedelta) -> StreamClaim:
    """Take the lease on a session's stream unless another holder's is alive."""
    now = utc_now()
    granted = session.execute(
        update(McpSession)
        .where(McpSession.id == lease.row_id, McpSession.row_version == lease.row_version)
        .where(McpSession.state == SessionState.OPEN)
        .where(
            McpSession.stream_expires_at.is_(None)
            | (McpSession.stream_expires_at <= now)
            | (McpSession.stream_token == lease.token)
        )
        .values(stream_token=lease.token, stream_expires_at=now + duration)
        .returning(McpSession.last_event)
    ).one_or_none()
    if granted is not None:
        last_event: dict[str, JSON] = granted.last_event or {}
        event_id = last_event.get("id")
        return StreamGranted(event_id if isinstance(event_id, str) else None)
    return _standing(session, lease)


def _standing(session: Session, lease: StreamLease) -> StreamTaken | SessionGone:
    until = session.scalar(
        select(McpSession.stream_expires_at).where(
            McpSession.id == lease.row_id,
            McpSession.row_version == lease.row_version,
            McpSession.state == SessionState.OPEN,
        )
    )
    return SessionGone() if until is None else StreamTaken(until)


def renew_streams(
    session: WriteSession, leases: Sequence[StreamLease], duration: timedelta
) -> frozenset[str]:
    """Extend many leases by one statement; return the tokens of those that still stand."""
    # A row that is closed or opened anew changes its token, so that the token names the row's version too.
    kept = session.scalars(
        update(McpSession)
        .where(McpSession.id.in_([lease.row_id for lease in leases]))
        .where(McpSession.stream_token.in_([lease.token for lease in leases]))
        .where(McpSession.state == SessionState.OPEN)
        .values(stream_expires_at=utc_now() + duration)
        .returning(McpSession.stream_token)
    )
    return frozenset(token for token in kept if token is not None)


def store_event(
    session: WriteSession, lease: StreamLease, duration: timedelta, last_event: dict[str, JSON]
) -> bool:
    """Store the newest event and extend the lease; False where the stream is to be closed."""
    changed = session.scalar(
        update(McpSession)
        .where(McpSession.id == lease.row_id, McpSession.row_version == lease.row_version)
        .where(McpSession.stream_token == lease.token, McpSession.state == SessionState.OPEN)
        .values(stream_expires_at=utc_now() + duration, last_event=last_event)
        .returning(McpSession.id)
    )
    return changed is not None


def leave_stream(
    session: WriteSession, lease: StreamLease, pause: timedelta, last_event: dict[str, JSON] | None
) -> None:
    """Give the lease back; nobody tries the stream before `pause` is over, which may be none."""
    values: dict[str, JSON] = {
        "stream_token": None,
        "stream_expires_at": utc_now() + pause if pause else None,
    }
    if last_event is not None:
        values["last_event"] = last_event
    session.execute(
        update(McpSession)
        .where(McpSession.id == lease.row_id, McpSession.row_version == lease.row_version)
        .where(McpSession.stream_token == lease.token)
        .values(values)
    )
