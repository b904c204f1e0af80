"""Make stored definitions, implementations and snapshots say what a catalog says.

Idempotent: a row that says the right thing already is not written, and one that was edited behind our back is
repaired. A tool that left its catalog is retired, never deleted, since invocations refer to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from governance.canonical import JSON, canonical_bytes, digest_of
from governance.core_tools import BUILT_IN
from governance.execution_policy import PolicyOverlay
from governance.snapshots import ToolSnapshot
from models.argument_rule import ruled
from models.base import new_id, utc_now
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
    scope_of_version,
)


@dataclass(frozen=True)
class SourceKey:
    """Where a candidate comes from; `connection_id` for mcp, where it is the reference too."""

    kind: SourceKind
    ref: str
    connection_id: str | None = None


@dataclass(frozen=True)
class Candidate:
    """One implementation as it is to be stored; `declared` is JSON as its source gave it."""

    source: SourceKey
    implementation_ref: str
    upstream_name: str
    declared: Mapping[str, JSON]
    snapshot: ToolSnapshot
    is_default: bool = True

    @property
    def content_digest(self) -> str:
        """Name what the source declared and where it is, whatever our own settings are."""
        return digest_of(
            {
                "source": [self.source.kind.value, self.source.ref],
                "server_url": self.snapshot.server_url,
                "upstream_name": self.upstream_name,
                "declared": dict(self.declared),
            }
        )


@dataclass(frozen=True)
class WantedTool:
    """One definition as it is to be stored, with every candidate for it."""

    tool_name: str
    tool_kind: str
    mode: GovernanceMode
    candidates: Sequence[Candidate]


@dataclass(frozen=True)
class ProjectionReport:
    """What a projection changed, by exposed name; all empty when nothing did."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    """(upstream name, reason) of tools that cannot be stored."""


@dataclass
class Changes:
    """What a projection has changed so far."""

    added: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    retired: list[str] = field(default_factory=list[str])
    dropped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def report(self) -> ProjectionReport:
        """Return the changes as a value."""
        return ProjectionReport(
            tuple(self.added), tuple(self.changed), tuple(self.retired), tuple(self.dropped)
        )


@dataclass(frozen=True)
class CatalogScope:
    """Whose tools are projected: the part of a scope that one catalog owns.

    In the gateway scope each connection owns its own tools and the core owns its; a program version owns
    the whole of its scope, `runtime_id` being the runtime that its program is bound to.
    """

    program_version_id: str | None = None
    source: SourceKey | None = None
    runtime_id: str | None = None

    @property
    def scope(self) -> str:
        """The scope that definitions are stored under."""
        return GATEWAY_SCOPE if self.program_version_id is None else scope_of_version(self.program_version_id)

    def admits(self, source: SourceKey) -> bool:
        """Say whether code from a source may stand in this catalog; rule C2 of the core document."""
        if self.program_version_id is None:
            return source == self.source
        if source.kind is SourceKind.MCP:
            return source.ref == source.connection_id
        own = {
            SourceKind.CORE_MATRIX: BUILT_IN,
            SourceKind.EXECUTION_RUNTIME: self.runtime_id,
            SourceKind.AGENT: source_ref_of(self.program_version_id),
            SourceKind.KERNEL: source_ref_of(self.program_version_id),
        }
        return source.ref == own[source.kind]


def source_ref_of(version_id: str) -> str:
    """Return the reference of the source that stands for a version's own tools."""
    return f"agent_program_version:{version_id}"


class ForeignSourceError(Exception):
    """An implementation was to be stored that comes from the code of another catalog."""

    def __init__(self, tool_name: str, source: SourceKey, scope: str) -> None:
        """Name the tool, the source and the scope."""
        super().__init__(
            f"Tool {tool_name!r} of scope {scope!r} cannot come from {source.kind.value} {source.ref!r}."
        )


_Row = tuple[ToolDefinition, ToolImplementation]


def load_overlays(session: Session) -> tuple[PolicyOverlay, ...]:
    """Return the operator's overlays in order."""
    rows = session.scalars(select(PolicyOverlayRow).order_by(PolicyOverlayRow.position))
    return tuple(PolicyOverlay(dict(row.match), dict(row.execution_policy)) for row in rows)


def ensure_source(session: WriteSession, key: SourceKey) -> ImplementationSource:
    """Return the row of a source, made if need be, and hold it until the commit.

    Two projections of one source take turns here.
    """
    statement = select(ImplementationSource).where(
        ImplementationSource.source_kind == key.kind, ImplementationSource.source_ref == key.ref
    )
    row: dict[str, object] = {
        "id": new_id(),
        "source_kind": key.kind,
        "source_ref": key.ref,
        "connection_id": key.connection_id,
        "created_at": utc_now(),
    }
    source = session.scalar(statement.with_for_update())
    if source is None:
        insert_ignoring_conflict(session, ImplementationSource, row)
        source = session.scalars(statement.with_for_update()).one()
    return source


def project(
    session: WriteSession, scope: CatalogScope, wanted: Iterable[WantedTool], changes: Changes
) -> None:
    """Make what a catalog owns say what it declares. Whoever calls holds the catalog's lock.

    Raises:
        ForeignSourceError: a candidate comes from a source that the catalog does not have.
    """
    work = _Projection(session, scope, changes)
    for tool in wanted:
        work.project(tool)
    work.retire_the_rest()
    session.flush()


def load_owned(session: Session, scope: CatalogScope, source_id: str | None = None) -> tuple[_Row, ...]:
    """Return the definitions and implementations that a catalog owns, the retired ones too."""
    query = (
        select(ToolDefinition, ToolImplementation)
        .join(ToolImplementation, ToolImplementation.tool_definition_id == ToolDefinition.id)
        .where(ToolDefinition.scope == scope.scope)
        .order_by(ToolDefinition.tool_name)
    )
    if source_id is not None:
        query = query.where(ToolImplementation.implementation_source_id == source_id)
    return tuple((definition, implementation) for definition, implementation in session.execute(query).all())


class _Projection:
    """One run of a projection: what is stored, and what of it was wanted."""

    def __init__(self, session: WriteSession, scope: CatalogScope, changes: Changes) -> None:
        self._session = session
        self._scope = scope
        self._changes = changes
        self._sources: dict[SourceKey, str] = {}
        source_id = None if scope.source is None else self._source_id(scope.source)
        rows = load_owned(session, scope, source_id)
        self._definitions = {definition.tool_name: definition for definition, _ in rows}
        self._implementations = {
            (definition.tool_name, implementation.implementation_ref): implementation
            for definition, implementation in rows
        }
        self._wanted: set[tuple[str, str]] = set()

    def project(self, tool: WantedTool) -> None:
        definition = self._definitions.get(tool.tool_name) or self._find_or_add(tool)
        is_new = definition.retired_at is not None
        changed = self._describe(definition, tool)
        for candidate in tool.candidates:
            if not self._scope.admits(candidate.source):
                raise ForeignSourceError(tool.tool_name, candidate.source, self._scope.scope)
            self._wanted.add((tool.tool_name, candidate.implementation_ref))
            snapshot = ruled(self._session, definition, candidate.snapshot)
            changed |= self._implement(definition, replace(candidate, snapshot=snapshot))
        if is_new:
            self._changes.added.append(tool.tool_name)
        elif changed:
            self._changes.changed.append(tool.tool_name)

    def retire_the_rest(self) -> None:
        """Retire what is stored and was not wanted; a definition with it when nothing of it was wanted."""
        now = utc_now()
        kept = {name for name, _ in self._wanted}
        for (name, reference), implementation in self._implementations.items():
            if (name, reference) in self._wanted or implementation.retired_at is not None:
                continue
            if implementation.is_added:
                # It is the operator's, and follows its own connection: see `models.added_implementation`.
                continue
            implementation.retired_at = now
            implementation.is_default = False
            if name not in kept and self._definitions[name].retired_at is None:
                self._definitions[name].retired_at = now
                self._changes.retired.append(name)

    def _find_or_add(self, tool: WantedTool) -> ToolDefinition:
        """Return the definition that another catalog of the scope left under the name, or a new one."""
        definition = self._session.scalar(
            select(ToolDefinition).where(
                ToolDefinition.scope == self._scope.scope, ToolDefinition.tool_name == tool.tool_name
            )
        )
        if definition is None:
            definition = ToolDefinition(
                id=new_id(),
                scope=self._scope.scope,
                program_version_id=self._scope.program_version_id,
                tool_name=tool.tool_name,
                tool_kind=tool.tool_kind,
                governance_mode=tool.mode,
                # Retired until its first candidate stands: so it counts as added.
                retired_at=utc_now(),
            )
            self._session.add(definition)
            self._session.flush()
        else:
            self._adopt(definition, tool)
        self._definitions[tool.tool_name] = definition
        return definition

    def _adopt(self, definition: ToolDefinition, tool: WantedTool) -> None:
        """Take in the candidates that are stored under another source: that was edited behind our back."""
        references = [candidate.implementation_ref for candidate in tool.candidates]
        rows = self._session.scalars(
            select(ToolImplementation).where(
                ToolImplementation.tool_definition_id == definition.id,
                ToolImplementation.implementation_ref.in_(references),
            )
        )
        self._implementations |= {(tool.tool_name, row.implementation_ref): row for row in rows}

    def _describe(self, definition: ToolDefinition, tool: WantedTool) -> bool:
        same = (
            definition.retired_at is None
            and definition.tool_kind == tool.tool_kind
            and definition.governance_mode is tool.mode
        )
        if not same:
            definition.retired_at = None
            definition.tool_kind, definition.governance_mode = tool.tool_kind, tool.mode
        return not same

    def _implement(self, definition: ToolDefinition, candidate: Candidate) -> bool:
        key = (definition.tool_name, candidate.implementation_ref)
        stored = self._implementations.get(key)
        source_id = self._source_id(candidate.source)
        content_digest = candidate.content_digest
        if stored is not None and _says_the_same(stored, candidate, source_id, content_digest):
            return False
        snapshot = candidate.snapshot
        insert_ignoring_conflict(
            self._session,
            ToolSnapshotRow,
            {
                "digest": snapshot.digest,
                "content": canonical_bytes(snapshot.to_json()),
                "created_at": utc_now(),
            },
        )
        if candidate.is_default:
            # The index allows one default; the old one goes before the new one comes.
            self._clear_default(definition.id, candidate.implementation_ref)
        if stored is None:
            stored = ToolImplementation(
                id=new_id(),
                tool_definition_id=definition.id,
                implementation_ref=candidate.implementation_ref,
            )
            self._session.add(stored)
            self._implementations[key] = stored
        stored.implementation_source_id = source_id
        stored.upstream_name = candidate.upstream_name
        stored.is_default = candidate.is_default
        stored.is_added = False
        stored.declared = dict(candidate.declared)
        stored.content_digest = content_digest
        stored.snapshot_digest = snapshot.digest
        stored.retired_at = None
        stored.updated_at = utc_now()
        # One by one, so that a default that moves is never on two rows.
        self._session.flush()
        return True

    def _clear_default(self, definition_id: str, but: str) -> None:
        self._session.execute(
            update(ToolImplementation)
            .where(
                ToolImplementation.tool_definition_id == definition_id,
                ToolImplementation.implementation_ref != but,
                ToolImplementation.is_default,
            )
            .values(is_default=False)
        )

    def _source_id(self, key: SourceKey) -> str:
        if key not in self._sources:
            self._sources[key] = ensure_source(self._session, key).id
        return self._sources[key]


def _says_the_same(
    stored: ToolImplementation, candidate: Candidate, source_id: str, content_digest: str
) -> bool:
    return (
        stored.retired_at is None
        and stored.is_default == candidate.is_default
        and stored.implementation_source_id == source_id
        and stored.upstream_name == candidate.upstream_name
        and stored.content_digest == content_digest
        and stored.snapshot_digest == candidate.snapshot.digest
        and stored.declared == candidate.declared
    )
