"""`sluicegate outcomes`: calls of which nobody knows whether they ran, and what an operator says of them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from api.commands.failures import UsageFailed
from api.commands.json_input import read_json_file
from api.commands.option_groups import with_groups
from api.commands.output import print_facts, print_json, print_line, print_table, when
from api.commands.server import Admin
from governance.canonical import JSON
from governance.resolutions import ResolutionKind

OUTCOMES = "/api/v1/unknown-outcomes"

app = typer.Typer(no_args_is_help=True)

Invocation = Annotated[str, typer.Argument(help="The invocation's id.", metavar="INVOCATION")]


@app.command("list")
@with_groups
def list_outcomes(
    admin: Admin,
    all_: Annotated[bool, typer.Option("--all", help="Also those that were resolved.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows, at most.")] = 50,
) -> None:
    """List calls that were sent and whose effect nobody knows, newest first."""
    path = OUTCOMES if all_ else f"{OUTCOMES}?resolved=false"
    with admin.server() as server:
        items = server.pages(path, limit)
    if admin.as_json:
        print_json(items)
        return
    print_table(
        ("invocation", "tool", "round", "reason", "ended", "resolution"),
        [
            (
                item["invocation_id"],
                item["tool"],
                item["round_id"],
                item["reason"],
                when(item["finished_at"]),
                _said(item, "kind"),
            )
            for item in items
        ],
        empty="There are no unknown outcomes." if all_ else "There are no unresolved outcomes.",
    )


@app.command()
@with_groups
def show(admin: Admin, invocation: Invocation) -> None:
    """Look at one: when it was sent, by which worker, and what was said of it since."""
    with admin.server() as server:
        found = server.get(f"{OUTCOMES}/{invocation}")
    _show(admin, found)


@app.command()
@with_groups
def resolve(
    admin: Admin,
    invocation: Invocation,
    resolution: Annotated[ResolutionKind, typer.Argument(help="What happened, or what is to happen.")],
    result: Annotated[
        Path | None,
        typer.Option("-f", "--result", help="JSON file with the tool's result; - is standard input."),
    ] = None,
    note: Annotated[str | None, typer.Option(help="How you know; kept in the audit trail.")] = None,
) -> None:
    """Say what became of a call, once; a round that waits for this goes on.

    `succeeded` needs the result. `retry` makes the call again, although the first one may have run.
    """
    if (result is not None) != (resolution is ResolutionKind.SUCCEEDED):
        raise UsageFailed("--result belongs to 'succeeded', and to nothing else")
    body: dict[str, JSON] = {"resolution": resolution.value}
    if result is not None:
        body["result"] = read_json_file(result)
    if note is not None:
        body["note"] = note
    with admin.server() as server:
        answer = server.send("POST", f"{OUTCOMES}/{invocation}/resolve", body=body).json()
    _show(admin, answer)
    if not admin.as_json and not answer["told"]:
        print_line("The engine is away: what follows from this is done when it is back.")


def _show(admin: Admin, found: dict[str, Any]) -> None:
    if admin.as_json:
        print_json(found)
        return
    print_facts(
        [
            ("Invocation", found["invocation_id"]),
            ("Tool", found["tool"]),
            ("Round", f"{found['round_id']}, call {found['position']}"),
            ("Key", found["key_id"]),
            ("Status", f"{found['status']}, outcome unknown"),
            ("Reason", found["reason"]),
            ("Idempotency key", found["idempotency_key"]),
            ("Resolution", _said(found, "kind")),
            ("Resolved by", _said(found, "by")),
            ("Note", _said(found, "note")),
        ]
    )
    print_table(
        ("send", "worker", "sent", "answered", "outcome"),
        [
            (
                send["number"],
                send["worker"],
                when(send["sent_at"]),
                when(send["answered_at"]),
                send["outcome"],
            )
            for send in found["sends"]
        ],
        empty="Nothing was sent.",
    )


def _said(found: dict[str, Any], fact: str) -> JSON:
    """Return a fact of the resolution, None where there is none."""
    resolution: dict[str, JSON] | None = found["resolution"]
    return None if resolution is None else resolution[fact]
