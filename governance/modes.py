"""Governance modes: which implementation of a tool may be bound, and where implementations come from.

Pure: no I/O. Source: core document, governance modes and implementation sources.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from governance.names import SUBAGENT_TOOLS


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


class SelectionRule(StrEnum):
    """Which rule refused an implementation."""

    RESERVED = "reserved"
    """Only the default implementation of a reserved tool may be bound."""
    NOT_APPROVED = "not_approved"
    """The implementation is not on the definition's approved list."""
    NOT_OF_THIS_TOOL = "not_of_this_tool"
    """The definition has no such implementation, or it is retired."""
    NO_DEFAULT = "no_default"
    """The definition has no default implementation, and none was named."""


CORE_PREFIX: Final = "core_matrix__"
"""Names beginning so are reserved, and no program or runtime may declare them."""

SOURCES_WITH_RUNNER: Final = frozenset({SourceKind.CORE_MATRIX, SourceKind.MCP})
"""Source kinds whose calls something can make; a tool of any other kind is declared but in no catalog."""


@dataclass(frozen=True)
class Selected:
    """The implementation to bind; `is_override` where the caller named one that is not the default."""

    implementation_ref: str
    is_override: bool


@dataclass(frozen=True)
class SelectionRefused:
    """The implementation may not be bound, and the rule that says so."""

    rule: SelectionRule


def is_reserved_name(name: str) -> bool:
    """Say whether a name belongs to the built-in catalog: the prefix, or one of the subagent family."""
    return name in SUBAGENT_TOOLS or name.startswith(CORE_PREFIX)


def mode_of(tool_name: str, source: SourceKind) -> GovernanceMode:
    """Return the mode of a tool by its name and the source of its winning implementation."""
    return GovernanceMode.RESERVED if is_reserved_name(tool_name) else ordinary_mode(source)


def ordinary_mode(source: SourceKind) -> GovernanceMode:
    """Return the mode of a tool whose name is not reserved."""
    if source is SourceKind.EXECUTION_RUNTIME:
        return GovernanceMode.WHITELIST_ONLY
    return GovernanceMode.REPLACEABLE


def select_implementation(
    mode: GovernanceMode,
    default_ref: str | None,
    candidates: Collection[str],
    preferred: str | None = None,
    approved: Collection[str] | None = None,
) -> Selected | SelectionRefused:
    """Choose the implementation of a tool, by reference; `preferred` is the caller's wish.

    `candidates` are the live implementations of the definition, the default among them. `approved` is the
    operator's list of a `whitelist_only` tool; None stands for the default alone. Source: core document,
    governance modes; core-matrix selection order (the mode is asked before the ownership).
    """
    wanted = default_ref if preferred is None else preferred
    if wanted is None:
        return SelectionRefused(SelectionRule.NO_DEFAULT)
    if mode is GovernanceMode.RESERVED and wanted != default_ref:
        return SelectionRefused(SelectionRule.RESERVED)
    if mode is GovernanceMode.WHITELIST_ONLY:
        listed = wanted == default_ref if approved is None else wanted in approved
        if not listed:
            return SelectionRefused(SelectionRule.NOT_APPROVED)
    if wanted not in candidates:
        return SelectionRefused(SelectionRule.NOT_OF_THIS_TOOL)
    return Selected(wanted, is_override=wanted != default_ref)
