"""Project the built-in tools, and the effective catalogs of program versions."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from governance.canonical import JSON
from governance.catalog_entries import RegisteredServer, read_program_catalog, read_runtime_catalog
from governance.catalogs import (
    EffectiveCatalog,
    EffectiveTool,
    OverlayLayers,
    PolicyResolver,
    ToolEntry,
    compose_effective_catalog,
)
from governance.codes import IdempotencyClass
from governance.core_tools import BUILT_IN, LIST, core_catalog
from governance.execution_policy import PolicyOverlay, ResolvedPolicy
from governance.handshake import OVERLAYS_FIELD, ProgramDefinition
from governance.snapshots import ToolSnapshot
from models.connection import Connection, load_connections
from models.database import WriteSession
from models.program import AgentProgram, ProgramVersion, load_versions, program_of
from models.projecting import (
    Candidate,
    CatalogScope,
    Changes,
    ProjectionReport,
    SourceKey,
    WantedTool,
    ensure_source,
    load_overlays,
    project,
    source_ref_of,
)
from models.runtime import ExecutionRuntime
from models.tool import SourceKind, ToolDefinition, ToolImplementation

CORE_TIMEOUT_S = 30.0
"""How long a built-in tool may take; each is a transaction."""


@dataclass(frozen=True)
class ProjectedVersion:
    """The effective catalog of a version, its layers, and what projecting it changed."""

    catalog: EffectiveCatalog
    runtime: ExecutionRuntime | None
    definition: ProgramDefinition
    report: ProjectionReport


def servers_of(session: Session) -> tuple[RegisteredServer, ...]:
    """Return the connections that a declared tool may refer to."""
    return tuple(RegisteredServer(row.id, row.name, row.url) for row in load_connections(session))


def project_core(session: WriteSession) -> ProjectionReport:
    """Make the gateway's built-in tools those of this release."""
    key = SourceKey(SourceKind.CORE_MATRIX, BUILT_IN)
    ensure_source(session, key)
    catalog = compose_effective_catalog(
        core_catalog(), (), (), OverlayLayers(operator=load_overlays(session))
    )
    changes = Changes()
    project(
        session, CatalogScope(source=key), [_wanted(tool, (), {}, None) for tool in catalog.tools], changes
    )
    return changes.report()


def project_version(
    session: WriteSession, version: ProgramVersion, *, without_connection: str | None = None
) -> ProjectedVersion:
    """Project the effective catalog of a version, the losing candidates and every profile's tools included.

    `without_connection` leaves out a connection that is about to be deleted.
    """
    # Two projections of one version take turns on its row.
    session.execute(select(ProgramVersion.id).where(ProgramVersion.id == version.id).with_for_update())
    program = program_of(session, version)
    session.refresh(program)
    runtime = _runtime_of(session, program)
    definition = version.definition()
    connections = {row.id: row for row in load_connections(session) if row.id != without_connection}
    servers = [RegisteredServer(row.id, row.name, row.url) for row in connections.values()]
    entries, _ = read_program_catalog(definition.tool_catalog, source_ref_of(version.id), servers)
    overlays = OverlayLayers(_program_overlays(program, definition), load_overlays(session))
    catalog = compose_effective_catalog(
        core_catalog(definition.profile_catalog), _runtime_entries(runtime), entries, overlays
    )
    resolver = PolicyResolver(overlays)
    changes = Changes()
    project(
        session,
        CatalogScope(program_version_id=version.id, runtime_id=None if runtime is None else runtime.id),
        [
            _wanted(tool, catalog.losers.get(tool.entry.tool_name, ()), connections, resolver)
            for tool in catalog.tools
        ],
        changes,
    )
    return ProjectedVersion(catalog, runtime, definition, changes.report())


def reproject_all_versions(session: WriteSession, runtime_id: str | None = None) -> tuple[str, ...]:
    """Project every version, or those of a runtime, again, and return the names of changed tools."""
    changed: list[str] = []
    for version in load_versions(session, runtime_id):
        changed += project_version(session, version).report.changed
    return tuple(changed)


def versions_using(session: Session, source_id: str) -> tuple[ProgramVersion, ...]:
    """Return the versions with a live implementation from a source."""
    ids = session.scalars(
        select(ToolDefinition.program_version_id)
        .join(ToolImplementation, ToolImplementation.tool_definition_id == ToolDefinition.id)
        .where(ToolImplementation.implementation_source_id == source_id)
        .where(ToolImplementation.retired_at.is_(None), ToolDefinition.program_version_id.is_not(None))
        .distinct()
    ).all()
    return tuple(session.get_one(ProgramVersion, version_id) for version_id in sorted(filter(None, ids)))


def _runtime_of(session: Session, program: AgentProgram) -> ExecutionRuntime | None:
    if program.execution_runtime_id is None:
        return None
    runtime = session.get_one(ExecutionRuntime, program.execution_runtime_id)
    session.refresh(runtime)
    return runtime


def _runtime_entries(runtime: ExecutionRuntime | None) -> tuple[ToolEntry, ...]:
    if runtime is None or not runtime.enabled:
        return ()
    return read_runtime_catalog(runtime.tool_catalog, runtime.id)[0]


def _program_overlays(program: AgentProgram, definition: ProgramDefinition) -> tuple[PolicyOverlay, ...]:
    """Return the overlays of the program's own configuration: none unless an operator lets it relax."""
    if not program.may_relax_policy:
        return ()
    declared: list[JSON] = definition.default_config_snapshot.get(OVERLAYS_FIELD) or []
    return tuple(PolicyOverlay(overlay["match"], overlay["execution_policy"]) for overlay in declared)


def _wanted(
    tool: EffectiveTool,
    losers: Sequence[ToolEntry],
    connections: dict[str, Connection],
    resolver: PolicyResolver | None,
) -> WantedTool:
    winner = tool.entry
    candidates = [_candidate(winner, tool.policy, connections, winner.implementation_ref, is_default=True)]
    taken = {winner.implementation_ref}
    for loser in losers:
        reference = loser.implementation_ref
        if reference in taken:
            # Two layers may use one reference for code of their own; the loser's is told by its source.
            reference = f"{loser.source.value}:{loser.source_ref}/{reference}"
        taken.add(reference)
        policy = tool.policy if resolver is None else resolver.resolve(loser)
        candidates.append(_candidate(loser, policy, connections, reference, is_default=False))
    return WantedTool(winner.tool_name, winner.tool_kind, tool.mode, candidates)


def _candidate(
    entry: ToolEntry,
    policy: ResolvedPolicy,
    connections: dict[str, Connection],
    implementation_ref: str,
    *,
    is_default: bool,
) -> Candidate:
    connection = connections.get(entry.connection_id) if entry.connection_id else None
    return Candidate(
        source=SourceKey(entry.source, entry.source_ref, entry.connection_id),
        implementation_ref=implementation_ref,
        upstream_name=entry.upstream_name,
        declared={
            "description": entry.description,
            "input_schema": entry.input_schema,
            "output_schema": entry.result_schema,
            "streaming_support": entry.streaming_support,
            "idempotency_policy": entry.idempotency_policy,
            "metadata": dict(entry.metadata),
        },
        snapshot=_snapshot(entry, policy, connection),
        is_default=is_default,
    )


def _snapshot(entry: ToolEntry, policy: ResolvedPolicy, connection: Connection | None) -> ToolSnapshot:
    idempotency, timeout_s, url = IdempotencyClass.UNSAFE, 60.0, None
    if connection is not None:
        idempotency, timeout_s, url = connection.idempotency, connection.tool_timeout_s, connection.url
    elif entry.source is SourceKind.CORE_MATRIX:
        # A built-in tool finds what an earlier attempt of the same call did, so a repeat is no second effect.
        is_read = entry.tool_name == LIST
        idempotency = IdempotencyClass.SAFE if is_read else IdempotencyClass.KEYED
        timeout_s = CORE_TIMEOUT_S
    return ToolSnapshot(
        exposed_name=entry.tool_name,
        upstream_name=entry.upstream_name,
        connection=entry.connection_id,
        connection_name=entry.connection_name,
        source_kind=entry.source.value,
        description=entry.description,
        input_schema=entry.input_schema,
        output_schema=entry.result_schema or None,
        parallel_safe=policy.parallel_safe,
        policy_provenance=policy.provenance,
        timeout_s=timeout_s,
        idempotency=idempotency,
        server_url=url,
    )
