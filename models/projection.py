"""Project what a connection declares into definitions, implementations and snapshots.

Idempotent: a row that says the right thing already is not written. A tool that left the listing is
retired, never deleted, since invocations refer to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from governance.canonical import JSON, NotCanonicalError, canonical_bytes
from governance.execution_policy import PolicyOverlay, PolicySubject, resolve_execution_policy
from governance.names import exposed_name
from governance.snapshots import ToolSnapshot
from models.base import new_id, utc_now
from models.connection import Connection
from models.database import WriteSession
from models.payload import insert_ignoring_conflict
from models.tool import (
    GATEWAY_SCOPE,
    GovernanceMode,
    ImplementationSource,
    PolicyOverlayRow,
    SourceKind,
    ToolDefinition,
    ToolImplementation,
    ToolSnapshotRow,
)

MCP_TOOL_KIND = "mcp_tool"
"""The tool kind of everything that a connection lists."""


@dataclass(frozen=True)
class DeclaredTool:
    """A tool as its server lists it; `declared` has description, schemas and annotations, as JSON."""

    upstream_name: str
    declared: Mapping[str, JSON]


@dataclass(frozen=True)
class ProjectionReport:
    """What a projection changed, by exposed name; all empty when nothing did."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    """(upstream name, reason) of tools that cannot be stored."""


@dataclass
class _Changes:
    added: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    retired: list[str] = field(default_factory=list[str])
    dropped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def report(self) -> ProjectionReport:
        return ProjectionReport(
            tuple(self.added), tuple(self.changed), tuple(self.retired), tuple(self.dropped)
        )


_Row = tuple[ToolDefinition, ToolImplementation]


def load_overlays(session: Session) -> tuple[PolicyOverlay, ...]:
    """Return the operator's overlays in order."""
    rows = session.scalars(select(PolicyOverlayRow).order_by(PolicyOverlayRow.position))
    return tuple(PolicyOverlay(dict(row.match), dict(row.execution_policy)) for row in rows)


def project_connection(
    session: WriteSession, connection: Connection, declared: Iterable[DeclaredTool]
) -> ProjectionReport:
    """Make the stored tools of a connection those of `declared`, a whole listing."""
    source = _ensure_source(session, connection)
    overlays = load_overlays(session)
    stored = _stored_tools(session, source.id)
    changes = _Changes()
    seen: set[str] = set()
    for tool in declared:
        if tool.upstream_name in seen:
            changes.dropped.append((tool.upstream_name, "duplicate_name"))
            continue
        seen.add(tool.upstream_name)
        try:
            snapshot = snapshot_of(connection, tool, overlays)
            content = canonical_bytes(snapshot.to_json())
        except NotCanonicalError:
            changes.dropped.append((tool.upstream_name, "not_json"))
            seen.discard(tool.upstream_name)
            continue
        _project_tool(session, source, tool, (snapshot, content), stored.get(tool.upstream_name), changes)
    for upstream_name, row in stored.items():
        if upstream_name not in seen:
            _retire(row, changes)
    session.flush()
    return changes.report()


def reproject_connection(session: WriteSession, connection: Connection) -> ProjectionReport:
    """Project what is stored already again, after an edit of the connection or of an overlay."""
    source = _ensure_source(session, connection)
    live = [
        DeclaredTool(implementation.upstream_name, implementation.declared)
        for definition, implementation in _stored_tools(session, source.id).values()
        if definition.retired_at is None and implementation.retired_at is None
    ]
    return project_connection(session, connection, live)


def retire_connection(session: WriteSession, connection_id: str) -> tuple[str, ...]:
    """Retire every tool of a connection that is about to be deleted, and return their exposed names."""
    changes = _Changes()
    source = session.scalar(
        select(ImplementationSource).where(
            ImplementationSource.source_kind == SourceKind.MCP,
            ImplementationSource.source_ref == connection_id,
        )
    )
    if source is not None:
        for row in _stored_tools(session, source.id).values():
            _retire(row, changes)
        session.flush()
    return tuple(changes.retired)


def snapshot_of(
    connection: Connection, tool: DeclaredTool, overlays: Sequence[PolicyOverlay]
) -> ToolSnapshot:
    """Compose everything that a call of the tool needs to know."""
    name = exposed_name(connection.name, tool.upstream_name)
    policy = resolve_execution_policy(
        PolicySubject(
            tool_source=SourceKind.MCP.value,
            server_slug=connection.name,
            tool_name=name,
            tool_kind=MCP_TOOL_KIND,
            declared={},
        ),
        overlays,
    )
    return ToolSnapshot(
        exposed_name=name,
        upstream_name=tool.upstream_name,
        connection=connection.id,
        connection_name=connection.name,
        source_kind=SourceKind.MCP.value,
        description=tool.declared.get("description"),
        input_schema=tool.declared.get("input_schema"),
        output_schema=tool.declared.get("output_schema"),
        annotations=tool.declared.get("annotations"),
        parallel_safe=policy.parallel_safe,
        policy_provenance=policy.provenance,
        timeout_s=connection.tool_timeout_s,
        idempotency=connection.idempotency,
    )


def _ensure_source(session: WriteSession, connection: Connection) -> ImplementationSource:
    statement = select(ImplementationSource).where(
        ImplementationSource.source_kind == SourceKind.MCP, ImplementationSource.source_ref == connection.id
    )
    source = session.scalar(statement)
    if source is not None:
        return source
    insert_ignoring_conflict(
        session,
        ImplementationSource,
        {
            "id": new_id(),
            "source_kind": SourceKind.MCP,
            "source_ref": connection.id,
            "connection_id": connection.id,
            "created_at": utc_now(),
        },
    )
    return session.scalars(statement).one()


def _stored_tools(session: Session, source_id: str) -> dict[str, _Row]:
    """Return the definitions and implementations of a source by upstream name, the retired ones too."""
    rows = session.execute(
        select(ToolDefinition, ToolImplementation)
        .join(ToolImplementation, ToolImplementation.tool_definition_id == ToolDefinition.id)
        .where(ToolImplementation.implementation_source_id == source_id)
    ).all()
    return {implementation.upstream_name: (definition, implementation) for definition, implementation in rows}


def _project_tool(
    session: WriteSession,
    source: ImplementationSource,
    tool: DeclaredTool,
    snapshot: tuple[ToolSnapshot, bytes],
    stored: _Row | None,
    changes: _Changes,
) -> None:
    composed, content = snapshot
    if stored is not None and _says_the_same(stored, tool, composed):
        return
    insert_ignoring_conflict(
        session, ToolSnapshotRow, {"digest": composed.digest, "content": content, "created_at": utc_now()}
    )
    if stored is None:
        _add(session, source, tool, composed)
        changes.added.append(composed.exposed_name)
        return
    definition, implementation = stored
    revived = definition.retired_at is not None or implementation.retired_at is not None
    definition.tool_kind, definition.governance_mode = MCP_TOOL_KIND, GovernanceMode.REPLACEABLE
    definition.retired_at = implementation.retired_at = None
    if not implementation.is_default:
        _clear_default(session, definition.id)
    implementation.is_default = True
    implementation.declared = dict(tool.declared)
    implementation.snapshot_digest = composed.digest
    implementation.updated_at = utc_now()
    (changes.added if revived else changes.changed).append(composed.exposed_name)


def _says_the_same(stored: _Row, tool: DeclaredTool, composed: ToolSnapshot) -> bool:
    definition, implementation = stored
    return (
        definition.retired_at is None
        and implementation.retired_at is None
        and implementation.is_default
        and definition.tool_name == composed.exposed_name
        and definition.tool_kind == MCP_TOOL_KIND
        and definition.governance_mode is GovernanceMode.REPLACEABLE
        and implementation.snapshot_digest == composed.digest
        and implementation.declared == tool.declared
    )


def _add(
    session: WriteSession, source: ImplementationSource, tool: DeclaredTool, composed: ToolSnapshot
) -> None:
    """Insert an implementation, under the definition that another connection of this name may have left."""
    definition = session.scalar(
        select(ToolDefinition).where(
            ToolDefinition.scope == GATEWAY_SCOPE, ToolDefinition.tool_name == composed.exposed_name
        )
    )
    if definition is None:
        definition = ToolDefinition(
            id=new_id(),
            scope=GATEWAY_SCOPE,
            tool_name=composed.exposed_name,
            tool_kind=MCP_TOOL_KIND,
            governance_mode=GovernanceMode.REPLACEABLE,
        )
        session.add(definition)
        session.flush()
    else:
        definition.retired_at = None
        _clear_default(session, definition.id)
    session.add(
        ToolImplementation(
            id=new_id(),
            tool_definition_id=definition.id,
            implementation_source_id=source.id,
            implementation_ref=f"mcp/{source.source_ref}/{tool.upstream_name}",
            upstream_name=tool.upstream_name,
            is_default=True,
            declared=dict(tool.declared),
            snapshot_digest=composed.digest,
        )
    )


def _clear_default(session: WriteSession, definition_id: str) -> None:
    session.execute(
        update(ToolImplementation)
        .where(ToolImplementation.tool_definition_id == definition_id, ToolImplementation.is_default)
        .values(is_default=False)
    )


def _retire(row: _Row, changes: _Changes) -> None:
    definition, implementation = row
    if implementation.retired_at is None:
        now = utc_now()
        implementation.retired_at = now
        implementation.is_default = False
        definition.retired_at = now
        changes.retired.append(definition.tool_name)
