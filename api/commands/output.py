"""What the commands print: tables for people, JSON for programs."""

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from governance.canonical import is_array

LOG_WIDTH = 200
"""Columns of a table where there is no terminal to ask."""

SHOWN = 300
"""Characters of a cell, at most; the rest is in the JSON."""

STYLES = {
    "succeeded": "green",
    "completed": "green",
    "healthy": "green",
    "failed": "red",
    "failing": "red",
    "unknown": "red",
    "refused": "yellow",
    "canceled": "yellow",
    "running": "cyan",
}
"""Colours of the words that say how something stands."""


def console() -> Console:
    """Return a console on standard output, wide enough for a log where that is no terminal."""
    width = None if sys.stdout.isatty() else LOG_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_line(line: str) -> None:
    """Print a line of our own words and of values that are safe to show."""
    sys.stdout.write(f"{line}\n")


def print_note(line: str) -> None:
    """Print a line beside the output proper, which a program may be reading."""
    sys.stderr.write(f"{line}\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print a table, or the line `empty` when it has no rows."""
    shown = [[cell(value) for value in row] for row in rows]
    if not shown:
        print_line(empty)
        return
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in shown:
        table.add_row(*row)
    console().print(table)


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print names and values under one another, leaving out values that are None."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts:
        if value is not None:
            table.add_row(name, cell(value))
    console().print(table)


def cell(value: Any) -> Text:
    """Write a value for a table cell; control characters are shown and never sent to the terminal."""
    if isinstance(value, Text):
        return value
    if is_array(value):
        text = ", ".join(str(item) for item in value) or "(none)"
    else:
        text = {None: "", True: "yes", False: "no"}.get(value, str(value)) if _is_word(value) else str(value)
    text = clean(text)
    if len(text) > SHOWN:
        text = f"{text[:SHOWN]}… ({len(text)} characters)"
    return Text(text, style=STYLES.get(text, ""), overflow="fold")


def clean(text: str) -> str:
    r"""Replace control characters, which could drive a terminal, by their escapes; a newline becomes `\n`."""
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
        else character
        for character in text
    )


def when(moment: str | None) -> str:
    """Write an ISO time as local time to the second."""
    return "" if moment is None else datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)
