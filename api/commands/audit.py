"""`sluicegate audit`: the audit trail's head, and the proof that nothing of the trail was changed."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from api.commands.failures import REFUSED, UsageFailed
from api.commands.json_input import read_json_file
from api.commands.option_groups import with_groups
from api.commands.output import print_facts, print_json, print_line, print_table
from api.commands.server import Admin
from governance.canonical import JSON, is_array, is_object

AUDIT = "/api/v1/audit"

app = typer.Typer(no_args_is_help=True)


@app.command()
@with_groups
def head(
    admin: Admin,
    out: Annotated[Path | None, typer.Option("--out", help="Write the head to this file too.")] = None,
) -> None:
    """Seal the trail and show its head; kept elsewhere, it proves later that the trail was not cut off."""
    with admin.server() as server:
        answer = server.send("POST", f"{AUDIT}/seal").json()
    if out is not None:
        out.write_text(json.dumps(answer, indent=2) + "\n", "utf-8")
    if admin.as_json:
        print_json(answer)
    else:
        print_facts([(name.replace("_", " "), value) for name, value in answer.items()])


@app.command()
@with_groups
def verify(
    admin: Admin,
    head_file: Annotated[
        list[Path] | None,
        typer.Option("--head", help="A head that `audit head` wrote, or a list of such; repeatable."),
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Walk over this many links from the end, and not over all.")
    ] = None,
) -> None:
    """Walk along the chain over the trail; exit status 1 where something was changed, removed or cut off."""
    heads = [kept for file in head_file or () for kept in read_heads(file)]
    body: dict[str, JSON] = {"heads": heads} if last is None else {"heads": heads, "last": last}
    with admin.server() as server:
        answer = server.send("POST", f"{AUDIT}/verify", body=body).json()
    _show(admin, answer)
    if not answer["holds"]:
        raise typer.Exit(REFUSED)


@app.command()
@with_groups
def prune(
    admin: Admin,
    before: Annotated[
        datetime, typer.Option(help="Events older than this are removed; local time without a zone.")
    ],
) -> None:
    """Seal the trail and remove its events older than a time; the chain goes on from there."""
    moment = before.astimezone()
    with admin.server() as server:
        answer = server.send("POST", f"{AUDIT}/prune", body={"before": moment.isoformat()}).json()
    if admin.as_json:
        print_json(answer)
    else:
        print_line(f"{answer['removed']} events removed; the trail goes on after {answer['pruned_length']}.")


def read_heads(file: Path) -> list[dict[str, Any]]:
    """Read a file of exported heads.

    Raises:
        UsageFailed: it holds something else.
    """
    value = read_json_file(file)
    heads: list[dict[str, Any]] = []
    for found in value if is_array(value) else [value]:
        if not is_object(found) or "length" not in found or "hash" not in found:
            raise UsageFailed(f"{str(file)!r} holds no head of the audit trail")
        heads.append({"length": found["length"], "hash": found["hash"]})
    return heads


def _show(admin: Admin, answer: dict[str, Any]) -> None:
    if admin.as_json:
        print_json(answer)
        return
    if answer["holds"]:
        print_line(f"The trail holds: {answer['checked']} events checked, sealed up to {answer['length']}.")
        return
    rows = [(one["fault"], one["number"], one["event_id"]) for one in answer["problems"]]
    print_table(("fault", "link", "event"), rows, empty="")
    print_line("The audit trail is broken.")
