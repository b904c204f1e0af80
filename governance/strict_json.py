"""Read JSON text that means exactly one thing, or say where it does not. Pure: no I/O."""

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

from governance.canonical import JSON, is_array, is_object

MAX_DEPTH: Final = 64
"""Deepest nesting of arrays and objects accepted by default."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|-?[0-9][0-9.eE+-]*|NaN|-?Infinity', re.DOTALL)
_HIGH_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_COLON = re.compile(r"[ \t\n\r]*:")


class JSONProblem(ValueError):
    """The text is not JSON with exactly one meaning.

    `problem` names the fault without quoting the text; `position` is the offset of the character, or of the
    byte where the text is not UTF-8.
    """

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem} at position {position}")
        self.problem = problem
        self.position = position


class _Unlocated(Exception):
    """The decoder met something that it cannot give a position for."""


def parse_json_strict(text: str | bytes, max_depth: int = MAX_DEPTH) -> JSON:
    """Return the value of a JSON text.

    Integers keep every digit. Refused are duplicate keys, NaN and infinities, numbers too large for a float
    and integers of more than 4300 digits, lone surrogates, nesting deeper than `max_depth`, trailing data and
    blank text.
    Source: RFC 8259; RFC 7493 for the names and strings that interoperate.

    Raises:
        JSONProblem: with the position of the first fault found.
    """
    decoded = _decoded(text) if isinstance(text, bytes) else text
    try:
        value = _DECODER.decode(decoded)
    except json.JSONDecodeError as error:
        raise JSONProblem(_described(error.msg), error.pos) from error
    except (_Unlocated, RecursionError, ValueError) as error:
        # ValueError: Python converts no integer of more than 4300 digits, and would not write it back either.
        raise _located(decoded, max_depth) from error
    if _may_be_too_deep(decoded, max_depth) and is_deeper(value, max_depth):
        raise _located(decoded, max_depth)
    if _HIGH_HALF.search(decoded) or not decoded.isascii():
        _refuse_lone_surrogates(value, decoded, max_depth)
    return value


def is_deeper(value: JSON, max_depth: int) -> bool:
    """Say whether arrays and objects nest deeper than `max_depth`; a scalar has depth 0."""
    level: list[JSON] = [value]
    for _ in range(max_depth + 1):
        level = [item for container in level for item in _children(container)]
        if not level:
            return False
    return True


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = "not UTF-8"
        raise JSONProblem(problem, error.start) from error


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _Unlocated
    return made


def _refuse_constant(_: str) -> NoReturn:
    raise _Unlocated


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise _Unlocated
    return number


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
)


def _described(message: str) -> str:
    # The decoder's messages name what was expected and never quote the text.
    return message[:1].lower() + message[1:].removesuffix(" at")


def _may_be_too_deep(text: str, max_depth: int) -> bool:
    return text.count("[") + text.count("{") > max_depth


def _children(value: JSON) -> Iterator[JSON]:
    """Yield the value's members, with a mark inside each so that an empty container counts as a level."""
    if is_object(value):
        yield None
        yield from value.values()
    elif is_array(value):
        yield None
        yield from value


def _refuse_lone_surrogates(value: JSON, text: str, max_depth: int) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _located(text, max_depth) from error


def _located(text: str, max_depth: int) -> JSONProblem:
    """Find the first fault of a text that the decoder could read but must not accept.

    Slower than the decoder, token by token, so used only where there is a fault to find.
    """
    names: list[set[str] | None] = []
    for token in _TOKEN.finditer(text):
        lexeme, start = token.group(), token.start()
        if lexeme in "{[":
            names.append(set() if lexeme == "{" else None)
            if len(names) > max_depth:
                return JSONProblem(f"nested deeper than {max_depth} levels", start)
        elif lexeme in "}]":
            names.pop()
        elif lexeme[0] != '"':
            if problem := _number_problem(lexeme):
                return JSONProblem(problem, start)
        elif problem := _string_problem(text, token.end(), lexeme, names[-1] if names else None):
            return JSONProblem(problem, start)
    return JSONProblem("nested too deep", 0)


def _number_problem(lexeme: str) -> str | None:
    if lexeme in ("NaN", "Infinity", "-Infinity"):
        return "NaN and infinities are not JSON"
    try:
        json.loads(lexeme, parse_float=_finite)
    except (_Unlocated, ValueError):
        return "number out of range"
    return None


def _string_problem(text: str, end: int, lexeme: str, names: set[str] | None) -> str | None:
    content: str = json.loads(lexeme)
    try:
        content.encode("utf-8")
    except UnicodeEncodeError:
        return "lone surrogate"
    if names is not None and _COLON.match(text, end):
        if content in names:
            return "duplicate key"
        names.add(content)
    return None
