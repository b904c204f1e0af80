"""`sluicegate usage`: what keys asked for, how it ended and what it cost."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.commands.key_names import id_of
from api.commands.option_groups import with_groups
from api.commands.output import print_facts, print_json, print_note, print_table
from api.commands.server import Anyone, Server

app = typer.Typer()


class Group(StrEnum):
    """What usage is summed by."""

    KEY = "key"
    TOOL = "tool"
    MODEL = "model"
    DAY = "day"


FIELDS = {Group.KEY: "key_id", Group.TOOL: "tool", Group.MODEL: "model", Group.DAY: "day"}
"""The field of a sum that tells what it is a sum of."""

COUNTS = ("requests", "tool_calls", "chat_requests", "succeeded", "failed", "unknown", "denied", "cost")
"""What is shown of a sum."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which usage is summed; what is not given is left open."""

    of_key: Annotated[
        str | None, typer.Option("--of-key", help="One key's, by its id or name; for operators.")
    ] = None
    tool: Annotated[str | None, typer.Option(help="One tool's, by its exposed name.")] = None
    model: Annotated[str | None, typer.Option(help="One model's, by its neutral name.")] = None
    round_id: Annotated[str | None, typer.Option("--round", help="One round's, by its id.")] = None
    first_day: Annotated[
        str | None, typer.Option("--from", help="The first day, such as 2026-12-01; days are those of UTC.")
    ] = None
    last_day: Annotated[str | None, typer.Option("--to", help="The last day.")] = None

    def params(self, server: Server) -> dict[str, Any]:
        """Return what is given as the API takes it."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        of_key: str | None = given.pop("of_key", None)
        return given if of_key is None else {**given, "key": id_of(server, of_key)}


@app.command()
@with_groups
def usage(
    anyone: Anyone,
    wanted: Wanted,
    by: Annotated[
        list[Group] | None, typer.Option(help="What to sum by, repeatable; by default key, tool and model.")
    ] = None,
) -> None:
    """Sum what was asked for and what it cost; with an API key, that key's own usage and quota."""
    groups = list(by or (Group.KEY, Group.TOOL, Group.MODEL))
    with anyone.server() as server:
        params = {"group_by": [group.value for group in groups], **wanted.params(server)}
        page = _all_pages(server, f"{anyone.prefix}/v1/usage", params)
    if anyone.as_json:
        print_json(page)
        return
    print_table(
        (*(group.value for group in groups), *(name.replace("_", " ") for name in COUNTS)),
        [
            (*(row[FIELDS[group]] for group in groups), *(row[name] for name in COUNTS))
            for row in page["items"]
        ],
        empty="Nothing was asked for.",
    )
    total = page["total"]
    print_note(f"{total['requests']} requests in all, {total['denied']} denied; cost {total['cost']}.")
    if page.get("quota"):
        _show_quota(page["quota"])


def _all_pages(server: Server, path: str, params: dict[str, Any]) -> dict[str, Any]:
    page: dict[str, Any] = server.get(path, params)
    items = page["items"]
    while page["next_cursor"] is not None:
        page = server.get(path, {**params, "cursor": page["next_cursor"]})
        items += page["items"]
    return {**page, "items": items}


def _show_quota(quota: dict[str, Any]) -> None:
    limits, spent = quota["limits"], quota["spent"]
    places = {
        "requests_per_minute": "requests_this_minute",
        "requests_per_day": "requests_today",
        "tool_calls_per_minute": "tool_calls_this_minute",
        "tool_calls_per_day": "tool_calls_today",
        "concurrent_calls": "concurrent_calls",
        "budget_per_day": "cost_today",
        "budget_per_month": "cost_this_month",
    }
    print_facts(
        (name.replace("_", " ").capitalize(), f"{spent[place]} of {limits[name]}")
        for name, place in places.items()
        if limits[name] is not None
    )
