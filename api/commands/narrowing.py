"""The filter headers of one request, as options."""

from dataclasses import dataclass
from typing import Annotated

import typer

from governance.filters import CLIENTS_HEADER, TOOLS_HEADER


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """What one request narrows itself to."""

    include_clients: Annotated[
        str | None, typer.Option(help="Only these connections, by comma; `*` all, `none` nothing.")
    ] = None
    include_tools: Annotated[
        str | None, typer.Option(help="Only these tools, by comma: conn-tool, conn-*, `*`, `none`.")
    ] = None

    def headers(self) -> dict[str, str]:
        """Return the headers that were asked for."""
        given = {CLIENTS_HEADER: self.include_clients, TOOLS_HEADER: self.include_tools}
        return {name: value for name, value in given.items() if value is not None}
