"""Decide whether a caller may use a tool: one rule for listing, injecting and executing. Pure: no I/O.

Effective tools are those of the connection's list, and of the key's configuration where the key has one, else
of the request's headers. A header that names nothing always means nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from governance.codes import ErrorCode
from governance.filters import RequestFilter, ToolList, parse_tool_list


class Level(StrEnum):
    """Who refused a tool."""

    KEY = "key"
    CATALOG = "catalog"
    PROFILE = "profile"
    SUBAGENTS = "subagents"
    CONNECTION = "connection"
    REQUEST = "request"


class RequestFilterMode(StrEnum):
    """What the headers do where the key has a configuration of its own."""

    OVERRIDE = "override"
    NARROW = "narrow"


@dataclass(frozen=True)
class ConnectionRules:
    """What a connection admits; `tools_to_execute` as stored, see `parse_tool_list`."""

    name: str
    enabled: bool
    tools_to_execute: tuple[str, ...] | None
    open_to_all_keys: bool
    revision: int = field(default=0, compare=False)
    """Counts the edits of the connection, for the audit trail."""
    tools: ToolList = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the list once: it is asked for every tool of the connection."""
        object.__setattr__(self, "tools", parse_tool_list(self.tools_to_execute))


@dataclass(frozen=True)
class KeyRules:
    """What a key may use: connection name to tool list, or None where the key has no configuration.

    An empty mapping is a configuration that grants nothing. `core_tools` is the operator's flag that lets a
    key without a program use the tools that belong to no connection.
    """

    enabled: bool
    mcp_configs: Mapping[str, tuple[str, ...]] | None
    request_filter: RequestFilterMode = RequestFilterMode.OVERRIDE
    core_tools: bool = False
    revision: int = field(default=0, compare=False)
    """Counts the edits of the key, for the audit trail."""
    tools: Mapping[str, ToolList] = field(init=False, repr=False, compare=False)
    overrides_request: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the lists once: they are asked for every tool."""
        overrides = self.mcp_configs is not None and self.request_filter is RequestFilterMode.OVERRIDE
        object.__setattr__(self, "overrides_request", overrides)
        configs = self.mcp_configs or {}
        lists = {connection: parse_tool_list(names) for connection, names in configs.items()}
        object.__setattr__(self, "tools", lists)


@dataclass(frozen=True)
class DecisionContext:
    """Everything a decision depends on, except the tool; `connections` by name.

    `profile_names` are the names that the caller's profile admits, None where no profile filters.
    `withheld_names` are those that the subagent policy takes away. `is_program` says that the caller is a
    program, which has the tools of no connection (built-in, runtime and its own) whatever its key's flags.
    """

    key: KeyRules
    connections: Mapping[str, ConnectionRules]
    request: RequestFilter
    profile_names: frozenset[str] | None = None
    withheld_names: frozenset[str] = frozenset()
    is_program: bool = False


@dataclass(frozen=True)
class GovernedTool:
    """What a decision needs to know of a tool; `connection` is None for one that belongs to no connection.

    `withheld` says why the catalog itself does not offer the tool now, for operators: it has no runner, it
    was changed since an operator pinned it, or the implementation asked for may not be bound.
    """

    exposed_name: str
    connection: str | None
    upstream_name: str
    requires_approval: bool = False
    withheld: str | None = None


@dataclass(frozen=True)
class Allowed:
    """The tool may be seen and used."""


@dataclass(frozen=True)
class NeedsApproval:
    """The tool may be seen, and used once a person agrees."""

    reason: str


@dataclass(frozen=True)
class Denied:
    """The tool may be neither seen nor used; callers see only the code, operators level and reason."""

    level: Level
    code: ErrorCode
    reason: str


Decision: TypeAlias = Allowed | NeedsApproval | Denied
"""The answer for one tool."""

# A decision is taken for every tool of a listing, so the possible answers are made once.
_ALLOWED = Allowed()
_NEEDS_APPROVAL = NeedsApproval("tool_requires_approval")
_KEY_DISABLED = Denied(Level.KEY, ErrorCode.KEY_DISABLED, "key_disabled")
_CONNECTION_DISABLED = Denied(Level.CONNECTION, ErrorCode.TOOL_NOT_FOUND, "connection_disabled")
_OFF_CONNECTION_LIST = Denied(Level.CONNECTION, ErrorCode.TOOL_NOT_ALLOWED, "not_on_connection_list")
_OFF_KEY = Denied(Level.KEY, ErrorCode.TOOL_NOT_ALLOWED, "connection_not_granted_to_key")
_OFF_KEY_LIST = Denied(Level.KEY, ErrorCode.TOOL_NOT_ALLOWED, "not_on_key_list")
_NO_CORE_TOOLS = Denied(Level.KEY, ErrorCode.TOOL_NOT_ALLOWED, "core_tools_not_granted_to_key")
_EMPTY_REQUEST = Denied(Level.REQUEST, ErrorCode.TOOL_NOT_ALLOWED, "request_asks_for_no_tools")
_OFF_REQUEST = Denied(Level.REQUEST, ErrorCode.TOOL_NOT_ALLOWED, "not_in_request")
_OFF_PROFILE = Denied(Level.PROFILE, ErrorCode.TOOL_NOT_ALLOWED, "not_in_profile")
_OFF_SUBAGENTS = Denied(Level.SUBAGENTS, ErrorCode.TOOL_NOT_ALLOWED, "withheld_by_subagent_policy")


def decide(context: DecisionContext, tool: GovernedTool) -> Decision:
    """Say whether the caller may use the tool; the first level that refuses is the one named.

    Levels are asked in the order key enabled, catalog, profile, subagent policy, connection, key
    configuration, request.
    """
    if not context.key.enabled:
        return _KEY_DISABLED
    if tool.withheld is not None:
        return Denied(Level.CATALOG, ErrorCode.TOOL_NOT_ALLOWED, tool.withheld)
    if context.profile_names is not None and tool.exposed_name not in context.profile_names:
        return _OFF_PROFILE
    if tool.exposed_name in context.withheld_names:
        return _OFF_SUBAGENTS
    denied = _core_denial(context) if tool.connection is None else _denial(context, tool, tool.connection)
    if denied is not None:
        return denied
    return _NEEDS_APPROVAL if tool.requires_approval else _ALLOWED


def revisions_of(context: DecisionContext, connection: str | None) -> dict[str, int]:
    """Return the revisions of the key's and the connection's rules that a decision was made on."""
    rules = context.connections.get(connection) if connection else None
    found = {"key_revision": context.key.revision}
    return found if rules is None else {**found, "connection_revision": rules.revision}


def has_access(key: KeyRules, connection: ConnectionRules) -> bool:
    """Say whether the key has any business with the connection, by configured names alone.

    Whether key or connection is enabled, what the upstream offers and what a request asks for never enter.
    """
    granted = _key_level(key, connection)
    return granted is not None and granted.overlaps(connection.tools)


def _key_level(key: KeyRules, connection: ConnectionRules) -> ToolList | None:
    """Return what the key admits of the connection; None where a configuration leaves it out."""
    if key.mcp_configs is None:
        return connection.tools
    named = key.tools.get(connection.name)
    if named is not None:
        return named
    return connection.tools if connection.open_to_all_keys else None


def _denial(context: DecisionContext, tool: GovernedTool, connection_name: str) -> Denied | None:
    connection = context.connections.get(connection_name)
    if connection is None or not connection.enabled:
        return _CONNECTION_DISABLED
    if not connection.tools.admits(tool.upstream_name):
        return _OFF_CONNECTION_LIST
    granted = _key_level(context.key, connection)
    if granted is None:
        return _OFF_KEY
    if not granted.admits(tool.upstream_name):
        return _OFF_KEY_LIST
    return _request_denial(context, tool, connection_name)


def _request_denial(context: DecisionContext, tool: GovernedTool, connection_name: str) -> Denied | None:
    request = context.request
    if request.asks_for_nothing:
        return _EMPTY_REQUEST
    # The key's own configuration overrides what the request declares, unless an operator set it to narrow.
    if context.key.overrides_request or request.admits(connection_name, tool.exposed_name):
        return None
    return _OFF_REQUEST


def _core_denial(context: DecisionContext) -> Denied | None:
    if not (context.is_program or context.key.core_tools):
        return _NO_CORE_TOOLS
    return _EMPTY_REQUEST if context.request.asks_for_nothing else None
