"""How commands name a key: by its id or by its name."""

from typing import Annotated
from uuid import UUID

import typer

from api.commands.failures import CommandFailed
from api.commands.server import Server

KEYS = "/api/v1/keys"

Key = Annotated[str, typer.Argument(metavar="KEY", help="A key's id or name.")]


def id_of(server: Server, key: str) -> str:
    """Return the id of a key given by id or by name.

    Raises:
        CommandFailed: no key has that name.
    """
    try:
        return str(UUID(key))
    except ValueError:
        pass
    found = next((one["id"] for one in server.pages(KEYS) if one["name"] == key), None)
    if found is None:
        raise CommandFailed(f"no key has the name {key!r}; `sluicegate keys list` shows them")
    return str(found)


def path_of(server: Server, key: str) -> str:
    """Return the path of a key given by id or by name."""
    return f"{KEYS}/{id_of(server, key)}"


def configuration_of(server: Server, key: str, what: str) -> str:
    """Return the path of what is configured for a key given by id or by name, such as its `tools`."""
    return f"/api/v1/mcp/keys/{id_of(server, key)}/{what}"
