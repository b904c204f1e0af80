"""`sluicegate keys quota`: what a key may spend, and what it has spent."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from api.commands.failures import UsageFailed
from api.commands.key_names import Key, configuration_of
from api.commands.option_groups import with_groups
from api.commands.output import print_json, print_line, print_note, print_table
from api.commands.server import Admin

app = typer.Typer(no_args_is_help=True, help="What a key may spend.")

SHOWN = (
    ("requests_per_minute", "requests_this_minute"),
    ("requests_per_day", "requests_today"),
    ("tool_calls_per_minute", "tool_calls_this_minute"),
    ("tool_calls_per_day", "tool_calls_today"),
    ("concurrent_calls", "concurrent_calls"),
    ("budget_per_day", "cost_today"),
    ("budget_per_month", "cost_this_month"),
)
"""Each limit, and what is held against it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What can be limited; what is not given keeps its value."""

    requests_per_minute: Annotated[int | None, typer.Option(min=0, help="Chat and tool calls.")] = None
    requests_per_day: Annotated[int | None, typer.Option(min=0, help="Chat and tool calls.")] = None
    tool_calls_per_minute: Annotated[int | None, typer.Option(min=0, help="Tool calls.")] = None
    tool_calls_per_day: Annotated[int | None, typer.Option(min=0, help="Tool calls.")] = None
    concurrent_calls: Annotated[int | None, typer.Option(min=0, help="Under way at once.")] = None
    budget_per_day: Annotated[str | None, typer.Option(help="Money, such as 12.50.")] = None
    budget_per_month: Annotated[str | None, typer.Option(help="Money, such as 250.")] = None


@app.command("get")
@with_groups
def get_quota(admin: Admin, key: Key) -> None:
    """Show what limits a key, and what it has spent."""
    with admin.server() as server:
        _show(admin, server.get(configuration_of(server, key, "quota")))


@app.command("set")
@with_groups
def set_quota(admin: Admin, limits: Limits, key: Key) -> None:
    """Change limits of a key; those that are not given stay, and what it has spent counts on."""
    changes = {name: value for name, value in asdict(limits).items() if value is not None}
    if not changes:
        raise UsageFailed("nothing to change: give at least one limit, such as --requests-per-minute")
    with admin.server() as server:
        path = configuration_of(server, key, "quota")
        quota = server.get(path)
        # The server takes the whole quota: an edit of somebody else's meanwhile is refused, not undone.
        body: dict[str, Any] = {**(quota["limits"] or {}), **changes}
        _show(admin, server.send("PUT", path, body=body, headers={"if-match": quota["etag"]}).json())


@app.command("clear")
@with_groups
def clear_quota(
    admin: Admin,
    key: Key,
    yes: Annotated[bool, typer.Option("--yes", help="Take the limits away without being asked.")] = False,
) -> None:
    """Take every limit of a key away, and forget what it has spent of them."""
    if not yes:
        typer.confirm(f"Key {key} may then spend without limit. Go on?", abort=True)
    with admin.server() as server:
        path = configuration_of(server, key, "quota")
        server.send("DELETE", path, headers={"if-match": server.get(path)["etag"]})
    print_note(f"Key {key} has no quota any more.")


def _show(admin: Admin, quota: dict[str, Any]) -> None:
    if admin.as_json:
        print_json(quota)
        return
    limits, spent = quota["limits"], quota["spent"]
    if limits is None:
        print_line("The key has no quota: nothing limits it, and nothing is counted against it.")
        return
    rows = [
        (limit.replace("_", " "), "no limit" if limits[limit] is None else limits[limit], spent[use])
        for limit, use in SHOWN
    ]
    print_table(("what", "limit", "spent"), rows, empty="")
