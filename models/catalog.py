"""The world that decisions are taken in: a caller's rules, the connections' rules and the live tools."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from governance.decision import DecisionContext, Denied, GovernedTool, decide
from governance.filters import RequestFilter
from governance.modes import (
    SOURCES_WITH_RUNNER,
    GovernanceMode,
    SelectionRefused,
    SelectionRule,
    SourceKind,
    select_implementation,
)
from models.connection import load_connection_rules
from models.key import ApiKey, load_key_rules
from models.tool import CatalogTool, load_approved, load_catalog

NO_RUNNER = "no_runner"
"""Why a tool is withheld: nothing can make its calls yet."""

CHANGED_SINCE_PINNED = "changed_since_pinned"
"""Why a tool is withheld: it is not what an operator accepted."""


@dataclass(frozen=True)
class CallerPlace:
    """Where a caller stands, beyond its key: which catalog it sees, through which profile and policy."""

    program_version_id: str | None = None
    profile_names: frozenset[str] | None = None
    withheld_names: frozenset[str] = frozenset()
    implementations: Mapping[str, str] = field(default_factory=dict[str, str])
    """The implementation wanted of a tool, by reference."""


GATEWAY = CallerPlace()
"""A caller without a program: the gateway's tools, no profile, no subagent policy."""


@dataclass(frozen=True)
class RefusedImplementation:
    """An implementation that was asked for and may not be bound."""

    implementation_ref: str
    rule: SelectionRule


@dataclass(frozen=True)
class World:
    """Everything that decides what a caller may use in one request."""

    context: DecisionContext
    catalog: Mapping[str, CatalogTool]
    """Live tools by exposed name, in name order, each as the implementation that would be bound."""
    governed: Mapping[str, GovernedTool]
    """The same tools as `decide` takes them."""
    refused: Mapping[str, RefusedImplementation] = field(default_factory=dict[str, RefusedImplementation])
    """The tools whose wanted implementation may not be bound; they are withheld."""

    def visible(self) -> tuple[CatalogTool, ...]:
        """Return the tools that the caller may see, in name order."""
        return tuple(
            self.catalog[name]
            for name, tool in self.governed.items()
            if not isinstance(decide(self.context, tool), Denied)
        )


def load_world(session: Session, key: ApiKey, request: RequestFilter, place: CallerPlace = GATEWAY) -> World:
    """Read the world of a caller in a handful of statements, whatever the number of tools."""
    context = load_context(session, key, request, place)
    rows = load_catalog(session, place.program_version_id, place.implementations)
    catalog, refused = _selected(session, rows, place.implementations)
    governed = {name: governed_tool(tool, refused.get(name)) for name, tool in catalog.items()}
    return World(context, catalog, governed, refused)


def load_context(
    session: Session, key: ApiKey, request: RequestFilter, place: CallerPlace = GATEWAY
) -> DecisionContext:
    """Read what decisions depend on, the tools left out."""
    return DecisionContext(
        key=load_key_rules(session, key),
        connections=load_connection_rules(session),
        request=request,
        profile_names=place.profile_names,
        withheld_names=place.withheld_names,
        is_program=place.program_version_id is not None,
    )


def governed_tool(tool: CatalogTool, refused: RefusedImplementation | None = None) -> GovernedTool:
    """Return a tool as `decide` takes it."""
    withheld: str | None = None
    if refused is not None:
        withheld = f"implementation_{refused.rule.value}"
    elif tool.source_kind not in SOURCES_WITH_RUNNER:
        withheld = NO_RUNNER
    elif tool.is_changed:
        withheld = CHANGED_SINCE_PINNED
    # A tool of a connection that is gone must not pass for one that belongs to none.
    connection = tool.connection_name or "" if tool.source_kind is SourceKind.MCP else None
    return GovernedTool(
        tool.exposed_name,
        connection,
        tool.upstream_name,
        requires_approval=tool.requires_approval,
        withheld=withheld,
    )


def _selected(
    session: Session, rows: Sequence[CatalogTool], wanted: Mapping[str, str]
) -> tuple[dict[str, CatalogTool], dict[str, RefusedImplementation]]:
    """Choose the implementation of each tool; a tool whose wanted one is refused keeps its default."""
    catalog = {row.exposed_name: row for row in rows if row.is_default}
    restricted = {
        row.definition_id
        for row in catalog.values()
        if row.governance_mode is GovernanceMode.WHITELIST_ONLY and row.has_approved_list
    }
    approved = load_approved(session, restricted)
    refused: dict[str, RefusedImplementation] = {}
    for name in {*wanted, *(row.exposed_name for row in catalog.values() if row.definition_id in restricted)}:
        default = catalog.get(name)
        if default is None:
            continue
        candidates = {row.implementation_ref: row for row in _named(rows, name, default)}
        choice = select_implementation(
            default.governance_mode,
            default.implementation_ref,
            candidates,
            wanted.get(name),
            approved.get(default.definition_id),
        )
        if isinstance(choice, SelectionRefused):
            refused[name] = RefusedImplementation(wanted.get(name, default.implementation_ref), choice.rule)
        else:
            catalog[name] = candidates[choice.implementation_ref]
    return catalog, refused


def _named(rows: Iterable[CatalogTool], name: str, default: CatalogTool) -> Iterable[CatalogTool]:
    return (row for row in rows if row.exposed_name == name and row.definition_id == default.definition_id)
