"""Compose the effective catalog out of the layers that declare tools. Pure: no I/O, nothing is copied.

Source: core document, capability projection: core matrix, then execution runtime, then agent program
version; the first entry of a name wins, and reserved names cannot be shadowed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from governance.canonical import JSON, is_object
from governance.execution_policy import (
    PolicyLayer,
    PolicyOverlay,
    PolicySubject,
    ResolvedPolicy,
    resolve_execution_policy,
)
from governance.modes import SOURCES_WITH_RUNNER, GovernanceMode, SourceKind, mode_of

BEST_EFFORT = "best_effort"
"""What an entry declares of its idempotency when it declares nothing; advisory, like every declaration."""


def _no_object() -> dict[str, JSON]:
    return {}


@dataclass(frozen=True)
class ToolEntry:
    """One tool as one layer declares it.

    `source` follows from the channel that declared it. `upstream_name` is the name at its source. Schemas
    are JSON objects, `declared_policy` any JSON value; all are shared and must not be changed.
    `connection_id` and `connection_name` are set for source mcp only.
    """

    tool_name: str
    tool_kind: str
    source: SourceKind
    source_ref: str
    implementation_ref: str
    upstream_name: str
    description: str | None
    input_schema: JSON
    result_schema: JSON = field(default_factory=_no_object)
    streaming_support: bool = False
    idempotency_policy: str = BEST_EFFORT
    declared_policy: JSON = None
    connection_id: str | None = None
    connection_name: str | None = None
    metadata: Mapping[str, JSON] = field(default_factory=_no_object)

    def to_json(self, *, parallel_safe: bool) -> dict[str, JSON]:
        """Return the entry as a catalog of a handshake shows it, with the policy in force."""
        shown: dict[str, JSON] = {
            "tool_name": self.tool_name,
            "tool_kind": self.tool_kind,
            "implementation_source": self.source.value,
            "implementation_ref": self.implementation_ref,
            "description": self.description,
            "input_schema": self.input_schema,
            "result_schema": self.result_schema,
            "streaming_support": self.streaming_support,
            "idempotency_policy": self.idempotency_policy,
            "execution_policy": {"parallel_safe": parallel_safe},
        }
        if self.source is SourceKind.MCP:
            shown |= {"server_slug": self.connection_name, "mcp_tool_name": self.upstream_name}
        return {name: value for name, value in shown.items() if value is not None}


class EffectiveTool(NamedTuple):
    """The winner of a name, with its mode and the policy in force; a tuple, since catalogs are large."""

    entry: ToolEntry
    mode: GovernanceMode
    policy: ResolvedPolicy

    @property
    def has_runner(self) -> bool:
        """Whether anything can make its calls; a tool without a runner is in no catalog."""
        return self.entry.source in SOURCES_WITH_RUNNER


@dataclass(frozen=True)
class EffectiveCatalog:
    """The winners, reserved names first, and the entries that lost to them, by name."""

    tools: tuple[EffectiveTool, ...]
    losers: Mapping[str, tuple[ToolEntry, ...]]

    def executable(self) -> tuple[EffectiveTool, ...]:
        """Return the tools that have a runner."""
        return tuple(tool for tool in self.tools if tool.has_runner)


@dataclass(frozen=True)
class OverlayLayers:
    """Overlays in the order in which they apply: what the operator lets a program relax, the operator's."""

    program: Sequence[PolicyOverlay] = ()
    operator: Sequence[PolicyOverlay] = ()


NO_OVERLAYS = OverlayLayers()


def compose_effective_catalog(
    core: Iterable[ToolEntry],
    runtime: Iterable[ToolEntry],
    program: Iterable[ToolEntry],
    overlays: OverlayLayers = NO_OVERLAYS,
) -> EffectiveCatalog:
    """Merge the layers; of one name the first entry wins, also within a layer.

    An entry with a reserved name that does not come from the core never wins, whichever layers are given;
    beside a core entry it is kept as a loser. Winners with reserved names stand first, each group in the
    order of appearance.
    """
    seen: set[str] = set()
    losers: dict[str, list[ToolEntry]] = {}
    reserved: list[EffectiveTool] = []
    ordinary: list[EffectiveTool] = []
    resolve = PolicyResolver(overlays).resolve
    for layer in (core, runtime, program):
        for entry in layer:
            name = entry.tool_name
            if name in seen:
                losers.setdefault(name, []).append(entry)
                continue
            mode = mode_of(name, entry.source)
            if mode is not GovernanceMode.RESERVED:
                ordinary.append(EffectiveTool(entry, mode, resolve(entry)))
            elif entry.source is SourceKind.CORE_MATRIX:
                reserved.append(EffectiveTool(entry, mode, resolve(entry)))
            else:
                continue
            seen.add(name)
    return EffectiveCatalog(
        (*reserved, *ordinary), {name: tuple(entries) for name, entries in losers.items()}
    )


class PolicyResolver:
    """Resolves policies of entries under one set of overlays; remembers the latest where it can."""

    def __init__(self, overlays: OverlayLayers) -> None:
        """Resolve under these overlays."""
        self._overlays = (*overlays.program, *overlays.operator)
        self._from_program = len(overlays.program)
        self._source: SourceKind | None = None
        self._is_parallel = False
        self._latest: ResolvedPolicy | None = None

    def resolve(self, entry: ToolEntry) -> ResolvedPolicy:
        """Return the policy of an entry: its declaration, its source's default, the overlays in order."""
        if self._overlays:
            return self._resolved(entry)
        # Without overlays nothing but the declaration and the source has a say, and neighbours are alike.
        declared = entry.declared_policy
        is_parallel = declared is not None and is_object(declared) and declared.get("parallel_safe") is True
        if self._latest is None or entry.source is not self._source or is_parallel is not self._is_parallel:
            self._source, self._is_parallel = entry.source, is_parallel
            self._latest = self._resolved(entry)
        return self._latest

    def _resolved(self, entry: ToolEntry) -> ResolvedPolicy:
        subject = PolicySubject(
            tool_source=entry.source.value,
            server_slug=entry.connection_name,
            tool_name=entry.tool_name,
            tool_kind=entry.tool_kind,
            declared=entry.declared_policy,
        )
        policy = resolve_execution_policy(subject, self._overlays)
        if self._from_program:
            policy = replace(policy, provenance=tuple(map(self._named, policy.provenance)))
        return policy

    def _named(self, layer: PolicyLayer) -> PolicyLayer:
        """Name overlays by whose they are, each counted from 0."""
        kind, _, number = layer.layer.partition(":")
        if kind != "overlay":
            return layer
        index = int(number)
        if index < self._from_program:
            return PolicyLayer(f"program_overlay:{index}", layer.value)
        return PolicyLayer(f"overlay:{index - self._from_program}", layer.value)
