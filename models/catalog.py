"""The world that decisions are taken in: a key's rules, the connections' rules and the live tools."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from governance.decision import DecisionContext, Denied, GovernedTool, decide
from governance.filters import RequestFilter
from models.connection import load_connections
from models.key import ApiKey, load_key_rules
from models.tool import CatalogTool, load_catalog


@dataclass(frozen=True)
class World:
    """Everything that decides what a key may use in one request."""

    context: DecisionContext
    catalog: Mapping[str, CatalogTool]
    """Live tools by exposed name, in name order."""
    governed: Mapping[str, GovernedTool]
    """The same tools as `decide` takes them."""

    def visible(self) -> tuple[CatalogTool, ...]:
        """Return the tools that the caller may see, in name order."""
        return tuple(
            self.catalog[name]
            for name, tool in self.governed.items()
            if not isinstance(decide(self.context, tool), Denied)
        )


def load_world(session: Session, key: ApiKey, request: RequestFilter) -> World:
    """Read the world of a key in four statements, whatever the number of tools."""
    context = DecisionContext(
        key=load_key_rules(session, key),
        connections={connection.name: connection.rules() for connection in load_connections(session)},
        request=request,
    )
    catalog = {tool.exposed_name: tool for tool in load_catalog(session)}
    governed = {
        name: GovernedTool(name, tool.connection_name, tool.upstream_name) for name, tool in catalog.items()
    }
    return World(context, catalog, governed)
