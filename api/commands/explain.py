"""`sluicegate explain`: what a key may use, tool by tool."""

from typing import Annotated

import typer

from api.commands.key_names import id_of
from api.commands.narrowing import Narrowing
from api.commands.option_groups import with_groups
from api.commands.output import print_json, print_table
from api.commands.server import Admin

app = typer.Typer()


@app.command()
@with_groups
def explain(
    admin: Admin,
    narrowing: Narrowing,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key's id or name.")],
) -> None:
    """Say for every tool whether this key may use it in such a request, and which level refuses it."""
    with admin.server() as server:
        given = {
            "key": id_of(server, key),
            "include_clients": narrowing.include_clients,
            "include_tools": narrowing.include_tools,
        }
        params = {name: value for name, value in given.items() if value is not None}
        answer = server.get("/api/v1/explain", params)
    if admin.as_json:
        print_json(answer)
        return
    print_table(
        ("tool", "decision", "level", "reason"),
        [(one["tool"], one["decision"], one["level"], one["reason"]) for one in answer["tools"]],
        empty="There are no tools at all; `sluicegate connections list` shows the connections.",
    )
