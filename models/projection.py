"""Project what an MCP connection lists into the gateway's tools."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from governance.canonical import NotCanonicalError, canonical_bytes
from governance.execution_policy import PolicyOverlay
from models.added_implementation import connections_added_to, refresh_added, retire_added
from models.connection import Connection
from models.connection_tools import MCP_TOOL_KIND, DeclaredTool, reference_of, snapshot_of, source_of
from models.database import WriteSession
from models.program import ProgramVersion
from models.projecting import (
    Candidate,
    CatalogScope,
    Changes,
    ProjectionReport,
    SourceKey,
    WantedTool,
    ensure_source,
    load_overlays,
    load_owned,
    project,
)
from models.tool import (
    GovernanceMode,
    ImplementationSource,
    SourceKind,
    ToolDefinition,
    ToolImplementation,
)
from models.version_projection import project_core, project_version, versions_using

__all__ = [
    "MCP_TOOL_KIND",
    "DeclaredTool",
    "ProjectionReport",
    "hold_definition",
    "load_overlays",
    "project_connection",
    "reproject_connection",
    "reproject_definition",
    "retire_connection",
    "snapshot_of",
    "source_of",
]

LONGEST_NAME = 512
"""Characters in the longest upstream name that can be stored."""


def project_connection(
    session: WriteSession, connection: Connection, declared: Iterable[DeclaredTool]
) -> ProjectionReport:
    """Make the stored tools of a connection those of `declared`, a whole listing."""
    key = source_of(connection)
    ensure_source(session, key)
    overlays = load_overlays(session)
    changes = Changes()
    wanted: dict[str, WantedTool] = {}
    for tool in declared:
        if tool.upstream_name in wanted:
            changes.dropped.append((tool.upstream_name, "duplicate_name"))
            continue
        problem = _problem(tool)
        if problem is not None:
            changes.dropped.append((tool.upstream_name, problem))
            continue
        wanted[tool.upstream_name] = _wanted(connection, key, tool, overlays)
    project(session, CatalogScope(source=key), wanted.values(), changes)
    changes.changed += refresh_added(
        session, connection, {name: candidate.declared for name, candidate in _candidates(wanted)}
    )
    return changes.report()


def reproject_connection(session: WriteSession, connection: Connection) -> ProjectionReport:
    """Project what is stored already again, after an edit of the connection or of an overlay.

    So are the tools that programs declare on the connection.
    """
    key = source_of(connection)
    source = ensure_source(session, key)
    live = [
        DeclaredTool(implementation.upstream_name, implementation.declared)
        for definition, implementation in load_owned(session, CatalogScope(source=key), source.id)
        if definition.retired_at is None and implementation.retired_at is None and not implementation.is_added
    ]
    report = project_connection(session, connection, live)
    of_programs = [
        name
        for version in versions_using(session, source.id)
        for name in project_version(session, version).report.changed
    ]
    return replace(report, changed=(*report.changed, *of_programs))


def retire_connection(session: WriteSession, connection_id: str) -> tuple[str, ...]:
    """Retire every tool of a connection that is about to be deleted, and return their exposed names.

    The tools that programs declare on it are retired as well.
    """
    key = SourceKey(SourceKind.MCP, connection_id, connection_id)
    source = session.scalar(
        select(ImplementationSource).where(
            ImplementationSource.source_kind == key.kind, ImplementationSource.source_ref == key.ref
        )
    )
    if source is None:
        return ()
    changes = Changes()
    project(session, CatalogScope(source=key), (), changes)
    changes.changed += retire_added(session, connection_id)
    for version in versions_using(session, source.id):
        changes.retired += project_version(session, version, without_connection=connection_id).report.retired
    return tuple(changes.retired)


def hold_definition(session: WriteSession, definition: ToolDefinition) -> None:
    """Hold a definition until the commit, its connections first: as a sync does, so that they take turns."""
    for connection in _connections_of(session, definition):
        session.refresh(connection, with_for_update=True)
    session.refresh(definition, with_for_update=True)


def reproject_definition(session: WriteSession, definition: ToolDefinition) -> None:
    """Project a tool's catalog again after an edit of what its snapshots hold; the caller holds its rows."""
    if definition.program_version_id is not None:
        project_version(session, session.get_one(ProgramVersion, definition.program_version_id))
    elif definition.governance_mode is GovernanceMode.RESERVED:
        project_core(session)
    for connection in _connections_of(session, definition):
        reproject_connection(session, connection)


def _wanted(
    connection: Connection, key: SourceKey, tool: DeclaredTool, overlays: Sequence[PolicyOverlay]
) -> WantedTool:
    snapshot = snapshot_of(connection, tool, overlays)
    candidate = Candidate(
        source=key,
        implementation_ref=reference_of(connection, tool.upstream_name),
        upstream_name=tool.upstream_name,
        declared=tool.declared,
        snapshot=snapshot,
    )
    return WantedTool(snapshot.exposed_name, MCP_TOOL_KIND, GovernanceMode.REPLACEABLE, (candidate,))


def _connections_of(session: Session, definition: ToolDefinition) -> Sequence[Connection]:
    """Return the connections that a tool comes from whose own catalog is projected: not a program's."""
    if definition.program_version_id is not None:
        return connections_added_to(session, definition.id)
    ids = (
        select(ImplementationSource.connection_id)
        .join(ToolImplementation, ToolImplementation.implementation_source_id == ImplementationSource.id)
        .where(ToolImplementation.tool_definition_id == definition.id)
    )
    return session.scalars(select(Connection).where(Connection.id.in_(ids)).order_by(Connection.name)).all()


def _candidates(wanted: Mapping[str, WantedTool]) -> Iterable[tuple[str, Candidate]]:
    return ((name, tool.candidates[0]) for name, tool in wanted.items())


def _problem(tool: DeclaredTool) -> str | None:
    """Return why a tool cannot be stored, so that one bad tool never loses the others."""
    try:
        content = canonical_bytes([tool.upstream_name, dict(tool.declared)])
    except NotCanonicalError:
        return "not_json"
    if b"\\u0000" in content:
        # PostgreSQL's text and jsonb cannot hold NUL.
        return "holds_nul"
    return "name_too_long" if len(tool.upstream_name) > LONGEST_NAME else None
