"""Compose the effective catalog out of the layers that declare tools. Pure: no I/O, nothing is copied.

Source: core document, capability projection: core matrix, then execution runtime, then agent program
version; the first entry of a name wins, and reserved names cannot be shadowed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from governance.canonical import JSON, is_object
from governance.execution_policy import (
    PolicyLayer,
    PolicyOverlay,
    PolicySubject,
    ResolvedPolicy,
    resolve_execution_policy,
)
from governance.modes import CORE_PREFIX, SOURCES_WITH_RUNNER, GovernanceMode, SourceKind, ordinary_mode
from governance.names import SUBAGENT_TOOLS

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
    reserved: list[ToolEntry] = []
    ordinary: list[ToolEntry] = []
    for entry in chain(core, runtime, program):
        name = entry.tool_name
        if name in seen:
            losers.setdefault(name, []).append(entry)
            continue
        # The two conditions of `is_reserved_name`: to call it would double what a large catalog costs.
        if name not in SUBAGENT_TOOLS and not name.startswith(CORE_PREFIX):
            ordinary.append(entry)
        elif entry.source is SourceKind.CORE_MATRIX:
            reserved.append(entry)
        else:
            continue
        seen.add(name)
    return EffectiveCatalog(
        _with_policies(reserved, ordinary, PolicyResolver(overlays)),
        {name: tuple(entries) for name, entries in losers.items()},
    )


def _with_policies(
    reserved: Sequence[ToolEntry], ordinary: Sequence[ToolEntry], resolver: "PolicyResolver"
) -> tuple[EffectiveTool, ...]:
    """Return winners with mode and policy; columns are joined at once, so that no code runs for each."""
    winners = (*reserved, *ordinary)
    modes = [ordinary_mode(entry.source) for entry in ordinary]
    columns = zip(
        winners,
        (*(GovernanceMode.RESERVED,) * len(reserved), *modes),
        map(resolver.resolve, winners),
        strict=True,
    )
    return tuple(map(_EFFECTIVE_TOOL, columns))


_EFFECTIVE_TOOL: Callable[[tuple[ToolEntry, GovernanceMode, ResolvedPolicy]], EffectiveTool] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType] - what is iterated is typed on the left.
    EffectiveTool,
)
"""Makes an `EffectiveTool` of its three fields, as `EffectiveTool._make` does, at a third of the time."""


class PolicyResolver:
    """Resolves policies of entries under one set of overlays; entries that nothing tells apart share one."""

    def __init__(self, overlays: OverlayLayers) -> None:
        """Resolve under these overlays."""
        self._overlays = (*overlays.program, *overlays.operator)
        self._from_program = len(overlays.program)
        self._told_apart = frozenset(overlay.match.get("tool_name") for overlay in self._overlays)
        self._known: dict[tuple[SourceKind, bool, str | None, str], ResolvedPolicy] = {}
        self._latest: tuple[tuple[SourceKind, bool, str | None, str], ResolvedPolicy] | None = None

    def resolve(self, entry: ToolEntry) -> ResolvedPolicy:
        """Return the policy of an entry: its declaration, its source's default, the overlays in order."""
        if entry.tool_name in self._told_apart:
            return self._resolved(entry)
        declared = entry.declared_policy
        is_parallel = declared is not None and is_object(declared) and declared.get("parallel_safe") is True
        # All that overlays can match, its name left out: none of them names it.
        alike = (entry.source, is_parallel, entry.connection_name, entry.tool_kind)
        # Neighbours are mostly alike, and comparing is cheaper than hashing.
        if self._latest is None or alike != self._latest[0]:
            if alike not in self._known:
                self._known[alike] = self._resolved(entry)
            self._latest = (alike, self._known[alike])
        return self._latest[1]

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
