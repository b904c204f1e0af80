"""Project what an MCP connection lists into the gateway's tools."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select

from governance.canonical import JSON, NotCanonicalError, canonical_bytes
from governance.execution_policy import PolicyOverlay, PolicySubject, resolve_execution_policy
from governance.names import exposed_name
from governance.snapshots import ToolSnapshot
from models.connection import Connection
from models.database import WriteSession
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
from models.tool import GovernanceMode, ImplementationSource, SourceKind
from models.version_projection import project_version, versions_using

__all__ = [
    "MCP_TOOL_KIND",
    "DeclaredTool",
    "ProjectionReport",
    "load_overlays",
    "project_connection",
    "reproject_connection",
    "retire_connection",
    "snapshot_of",
    "source_of",
]

MCP_TOOL_KIND = "mcp_tool"
"""The tool kind of everything that a connection lists."""

LONGEST_NAME = 512
"""Characters in the longest upstream name that can be stored."""


@dataclass(frozen=True)
class DeclaredTool:
    """A tool as its server lists it; `declared` has description, schemas and annotations, as JSON."""

    upstream_name: str
    declared: Mapping[str, JSON]


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
        if definition.retired_at is None and implementation.retired_at is None
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
    for version in versions_using(session, source.id):
        changes.retired += project_version(session, version, without_connection=connection_id).report.retired
    return tuple(changes.retired)


def source_of(connection: Connection) -> SourceKey:
    """Return the source that stands for a connection."""
    return SourceKey(SourceKind.MCP, connection.id, connection.id)


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
        server_url=connection.url,
    )


def _wanted(
    connection: Connection, key: SourceKey, tool: DeclaredTool, overlays: Sequence[PolicyOverlay]
) -> WantedTool:
    snapshot = snapshot_of(connection, tool, overlays)
    candidate = Candidate(
        source=key,
        implementation_ref=f"mcp/{key.ref}/{tool.upstream_name}",
        upstream_name=tool.upstream_name,
        declared=tool.declared,
        snapshot=snapshot,
    )
    return WantedTool(snapshot.exposed_name, MCP_TOOL_KIND, GovernanceMode.REPLACEABLE, (candidate,))


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
