"""Tool bindings: the frozen decision of which implementation a round's tool name means."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, String, UniqueConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, Digest, EnumByValue, PublicId, new_id, utc_now
from models.tool import GovernanceMode


class BindingReason(StrEnum):
    """Why this implementation was chosen."""

    SNAPSHOT_DEFAULT = "snapshot_default"
    EXPLICIT_OVERRIDE = "explicit_override"


class ToolBinding(Base):
    """A frozen decision; append-only. Two calls of one tool in a round share it."""

    __tablename__ = "tool_bindings"
    __table_args__ = (
        UniqueConstraint("round_id", "tool_name"),
        # What an invocation's reference points at, so that its three ids always agree with its binding's.
        UniqueConstraint("id", "tool_definition_id", "tool_implementation_id"),
    )

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    round_id: Mapped[str] = mapped_column(PublicId, ForeignKey("rounds.id", ondelete="CASCADE"))
    tool_name: Mapped[str] = mapped_column(String(64))
    tool_definition_id: Mapped[str] = mapped_column(PublicId, ForeignKey("tool_definitions.id"), index=True)
    tool_implementation_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("tool_implementations.id"), index=True
    )
    snapshot_digest: Mapped[str] = mapped_column(Digest, ForeignKey("tool_snapshots.digest"))
    governance_mode: Mapped[GovernanceMode] = mapped_column(EnumByValue(GovernanceMode))
    binding_reason: Mapped[BindingReason] = mapped_column(EnumByValue(BindingReason))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


def load_bindings(session: Session, round_id: str) -> dict[str, ToolBinding]:
    """Return the bindings of a round by tool name."""
    rows = session.scalars(select(ToolBinding).where(ToolBinding.round_id == round_id))
    return {row.tool_name: row for row in rows}
