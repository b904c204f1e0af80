"""`sluicegate policies`: the overlays that say which tools may run beside others."""

from pathlib import Path
from typing import Annotated, Any

import typer

from api.commands.failures import UsageFailed
from api.commands.json_input import read_json_file
from api.commands.option_groups import with_groups
from api.commands.output import print_json, print_line, print_table
from api.commands.server import Admin
from governance.canonical import JSON, is_array, is_object

OVERLAYS = "/api/v1/policies/tool-overlays"

app = typer.Typer(no_args_is_help=True)


@app.command()
@with_groups
def get(admin: Admin) -> None:
    """Show the overlays in order; later ones win."""
    with admin.server() as server:
        _show(admin, server.get(OVERLAYS))


@app.command("set")
@with_groups
def set_overlays(
    admin: Admin,
    file: Annotated[
        Path,
        typer.Option("-f", "--file", help="JSON list of {match, execution_policy}; - is standard input."),
    ],
) -> None:
    """Set the whole list of overlays; a round that runs already keeps what it froze.

    An overlay matches by server_slug (the connection's name), tool_name, tool_kind and tool_source, and says
    {"parallel_safe": true} or false.
    """
    given: JSON = read_json_file(file)
    overlays = given.get("overlays") if is_object(given) else given
    if not is_array(overlays):
        raise UsageFailed(f"{str(file)!r} holds no list of overlays")
    with admin.server() as server:
        answer = server.send("PUT", OVERLAYS, body={"overlays": overlays}).json()
    _show(admin, answer)
    if not admin.as_json:
        print_line(f"{len(answer['changed_tools'])} tools changed.")


def _show(admin: Admin, answer: dict[str, Any]) -> None:
    if admin.as_json:
        print_json(answer)
        return
    print_table(
        ("match", "parallel safe"),
        [
            (
                [f"{name}={value}" for name, value in overlay["match"].items()],
                overlay["execution_policy"].get("parallel_safe"),
            )
            for overlay in answer["overlays"]
        ],
        empty="There are no overlays: tools of MCP servers run one after another.",
    )
