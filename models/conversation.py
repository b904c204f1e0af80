"""Conversations: what tasks and subagents belong to, and what a conversation overrides."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from models.base import Base, Configuration, EnumByValue, PublicId, new_id, utc_now
from models.database import WriteSession


class ConversationState(StrEnum):
    """Whether a conversation takes new work."""

    ACTIVE = "active"
    CLOSING = "closing"
    CLOSED = "closed"


class Addressability(StrEnum):
    """Who a conversation was made for: a person and its agent, or agents among themselves.

    It refuses nothing. Whoever writes into a conversation now, a program, a key or the spawn of a subagent,
    is an agent; what it tells apart is the sender of a message, and messages come with the agent loop.
    Source: core-matrix subagent tools, spawn and send.
    """

    ANYONE = "anyone"
    AGENTS = "agents"


class Conversation(Base):
    """A conversation of a key, and of the program version that serves it where one does."""

    __tablename__ = "conversations"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    key_id: Mapped[str] = mapped_column(PublicId, index=True)
    """The key that it belongs to; no foreign key, since a conversation outlives a deleted key."""
    program_version_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("program_versions.id"), index=True
    )
    parent_conversation_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("conversations.id"), index=True
    )
    """The conversation that a subagent's was forked from."""
    state: Mapped[ConversationState] = mapped_column(
        EnumByValue(ConversationState), default=ConversationState.ACTIVE
    )
    addressability: Mapped[Addressability] = mapped_column(
        EnumByValue(Addressability), default=Addressability.ANYONE
    )
    override_payload: Mapped[dict[str, JSON]] = mapped_column(Configuration, default=dict)
    """What the conversation changes of the program's default configuration; `subagents` wins over it."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)


def add_conversation(
    session: WriteSession,
    key_id: str,
    program_version_id: str | None,
    override_payload: dict[str, JSON] | None = None,
    parent: Conversation | None = None,
) -> Conversation:
    """Insert a conversation; one with a parent is a subagent's, which only agents may write into."""
    conversation = Conversation(
        id=new_id(),
        key_id=key_id,
        program_version_id=program_version_id,
        parent_conversation_id=None if parent is None else parent.id,
        state=ConversationState.ACTIVE,
        addressability=Addressability.ANYONE if parent is None else Addressability.AGENTS,
        override_payload=dict(override_payload or {}),
    )
    session.add(conversation)
    session.flush()
    return conversation


def find_conversation(session: Session, conversation_id: str, key_id: str) -> Conversation | None:
    """Return a conversation of a key, or None."""
    row = session.get(Conversation, conversation_id)
    return row if row is not None and row.key_id == key_id else None
