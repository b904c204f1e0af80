"""Tools: sources, definitions, implementations, and the immutable snapshots and sets that rounds freeze.

The tables are those of the core document. A definition is a logical tool in one scope, an
implementation one candidate for it, a snapshot everything that a call needs to know, by digest.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from models.base import Base, Configuration, Digest, EnumByValue, PublicId, new_id, utc_now
from models.connection import Connection

GATEWAY_SCOPE = "gateway"
"""The scope of tools that belong to no agent program version: those of connections and of the core."""


class SourceKind(StrEnum):
    """Where an implementation comes from; chooses the runner."""

    CORE_MATRIX = "core_matrix"
    EXECUTION_RUNTIME = "execution_runtime"
    AGENT = "agent"
    KERNEL = "kernel"
    MCP = "mcp"


class GovernanceMode(StrEnum):
    """Which implementations a binding may choose."""

    RESERVED = "reserved"
    WHITELIST_ONLY = "whitelist_only"
    REPLACEABLE = "replaceable"


class ImplementationSource(Base):
    """Where code comes from: a kind and an identity inside it; for mcp the connection's id."""

    __tablename__ = "implementation_sources"
    __table_args__ = (UniqueConstraint("source_kind", "source_ref"),)

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    source_kind: Mapped[SourceKind] = mapped_column(EnumByValue(SourceKind))
    source_ref: Mapped[str] = mapped_column(String(255))
    connection_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("connections.id", ondelete="SET NULL"), index=True
    )
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class ToolDefinition(Base):
    """A logical tool in one scope, under the name that callers use."""

    __tablename__ = "tool_definitions"
    __table_args__ = (UniqueConstraint("scope", "tool_name"),)

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    scope: Mapped[str] = mapped_column(String(64), default=GATEWAY_SCOPE)
    tool_name: Mapped[str] = mapped_column(String(64))
    tool_kind: Mapped[str] = mapped_column(String(64))
    governance_mode: Mapped[GovernanceMode] = mapped_column(EnumByValue(GovernanceMode))
    retired_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class ToolImplementation(Base):
    """One candidate for a definition; at most one is the default."""

    __tablename__ = "tool_implementations"
    __table_args__ = (
        UniqueConstraint("tool_definition_id", "implementation_ref"),
        Index(
            "uq_tool_implementations_default",
            "tool_definition_id",
            unique=True,
            sqlite_where=text("is_default"),
            postgresql_where=text("is_default"),
        ),
    )

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    tool_definition_id: Mapped[str] = mapped_column(PublicId, ForeignKey("tool_definitions.id"))
    implementation_source_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("implementation_sources.id"), index=True
    )
    implementation_ref: Mapped[str] = mapped_column(String(512))
    upstream_name: Mapped[str] = mapped_column(String(512))
    is_default: Mapped[bool] = mapped_column(default=True)
    declared: Mapped[dict[str, JSON]] = mapped_column(Configuration)
    """The tool as its source declared it: description, schemas, annotations."""
    snapshot_digest: Mapped[str] = mapped_column(Digest, ForeignKey("tool_snapshots.digest"))
    retired_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)


class ToolSnapshotRow(Base):
    """An immutable snapshot under its digest: `governance.snapshots.ToolSnapshot` as JSON bytes."""

    __tablename__ = "tool_snapshots"

    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    content: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class FrozenSet(Base):
    """An immutable set of snapshots that rounds may share, under its digest."""

    __tablename__ = "frozen_sets"

    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    members: Mapped[bytes]
    """Canonical JSON bytes of {exposed name: snapshot digest}."""
    tool_count: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class PolicyOverlayRow(Base):
    """An operator's change of execution policy, in the order of `position`; later ones win."""

    __tablename__ = "policy_overlays"

    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    match: Mapped[dict[str, str]] = mapped_column(Configuration)
    execution_policy: Mapped[dict[str, JSON]] = mapped_column(Configuration)


@dataclass(frozen=True)
class CatalogTool:
    """One live tool of the gateway scope, as much of it as listing and deciding need."""

    definition_id: str
    implementation_id: str
    exposed_name: str
    upstream_name: str
    connection_name: str
    source_kind: SourceKind
    snapshot_digest: str


def load_catalog(session: Session) -> tuple[CatalogTool, ...]:
    """Return the live tools of every connection, by exposed name; schemas are not loaded."""
    rows = session.execute(
        select(
            ToolDefinition.id,
            ToolImplementation.id,
            ToolDefinition.tool_name,
            ToolImplementation.upstream_name,
            Connection.name,
            ImplementationSource.source_kind,
            ToolImplementation.snapshot_digest,
        )
        .join(ToolImplementation, ToolImplementation.tool_definition_id == ToolDefinition.id)
        .join(ImplementationSource, ImplementationSource.id == ToolImplementation.implementation_source_id)
        .join(Connection, Connection.id == ImplementationSource.connection_id)
        .where(ToolDefinition.scope == GATEWAY_SCOPE)
        .where(ToolDefinition.retired_at.is_(None), ToolImplementation.retired_at.is_(None))
        .where(ToolImplementation.is_default)
        .order_by(ToolDefinition.tool_name)
    ).all()
    return tuple(CatalogTool(*row) for row in rows)


def load_snapshots(session: Session, digests: set[str]) -> dict[str, bytes]:
    """Return the bytes of snapshots by digest; a digest that is not stored is left out."""
    found: dict[str, bytes] = {}
    wanted = sorted(digests)
    # SQLite before 3.32 allows 999 parameters in a statement.
    for start in range(0, len(wanted), 500):
        rows = session.execute(
            select(ToolSnapshotRow.digest, ToolSnapshotRow.content).where(
                ToolSnapshotRow.digest.in_(wanted[start : start + 500])
            )
        )
        found.update((name, content) for name, content in rows)
    return found
