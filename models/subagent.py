"""Subagent sessions: the child conversations that a conversation started, and their states.

Source: core-matrix subagent tools: states, ownership and depth.
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import CheckConstraint, ForeignKey, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.subagents import ROOT, SubagentPlace
from models.base import Base, EnumByValue, PublicId, new_id, utc_now


class SubagentScope(StrEnum):
    """How long a subagent lives."""

    CONVERSATION = "conversation"
    TURN = "turn"


class CloseState(StrEnum):
    """How far the closing of a subagent is."""

    OPEN = "open"
    REQUESTED = "requested"
    ACKNOWLEDGED = "acknowledged"
    CLOSED = "closed"
    FAILED = "failed"


class ObservedStatus(StrEnum):
    """What a subagent was last seen doing."""

    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class DerivedCloseStatus(StrEnum):
    """The closing of a subagent as its owner sees it."""

    OPEN = "open"
    CLOSE_REQUESTED = "close_requested"
    CLOSED = "closed"


_DERIVED = {
    CloseState.OPEN: DerivedCloseStatus.OPEN,
    CloseState.REQUESTED: DerivedCloseStatus.CLOSE_REQUESTED,
    CloseState.ACKNOWLEDGED: DerivedCloseStatus.CLOSE_REQUESTED,
    CloseState.CLOSED: DerivedCloseStatus.CLOSED,
    CloseState.FAILED: DerivedCloseStatus.CLOSED,
}


class SubagentSession(Base):
    """One subagent: who owns it, which conversation is its own, and how it stands."""

    __tablename__ = "subagent_sessions"
    __table_args__ = (
        CheckConstraint("depth >= 0", name="depth_counts_from_zero"),
        CheckConstraint("(scope = 'turn') = (origin_turn_id IS NOT NULL)", name="turn_scope_has_its_turn"),
        CheckConstraint("(depth = 0) = (parent_session_id IS NULL)", name="nested_below_its_parent"),
    )

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    owner_conversation_id: Mapped[str] = mapped_column(PublicId, ForeignKey("conversations.id"), index=True)
    conversation_id: Mapped[str] = mapped_column(PublicId, ForeignKey("conversations.id"), unique=True)
    parent_session_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("subagent_sessions.id"), index=True
    )
    """The session of the owner, where the owner is a subagent itself."""
    spawned_by_invocation_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("tool_invocations.id", ondelete="SET NULL"), unique=True
    )
    """The call that started it: a repeated call finds it here and starts no second one."""
    scope: Mapped[SubagentScope] = mapped_column(EnumByValue(SubagentScope))
    origin_turn_id: Mapped[str | None] = mapped_column(PublicId, index=True)
    """The turn that a subagent of scope turn ends with."""
    profile_key: Mapped[str] = mapped_column(String(255))
    depth: Mapped[int]
    close_state: Mapped[CloseState] = mapped_column(EnumByValue(CloseState), default=CloseState.OPEN)
    observed_status: Mapped[ObservedStatus] = mapped_column(
        EnumByValue(ObservedStatus), default=ObservedStatus.RUNNING
    )
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)

    @property
    def derived_close_status(self) -> DerivedCloseStatus:
        """The closing as the owner sees it."""
        return _DERIVED[self.close_state]


def find_session_of(session: Session, conversation_id: str | None) -> SubagentSession | None:
    """Return the subagent session whose own conversation this is; None for a root conversation."""
    if conversation_id is None:
        return None
    return session.scalar(select(SubagentSession).where(SubagentSession.conversation_id == conversation_id))


def place_of(found: SubagentSession | None) -> SubagentPlace:
    """Return where a conversation with this session stands."""
    return ROOT if found is None else SubagentPlace(found.depth)


def load_owned(session: Session, conversation_id: str) -> tuple[SubagentSession, ...]:
    """Return the subagents that a conversation started itself, oldest first; their own are not among them."""
    return tuple(
        session.scalars(
            select(SubagentSession)
            .where(SubagentSession.owner_conversation_id == conversation_id)
            .order_by(SubagentSession.id)
        )
    )


def find_spawned_by(session: Session, invocation_id: str) -> SubagentSession | None:
    """Return the subagent that a call started, or None."""
    return session.scalar(
        select(SubagentSession).where(SubagentSession.spawned_by_invocation_id == invocation_id)
    )
