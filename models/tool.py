"""Tools: sources, definitions, implementations, and the immutable snapshots and sets that rounds freeze.

The tables are those of the core document. A definition is a logical tool in one scope, an
implementation one candidate for it, a snapshot everything that a call needs to know, by digest.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Select,
    String,
    UniqueConstraint,
    and_,
    bindparam,
    func,
    or_,
    select,
    text,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON, canonical_bytes
from governance.codes import IdempotencyClass
from governance.modes import GovernanceMode, SourceKind
from governance.snapshots import frozen_set_digest
from models.base import Base, Configuration, Digest, EnumByValue, PublicId, new_id, utc_now
from models.connection import Connection
from models.database import WriteSession
from models.payload import insert_ignoring_conflict

__all__ = [
    "GATEWAY_SCOPE",
    "IS_CHANGED",
    "ApprovedImplementation",
    "CatalogTool",
    "FrozenSet",
    "GovernanceMode",
    "ImplementationSource",
    "PolicyOverlayRow",
    "SourceKind",
    "ToolDefinition",
    "ToolImplementation",
    "ToolSnapshotRow",
    "insert_frozen_set",
    "load_approved",
    "load_catalog",
    "load_snapshots",
    "scope_of_version",
    "store_frozen_set",
]

GATEWAY_SCOPE = "gateway"
"""The scope of tools that belong to no agent program version: those of connections and of the core."""


def scope_of_version(program_version_id: str) -> str:
    """Return the scope of the tools that a program version declares, with its runtime's and the core's."""
    return f"program_version:{program_version_id}"


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


_VERSION_IN_ITS_SCOPE = (
    f"(program_version_id IS NULL AND scope = '{GATEWAY_SCOPE}')"
    # SQLite keeps ids without their hyphens.
    " OR (program_version_id IS NOT NULL AND replace(scope, '-', '')"
    " = 'program_version:' || replace(CAST(program_version_id AS VARCHAR(36)), '-', ''))"
)


class ToolDefinition(Base):
    """A logical tool in one scope, under the name that callers use."""

    __tablename__ = "tool_definitions"
    __table_args__ = (
        UniqueConstraint("scope", "tool_name"),
        CheckConstraint(_VERSION_IN_ITS_SCOPE, name="version_in_its_scope"),
    )

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    scope: Mapped[str] = mapped_column(String(64), default=GATEWAY_SCOPE)
    program_version_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("program_versions.id"), index=True
    )
    """The version whose scope this is; None in the gateway scope."""
    tool_name: Mapped[str] = mapped_column(String(64))
    tool_kind: Mapped[str] = mapped_column(String(64))
    governance_mode: Mapped[GovernanceMode] = mapped_column(EnumByValue(GovernanceMode))
    has_approved_list: Mapped[bool] = mapped_column(default=False)
    """Whether an operator set the approved list; until then the default implementation alone is on it."""
    pinned_digest: Mapped[str | None] = mapped_column(Digest)
    """The content that an operator accepted; an implementation with other content is refused."""
    requires_approval: Mapped[bool] = mapped_column(default=False)
    """Whether an operator wants each call of the tool approved by a person."""
    idempotency: Mapped[IdempotencyClass | None] = mapped_column(EnumByValue(IdempotencyClass))
    """What an operator says of repeating the tool's calls; None leaves it to its connection or source."""
    timeout_s: Mapped[float | None]
    """How long an operator lets a call of the tool take, in seconds; None leaves it to its connection."""
    argument_rules: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """See `models.argument_rule`."""
    retired_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class ToolImplementation(Base):
    """One candidate for a definition; at most one is the default."""

    __tablename__ = "tool_implementations"
    __table_args__ = (
        UniqueConstraint("tool_definition_id", "implementation_ref"),
        # What bindings and approved lists point at: an implementation together with its own definition.
        UniqueConstraint("tool_definition_id", "id"),
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
    implementation_ref: Mapped[str] = mapped_column(String(640))
    upstream_name: Mapped[str] = mapped_column(String(512))
    is_default: Mapped[bool] = mapped_column(default=True)
    is_added: Mapped[bool] = mapped_column(default=False)
    """Whether an operator added it to the definition, whose own catalog knows nothing of it."""
    declared: Mapped[dict[str, JSON]] = mapped_column(Configuration)
    """The tool as its source declared it: description, schemas, annotations, streaming, idempotency."""
    content_digest: Mapped[str] = mapped_column(Digest)
    """Names what the source declared, whatever our own settings are: what an operator pins."""
    snapshot_digest: Mapped[str] = mapped_column(Digest, ForeignKey("tool_snapshots.digest"))
    retired_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)


class ApprovedImplementation(Base):
    """An entry of a definition's approved list."""

    __tablename__ = "approved_implementations"
    __table_args__ = (
        ForeignKeyConstraint(
            ["tool_definition_id", "tool_implementation_id"],
            ["tool_implementations.tool_definition_id", "tool_implementations.id"],
            name="fk_approved_implementations_of_the_definition",
        ),
    )

    tool_definition_id: Mapped[str] = mapped_column(PublicId, primary_key=True)
    tool_implementation_id: Mapped[str] = mapped_column(PublicId, primary_key=True)
    approved_at: Mapped[datetime] = mapped_column(default=utc_now)


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
    """One live implementation of a tool, as much of it as listing, selecting and deciding need."""

    definition_id: str
    implementation_id: str
    exposed_name: str
    upstream_name: str
    connection_name: str | None
    source_kind: SourceKind
    snapshot_digest: str
    governance_mode: GovernanceMode
    implementation_ref: str
    is_default: bool
    has_approved_list: bool
    is_changed: bool
    """Whether an operator pinned the tool and its content is not what was pinned."""
    scope: str
    """The scope of its definition."""
    requires_approval: bool = False


IS_CHANGED = func.coalesce(ToolDefinition.pinned_digest != ToolImplementation.content_digest, False)
"""Whether a pin no longer fits; a definition without a pin is never changed."""


def load_catalog(
    session: Session, program_version_id: str | None = None, overridden: Collection[str] = ()
) -> tuple[CatalogTool, ...]:
    """Return the live tools of the gateway by exposed name, schemas left out; one statement, so one moment.

    With a program version these are the tools of its scope and those of connections. Of the tools named in
    `overridden` every live implementation is returned, else the default alone.
    """
    if program_version_id is None and not overridden:
        rows = session.connection().execute(_GATEWAY_CATALOG).all()
    else:
        rows = session.execute(_catalog_query(program_version_id, overridden)).all()
    return tuple(CatalogTool(*row) for row in rows)


def _catalog_query(program_version_id: str | None, overridden: Collection[str]) -> Select[*tuple[Any, ...]]:
    wanted: ColumnElement[bool] = ToolDefinition.scope == GATEWAY_SCOPE
    if program_version_id is not None:
        of_connections = and_(wanted, ImplementationSource.source_kind == SourceKind.MCP)
        wanted = or_(ToolDefinition.scope == scope_of_version(program_version_id), of_connections)
    chosen: ColumnElement[bool] = ToolImplementation.is_default.is_(True)
    if overridden:
        chosen = or_(chosen, ToolDefinition.tool_name.in_(sorted(overridden)))
    return (
        select(
            ToolDefinition.id,
            ToolImplementation.id,
            ToolDefinition.tool_name,
            ToolImplementation.upstream_name,
            Connection.name,
            ImplementationSource.source_kind,
            ToolImplementation.snapshot_digest,
            ToolDefinition.governance_mode,
            ToolImplementation.implementation_ref,
            ToolImplementation.is_default,
            ToolDefinition.has_approved_list,
            IS_CHANGED,
            ToolDefinition.scope,
            ToolDefinition.requires_approval,
        )
        .join(ToolImplementation, ToolImplementation.tool_definition_id == ToolDefinition.id)
        .join(ImplementationSource, ImplementationSource.id == ToolImplementation.implementation_source_id)
        .outerjoin(Connection, Connection.id == ImplementationSource.connection_id)
        .where(wanted, chosen)
        .where(ToolDefinition.retired_at.is_(None), ToolImplementation.retired_at.is_(None))
        .order_by(ToolDefinition.tool_name, ToolImplementation.is_default.desc(), ToolImplementation.id)
    )


_GATEWAY_CATALOG = _catalog_query(None, ())
"""The statement of nearly every round; building it anew costs more than running it."""


def load_approved(session: Session, definition_ids: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the references on the approved lists of definitions; a list that was never set is left out."""
    if not definition_ids:
        return {}
    rows = session.execute(
        select(ToolDefinition.id, ToolImplementation.implementation_ref)
        .outerjoin(ApprovedImplementation, ApprovedImplementation.tool_definition_id == ToolDefinition.id)
        .outerjoin(ToolImplementation, ToolImplementation.id == ApprovedImplementation.tool_implementation_id)
        .where(ToolDefinition.id.in_(sorted(definition_ids)), ToolDefinition.has_approved_list)
    ).all()
    approved: dict[str, set[str]] = {}
    for definition_id, reference in rows:
        listed = approved.setdefault(definition_id, set())
        if reference:
            listed.add(reference)
    return {definition_id: frozenset(listed) for definition_id, listed in approved.items()}


_SET_IS_STORED = select(FrozenSet.tool_count).where(FrozenSet.digest == bindparam("set"))


def store_frozen_set(session: WriteSession, members: dict[str, str]) -> str:
    """Store a set of {exposed name: snapshot digest}, unless it is stored already, and return its digest."""
    name = frozen_set_digest(members.items())
    if session.connection().scalar(_SET_IS_STORED, {"set": name}) is None:
        insert_frozen_set(session, name, members)
    return name


def insert_frozen_set(session: WriteSession, name: str, members: dict[str, str]) -> None:
    """Store a set of {exposed name: snapshot digest} under its digest, unless it is stored already."""
    row: dict[str, object] = {
        "digest": name,
        "members": canonical_bytes(members),
        "tool_count": len(members),
        "created_at": utc_now(),
    }
    insert_ignoring_conflict(session, FrozenSet, row)


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
