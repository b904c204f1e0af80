"""`sluicegate tools`: the tools that an API key may use."""

from typing import Any

import typer

from api.commands.narrowing import Narrowing
from api.commands.option_groups import with_groups
from api.commands.output import print_json, print_table
from api.commands.server import Caller

TOOLS = "/v1/mcp/tools"

app = typer.Typer(no_args_is_help=True)


@app.command("list")
@with_groups
def list_tools(caller: Caller, narrowing: Narrowing) -> None:
    """List the tools that this key may use in such a request."""
    with caller.server() as server:
        listing = server.send("GET", TOOLS, headers=narrowing.headers()).json()
    if caller.as_json:
        print_json(listing)
        return
    _show(listing)


@app.command()
@with_groups
def explain(caller: Caller, narrowing: Narrowing) -> None:
    """List them, and every hidden tool with the level that removed it; for keys that may know."""
    with caller.server() as server:
        listing = server.send("GET", TOOLS, params={"explain": 1}, headers=narrowing.headers()).json()
    if caller.as_json:
        print_json(listing)
        return
    _show(listing)
    hidden: list[dict[str, str]] = listing["hidden"] or []
    print_table(
        ("hidden tool", "level", "reason"),
        [(tool["name"], tool["level"], tool["reason"]) for tool in hidden],
        empty="No tool is hidden.",
    )


def _show(listing: dict[str, Any]) -> None:
    functions = [tool["function"] for tool in listing["tools"]]
    print_table(
        ("tool", "arguments (* required)", "description"),
        [
            (function["name"], _arguments(function["parameters"]), function["description"])
            for function in functions
        ],
        empty="This key may use no tools in such a request; `sluicegate explain KEY` says why.",
    )


def _arguments(schema: dict[str, Any]) -> str:
    required: list[str] = schema.get("required") or []
    properties: dict[str, Any] = schema.get("properties") or {}
    return ", ".join(f"{name}{'*' if name in required else ''}" for name in properties)
