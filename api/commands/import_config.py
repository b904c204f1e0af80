"""`sluicegate import`: take over the servers of an `mcp.json`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from api.commands.connections import CONNECTIONS
from api.commands.failures import UsageFailed
from api.commands.json_input import read_json_file
from api.commands.option_groups import with_groups
from api.commands.output import clean, print_json, print_line
from api.commands.server import Admin, Server
from api.configuration.mcp_json import Entry, HTTPEntry, StdioEntry, read_servers
from api.configuration.problems import DocumentProblem

FIRST_PORT = 8100
"""The port that the first bridge is suggested on; the next takes the next."""

app = typer.Typer()


@app.command("import")
@with_groups
def import_servers(
    admin: Admin,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An mcp.json; - is standard input.")],
    tools: Annotated[
        str | None,
        typer.Option(
            help="What may be executed of each: exact names by comma, `*` for all; without it none."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be made, and make nothing.")
    ] = False,
) -> None:
    """Make a connection for each HTTP server of an `mcpServers` file; those that exist stay as they are.

    Servers that are programs are listed with the two commands that put them behind a bridge. Credentials are
    not taken over.
    """
    try:
        entries = read_servers(read_json_file(file))
    except DocumentProblem as problem:
        raise UsageFailed(f"{str(file)!r}: {problem}") from problem
    with admin.server() as server:
        rows = _import(server, entries, tools, dry_run=dry_run)
    if admin.as_json:
        print_json(rows)
        return
    for row in rows:
        print_line(clean(f"{row['listed_name']}: {row['state']}"))
        for line in row["notes"]:
            print_line(clean(f"    {line}"))


def _import(
    server: Server, entries: Sequence[Entry], tools: str | None, *, dry_run: bool
) -> list[dict[str, Any]]:
    known = {connection["name"]: connection["url"] for connection in server.pages(CONNECTIONS)}
    rows: list[dict[str, Any]] = []
    port = FIRST_PORT
    for entry in entries:
        if isinstance(entry, StdioEntry):
            rows.append(_bridge(entry, port))
            port += 1
        elif isinstance(entry, HTTPEntry):
            rows.append(_connect(server, entry, known, tools, dry_run=dry_run))
        else:
            rows.append(_row(entry.listed_name, None, "not usable", [entry.reason]))
    return rows


def _connect(
    server: Server, entry: HTTPEntry, known: dict[str, str], tools: str | None, *, dry_run: bool
) -> dict[str, Any]:
    notes = list(entry.notes)
    if entry.name in known:
        same = known[entry.name] == entry.url
        state = (
            "exists already; see `connections set`"
            if same
            else f"exists already with another URL, {known[entry.name]}"
        )
        return _row(entry.listed_name, entry.name, state, notes)
    if dry_run:
        return _row(entry.listed_name, entry.name, f"would become connection {entry.name}", notes)
    body = entry.body
    if tools is not None:
        body["tools_to_execute"] = [name for name in tools.split(",") if name]
    made = server.send("POST", CONNECTIONS, body=body).json()
    if made["last_failure"] is not None:
        notes.append(f"{made['last_failure']['stage']}: {made['last_failure']['message']}")
    notes.append(f"{made['tool_count']} tools; may execute {made['tools_to_execute'] or 'none yet'}")
    return _row(entry.listed_name, entry.name, f"is connection {entry.name} ({made['health']})", notes)


def _bridge(entry: StdioEntry, port: int) -> dict[str, Any]:
    start, connect = entry.bridge(port)
    notes = [start, connect]
    if entry.variables:
        notes.insert(0, f"set {', '.join(entry.variables)} in the bridge's environment, and nothing else")
    return _row(entry.listed_name, entry.name, "is a program: put it behind a bridge", notes)


def _row(listed_name: str, name: str | None, state: str, notes: list[str]) -> dict[str, Any]:
    return {"listed_name": listed_name, "connection": name, "state": state, "notes": notes}
