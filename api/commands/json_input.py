"""Read the JSON that a command is given, or say where it is wrong."""

import sys
from pathlib import Path
from typing import Any

from api.commands.failures import UsageFailed
from governance.strict_json import JSONProblem, parse_json_strict


def read_json_file(path: Path) -> Any:
    """Return the JSON of a file, `-` being standard input.

    Raises:
        UsageFailed: it cannot be read, or is not JSON; with line and column.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except UnicodeDecodeError as exc:
        raise UsageFailed(f"{str(path)!r} is not UTF-8 (byte {exc.start})") from exc
    except OSError as exc:
        raise UsageFailed(f"{str(path)!r} cannot be read: {exc.strerror}") from exc
    return parse(text, "standard input" if str(path) == "-" else repr(str(path)))


def parse(text: str, where: str) -> Any:
    """Return the value of JSON text that was found at `where`.

    Raises:
        UsageFailed: it is not JSON with exactly one meaning; with line and column.
    """
    try:
        return parse_json_strict(text)
    except JSONProblem as exc:
        before = text[: exc.position]
        line, column = before.count("\n") + 1, exc.position - before.rfind("\n")
        raise UsageFailed(f"{where}: not valid JSON, {exc.problem} at line {line} column {column}") from exc
