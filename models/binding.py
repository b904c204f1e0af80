"""Tool bindings: the frozen decision of which implementation a tool name means, for a round or a task.

Append-only. A round has bindings for the tools that it calls, and its frozen set for the rest. A task has one
for every tool it may use, since its rounds come over days and freeze nothing of their own.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    String,
    UniqueConstraint,
    bindparam,
    event,
    select,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, Digest, EnumByValue, PublicId, new_id, table_of, utc_now
from models.database import WriteSession
from models.program import refuse_update
from models.tool import GATEWAY_SCOPE, CatalogTool, GovernanceMode, scope_of_version


class BindingReason(StrEnum):
    """Why this implementation was chosen."""

    SNAPSHOT_DEFAULT = "snapshot_default"
    EXPLICIT_OVERRIDE = "explicit_override"


class ToolBinding(Base):
    """A frozen decision; append-only. Two calls of one tool in a round share it."""

    __tablename__ = "tool_bindings"
    __table_args__ = (
        UniqueConstraint("round_id", "tool_name"),
        UniqueConstraint("task_id", "tool_name"),
        # What an invocation's reference points at, so that its ids always agree with its binding's.
        UniqueConstraint(
            "id",
            "tool_definition_id",
            "tool_implementation_id",
            "owner_id",
            name="uq_tool_bindings_whole_reference",
        ),
        ForeignKeyConstraint(
            ["tool_definition_id", "tool_implementation_id"],
            ["tool_implementations.tool_definition_id", "tool_implementations.id"],
            name="fk_tool_bindings_implementation_of_the_definition",
        ),
        CheckConstraint("(round_id IS NULL) <> (task_id IS NULL)", name="one_owner"),
        CheckConstraint("owner_id = coalesce(task_id, round_id)", name="owner_is_the_task_or_round"),
    )

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    round_id: Mapped[str | None] = mapped_column(PublicId, ForeignKey("rounds.id", ondelete="CASCADE"))
    task_id: Mapped[str | None] = mapped_column(PublicId, ForeignKey("tasks.id", ondelete="CASCADE"))
    owner_id: Mapped[str] = mapped_column(PublicId)
    """The task or the round, so that one reference of an invocation covers both kinds of owner."""
    tool_name: Mapped[str] = mapped_column(String(64))
    tool_definition_id: Mapped[str] = mapped_column(PublicId, ForeignKey("tool_definitions.id"), index=True)
    tool_implementation_id: Mapped[str] = mapped_column(PublicId, index=True)
    snapshot_digest: Mapped[str] = mapped_column(Digest, ForeignKey("tool_snapshots.digest"))
    governance_mode: Mapped[GovernanceMode] = mapped_column(EnumByValue(GovernanceMode))
    binding_reason: Mapped[BindingReason] = mapped_column(EnumByValue(BindingReason))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


event.listen(ToolBinding, "before_update", refuse_update)


@dataclass(frozen=True)
class BindingRef:
    """As much of a binding as an invocation of it refers to."""

    id: str
    tool_definition_id: str
    tool_implementation_id: str
    owner_id: str
    task_id: str | None
    snapshot_digest: str


BINDINGS = table_of(ToolBinding)
"""The table of bindings, for statements that need no objects."""

REFERENCE = (
    BINDINGS.c.id,
    BINDINGS.c.tool_definition_id,
    BINDINGS.c.tool_implementation_id,
    BINDINGS.c.owner_id,
    BINDINGS.c.task_id,
    BINDINGS.c.snapshot_digest,
)
"""The columns of a `BindingRef`, in its order."""


@dataclass(frozen=True)
class BindingOwner:
    """Whose bindings are written: a round's or a task's, and the program version that it is pinned to."""

    program_version_id: str | None
    round_id: str | None = None
    task_id: str | None = None


class ForeignScopeError(Exception):
    """A definition of another scope was to be bound."""

    def __init__(self, tool_name: str, scope: str) -> None:
        """Name the tool and its scope."""
        super().__init__(f"Tool {tool_name!r} of scope {scope!r} cannot be bound here.")


_INSERT = BINDINGS.insert()
_BY_ID = select(ToolBinding).where(ToolBinding.id.in_(bindparam("ids", expanding=True)))


def insert_bindings(
    session: WriteSession, owner: BindingOwner, tools: Sequence[CatalogTool]
) -> dict[str, str]:
    """Insert one binding for each tool and return their ids by tool name.

    Raises:
        ForeignScopeError: a definition belongs to neither the gateway nor the owner's program version.
    """
    if not tools:
        return {}
    _check_scopes(owner, tools)
    now = utc_now()
    rows = [
        {
            "id": new_id(),
            "round_id": owner.round_id,
            "task_id": owner.task_id,
            "owner_id": owner.task_id or owner.round_id,
            "tool_name": tool.exposed_name,
            "tool_definition_id": tool.definition_id,
            "tool_implementation_id": tool.implementation_id,
            "snapshot_digest": tool.snapshot_digest,
            "governance_mode": tool.governance_mode,
            "binding_reason": (
                BindingReason.SNAPSHOT_DEFAULT if tool.is_default else BindingReason.EXPLICIT_OVERRIDE
            ),
            "created_at": now,
        }
        for tool in tools
    ]
    session.connection().execute(_INSERT, rows)
    return {str(row["tool_name"]): str(row["id"]) for row in rows}


def _check_scopes(owner: BindingOwner, tools: Iterable[CatalogTool]) -> None:
    """Hold that a tool's version is the one that the owner is pinned to; the gateway's tools are anyone's."""
    allowed = {GATEWAY_SCOPE}
    if owner.program_version_id is not None:
        allowed.add(scope_of_version(owner.program_version_id))
    for tool in tools:
        if tool.scope not in allowed:
            raise ForeignScopeError(tool.exposed_name, tool.scope)


def load_bindings(session: Session, round_id: str) -> dict[str, ToolBinding]:
    """Return the bindings of a round by tool name."""
    rows = session.scalars(select(ToolBinding).where(ToolBinding.round_id == round_id))
    return {row.tool_name: row for row in rows}


def load_task_bindings(session: Session, task_id: str) -> dict[str, ToolBinding]:
    """Return the bindings of a task by tool name, in name order."""
    rows = session.scalars(
        select(ToolBinding).where(ToolBinding.task_id == task_id).order_by(ToolBinding.tool_name)
    )
    return {row.tool_name: row for row in rows}


def load_bindings_by_id(session: Session, ids: Collection[str]) -> dict[str, ToolBinding]:
    """Return bindings by id."""
    if not ids:
        return {}
    rows = session.scalars(_BY_ID, {"ids": sorted(ids)})
    return {row.id: row for row in rows}
