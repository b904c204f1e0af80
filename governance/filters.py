"""Read tool lists and filter headers into values that admit or refuse a name. Pure: no I/O.

Names are compared literally. The only patterns are the ones written here: `*` alone in a tool list, `*` in
either header, and `<connection>-*` in the tools header.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.names import CONNECTION_NAME, EXPOSED_NAME, NOTHING_WORD

WILDCARD: Final = "*"
"""Stands for every tool of a list, or every connection of a header."""

CLIENTS_HEADER: Final = "x-mcp-include-clients"
"""Narrows one request to connections."""

TOOLS_HEADER: Final = "x-mcp-include-tools"
"""Narrows one request to tools."""

_WHOLE_CONNECTION = "-*"


@dataclass(frozen=True)
class ToolList:
    """The tools that a connection or a key admits, by upstream name."""

    everything: bool
    names: frozenset[str]

    def admits(self, name: str) -> bool:
        """Say whether the tool with exactly this upstream name is on the list."""
        return self.everything or name in self.names

    @property
    def is_empty(self) -> bool:
        """Whether no name at all is admitted."""
        return not self.everything and not self.names

    def overlaps(self, other: "ToolList") -> bool:
        """Say whether a name can be on both lists; nothing is asked of the tools that exist."""
        if self.is_empty or other.is_empty:
            return False
        return self.everything or other.everything or not self.names.isdisjoint(other.names)


NO_TOOLS: Final = ToolList(everything=False, names=frozenset())
"""Default deny."""

ALL_TOOLS: Final = ToolList(everything=True, names=frozenset())
"""What `["*"]` means."""


def parse_tool_list(value: Sequence[str] | None) -> ToolList:
    """Read `tools_to_execute`: None or [] admit nothing, ["*"] admits everything, else exact names.

    A `*` beside other names is refused where lists are written (`tool_list_problem`); read here it is a
    literal name, so that a doubtful list never grants more than it spells out.
    """
    if not value:
        return NO_TOOLS
    if len(value) == 1 and value[0] == WILDCARD:
        return ALL_TOOLS
    return ToolList(everything=False, names=frozenset(value))


def tool_list_problem(value: JSON) -> str | None:
    """Return why a list may not be written, or None.

    Any JSON value may be passed: None and a list of strings are fine, with `*` only on its own.
    """
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        return f'A tool list is an array of exact tool names, ["{WILDCARD}"] for all, or [] for none.'
    entries = cast("Sequence[object]", value)
    problems = (_list_entry_problem(entry, alone=len(entries) == 1) for entry in entries)
    return next((problem for problem in problems if problem), None)


def _list_entry_problem(entry: object, *, alone: bool) -> str | None:
    if not isinstance(entry, str):
        return "Each entry of a tool list is a string, the exact name of a tool."
    if not entry.strip():
        return "An entry of the tool list is blank; remove it. An empty list grants nothing."
    if entry == WILDCARD:
        return None if alone else f'"{WILDCARD}" stands for all tools and cannot stand beside other entries.'
    if WILDCARD in entry:
        return f'Patterns such as {entry!r} are not supported; list exact names, or ["{WILDCARD}"] for all.'
    return None


@dataclass(frozen=True)
class InvalidFilter:
    """A filter header that means nothing certain: answered with 400, never guessed at."""

    header: str
    entry: str
    reason: str
    code: ErrorCode = ErrorCode.INVALID_FILTER


@dataclass(frozen=True)
class RequestFilter:
    """What the two filter headers of a request ask for; None means that the header was not sent.

    Connections of `whole_connections` are admitted with all their tools, by `<connection>-*`.
    """

    clients: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    whole_connections: frozenset[str] = frozenset()
    asks_for_nothing: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find out once whether a header was sent that names nothing: no tool at all in this request."""
        no_clients = self.clients is not None and not self.clients
        no_tools = self.tools is not None and not self.tools and not self.whole_connections
        object.__setattr__(self, "asks_for_nothing", no_clients or no_tools)

    def admits(self, connection: str, exposed_name: str) -> bool:
        """Say whether both headers let the tool through."""
        clients, tools = self.clients, self.tools
        if clients is not None and connection not in clients and WILDCARD not in clients:
            return False
        return (
            tools is None
            or exposed_name in tools
            or connection in self.whole_connections
            or WILDCARD in tools
        )


NO_FILTER: Final = RequestFilter()
"""No header was sent: no narrowing."""


def parse_request_filter(
    include_clients: Sequence[str] | None, include_tools: Sequence[str] | None
) -> RequestFilter | InvalidFilter:
    """Read the filter headers, each as the values received, or None where the header is absent.

    Repeated headers are one list. A header that is empty, holds only commas and blanks, or says `none` asks
    for nothing. Names are checked for their form only, so an answer reveals nothing about what exists.
    """
    clients = _entries(include_clients)
    tools = _entries(include_tools)
    for entry in clients or ():
        if reason := _client_problem(entry, clients or ()):
            return InvalidFilter(CLIENTS_HEADER, entry, reason)
    for entry in tools or ():
        if reason := _tool_problem(entry, tools or ()):
            return InvalidFilter(TOOLS_HEADER, entry, reason)
    whole = frozenset(
        entry.removesuffix(_WHOLE_CONNECTION) for entry in tools or () if entry.endswith(_WHOLE_CONNECTION)
    )
    return RequestFilter(
        clients=None if clients is None else frozenset(clients) - {NOTHING_WORD},
        tools=None if tools is None else frozenset(entry for entry in tools if _names_a_tool(entry)),
        whole_connections=whole,
    )


def _entries(values: Sequence[str] | None) -> tuple[str, ...] | None:
    if values is None:
        return None
    trimmed = (entry.strip(" \t") for value in values for entry in value.split(","))
    return tuple(entry for entry in trimmed if entry)


def _names_a_tool(entry: str) -> bool:
    return entry != NOTHING_WORD and not entry.endswith(_WHOLE_CONNECTION)


def _client_problem(entry: str, entries: Sequence[str]) -> str | None:
    if entry == NOTHING_WORD:
        return _nothing_problem(entries)
    if entry == WILDCARD or CONNECTION_NAME.fullmatch(entry):
        return None
    if WILDCARD in entry:
        return "Connections cannot be selected by pattern; write whole names, or * for all."
    return (
        "This cannot be the name of a connection; write what stands before the first hyphen of a tool's name."
    )


def _tool_problem(entry: str, entries: Sequence[str]) -> str | None:
    if entry == NOTHING_WORD:
        return _nothing_problem(entries)
    if entry == WILDCARD:
        return None
    connection, hyphen, tool = entry.partition("-")
    if not hyphen:
        return "Tools are written <connection>-<tool>, or <connection>-* for all of a connection."
    if WILDCARD in entry and tool != WILDCARD:
        return "Partial patterns are not supported; write whole names, <connection>-*, or *."
    if not CONNECTION_NAME.fullmatch(connection) or not (tool == WILDCARD or EXPOSED_NAME.fullmatch(entry)):
        return "This cannot be the name of a tool; write names as the tool list shows them."
    return None


def _nothing_problem(entries: Sequence[str]) -> str | None:
    if set(entries) == {NOTHING_WORD}:
        return None
    return f"{NOTHING_WORD} asks for no tools and cannot stand beside other names."
