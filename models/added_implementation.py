"""Implementations that an operator adds to a tool: the same work done by a tool of another connection.

They stand beside what the tool's own catalog declares, are never its default, and follow the listing of their
own connection: a tool that its server lists no more is retired here too, and comes back with it.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from governance.canonical import JSON, canonical_bytes
from governance.execution_policy import PolicyOverlay
from models.argument_rule import ruled
from models.base import new_id, utc_now
from models.connection import Connection
from models.connection_tools import DeclaredTool, reference_of, snapshot_of, source_of
from models.database import WriteSession
from models.payload import insert_ignoring_conflict
from models.projecting import Candidate, ensure_source, load_overlays
from models.tool import (
    ApprovedImplementation,
    ImplementationSource,
    SourceKind,
    ToolDefinition,
    ToolImplementation,
    ToolSnapshotRow,
)


def find_listed(session: Session, connection: Connection, upstream_name: str) -> DeclaredTool | None:
    """Return a tool as its connection lists it now, or None."""
    row = session.scalar(
        select(ToolImplementation)
        .join(ImplementationSource, ImplementationSource.id == ToolImplementation.implementation_source_id)
        .join(ToolDefinition, ToolDefinition.id == ToolImplementation.tool_definition_id)
        .where(ImplementationSource.connection_id == connection.id)
        .where(ToolImplementation.upstream_name == upstream_name, ToolImplementation.retired_at.is_(None))
        .where(ToolDefinition.program_version_id.is_(None), ToolImplementation.is_added.is_(False))
    )
    return None if row is None else DeclaredTool(upstream_name, row.declared)


def add_implementation(
    session: WriteSession, definition: ToolDefinition, connection: Connection, tool: DeclaredTool
) -> ToolImplementation:
    """Let a tool of a connection stand in for a definition; adding it again changes nothing."""
    source = ensure_source(session, source_of(connection))
    reference = reference_of(connection, tool.upstream_name)
    stored = session.scalar(
        select(ToolImplementation).where(
            ToolImplementation.tool_definition_id == definition.id,
            ToolImplementation.implementation_ref == reference,
        )
    )
    if stored is None:
        stored = ToolImplementation(
            id=new_id(),
            tool_definition_id=definition.id,
            implementation_source_id=source.id,
            implementation_ref=reference,
            upstream_name=tool.upstream_name,
            is_default=False,
        )
    stored.is_added = True
    _describe(session, stored, _candidate(session, definition, connection, tool))
    session.add(stored)
    session.flush()
    return stored


def remove_implementation(session: WriteSession, implementation: ToolImplementation) -> None:
    """Take an added implementation away: nothing is bound to it any more, and no approved list has it."""
    implementation.is_added = False
    implementation.retired_at = utc_now()
    session.execute(
        delete(ApprovedImplementation).where(
            ApprovedImplementation.tool_implementation_id == implementation.id
        )
    )
    session.flush()


def refresh_added(
    session: WriteSession, connection: Connection, listed: Mapping[str, Mapping[str, JSON]]
) -> tuple[str, ...]:
    """Make what was added of a connection's tools say what the connection lists, by upstream name.

    Returns the names of the definitions that changed; writes nothing where none did.
    """
    overlays: Sequence[PolicyOverlay] | None = None
    changed: list[str] = []
    for definition, stored in _added_of(session, connection.id):
        declared = listed.get(stored.upstream_name)
        if declared is None:
            if stored.retired_at is None:
                stored.retired_at = utc_now()
                changed.append(definition.tool_name)
            continue
        if overlays is None:
            overlays = load_overlays(session)
        tool = DeclaredTool(stored.upstream_name, declared)
        if _describe(session, stored, _candidate(session, definition, connection, tool, overlays)):
            changed.append(definition.tool_name)
    if changed:
        session.flush()
    return tuple(changed)


def retire_added(session: WriteSession, connection_id: str) -> tuple[str, ...]:
    """Take away what was added of a connection that is about to be deleted; return the definitions' names."""
    names: list[str] = []
    for definition, stored in _added_of(session, connection_id):
        if stored.retired_at is None:
            names.append(definition.tool_name)
        remove_implementation(session, stored)
    return tuple(names)


def connections_added_to(session: Session, definition_id: str) -> tuple[Connection, ...]:
    """Return the connections whose tools were added to a definition, by name."""
    query = (
        select(Connection)
        .join(ImplementationSource, ImplementationSource.connection_id == Connection.id)
        .join(ToolImplementation, ToolImplementation.implementation_source_id == ImplementationSource.id)
        .where(ToolImplementation.tool_definition_id == definition_id, ToolImplementation.is_added)
        .order_by(Connection.name)
        .distinct()
    )
    return tuple(session.scalars(query))


def _added_of(session: Session, connection_id: str) -> list[tuple[ToolDefinition, ToolImplementation]]:
    query = (
        select(ToolDefinition, ToolImplementation)
        .join(ToolImplementation, ToolImplementation.tool_definition_id == ToolDefinition.id)
        .join(ImplementationSource, ImplementationSource.id == ToolImplementation.implementation_source_id)
        .where(ImplementationSource.source_kind == SourceKind.MCP, ToolImplementation.is_added)
        .where(ImplementationSource.source_ref == connection_id)
        .order_by(ToolDefinition.tool_name, ToolImplementation.id)
    )
    return [(definition, stored) for definition, stored in session.execute(query).all()]


def _candidate(
    session: Session,
    definition: ToolDefinition,
    connection: Connection,
    tool: DeclaredTool,
    overlays: Sequence[PolicyOverlay] | None = None,
) -> Candidate:
    known = load_overlays(session) if overlays is None else overlays
    snapshot = ruled(session, definition, snapshot_of(connection, tool, known, definition))
    return Candidate(
        source=source_of(connection),
        implementation_ref=reference_of(connection, tool.upstream_name),
        upstream_name=tool.upstream_name,
        declared=tool.declared,
        snapshot=snapshot,
        is_default=False,
    )


def _describe(session: WriteSession, stored: ToolImplementation, wanted: Candidate) -> bool:
    """Make a row say what is wanted of it; tell whether that changed it."""
    content_digest = wanted.content_digest
    same = (
        stored.retired_at is None
        and stored.content_digest == content_digest
        and stored.snapshot_digest == wanted.snapshot.digest
        and stored.declared == wanted.declared
    )
    if same:
        return False
    row: dict[str, object] = {
        "digest": wanted.snapshot.digest,
        "content": canonical_bytes(wanted.snapshot.to_json()),
        "created_at": utc_now(),
    }
    insert_ignoring_conflict(session, ToolSnapshotRow, row)
    stored.declared = dict(wanted.declared)
    stored.content_digest = content_digest
    stored.snapshot_digest = wanted.snapshot.digest
    stored.retired_at = None
    stored.updated_at = utc_now()
    return True
