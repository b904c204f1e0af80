"""Read the arguments of a tool call as a model gives them. Pure: no I/O."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from governance.canonical import JSON, NotCanonicalError, canonical_bytes, is_object
from governance.strict_json import MAX_DEPTH, JSONProblem, is_deeper, parse_json_strict

__all__ = [
    "MISSING",
    "ArgumentProblem",
    "InvalidArguments",
    "JSONProblem",
    "Missing",
    "ParsedArguments",
    "json_type",
    "parse_arguments",
    "parse_json_strict",
]


class Missing(Enum):
    """Marks arguments that were not sent, as opposed to null."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""The call has no `arguments` member."""

_ONLY_OBJECTS = "a JSON object, written as JSON text or as an object"


@dataclass(frozen=True)
class ArgumentProblem:
    """One thing to correct in the arguments of a call; it never quotes the value found.

    `path` is a JSON Pointer into the arguments ("" for the whole), `expected` says what belongs there, `got`
    is the JSON type found, `missing`, or `text` where the text itself is malformed; then `position` is the
    offset of the first wrong character.
    """

    path: str
    expected: str
    got: str
    position: int | None = None

    def to_json(self) -> dict[str, JSON]:
        """Return the problem as shown to callers: path, expected, got, position."""
        return {"path": self.path, "expected": self.expected, "got": self.got, "position": self.position}


@dataclass(frozen=True)
class InvalidArguments:
    """The arguments cannot be used."""

    problems: tuple[ArgumentProblem, ...]


@dataclass(frozen=True)
class ParsedArguments:
    """The arguments as a JSON object."""

    value: dict[str, JSON]


def json_type(value: object) -> str:
    """Return the JSON type of a value: null, boolean, integer, number, string, array or object."""
    if value is None:
        return "null"
    # In Python a boolean is an integer, so it is asked for first.
    for python_type, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    ):
        if isinstance(value, python_type):
            return name
    return "object"


def parse_arguments(raw: JSON | Missing, *, wants_object: bool = True) -> ParsedArguments | InvalidArguments:
    """Return the arguments as an object, or what is wrong with them.

    Models write JSON text of an object; nothing at all (missing, null, blank text, the text `null`) means {};
    an object is taken as it is. Text that holds the object's text once more is unwrapped where the tool wants
    an object (`wants_object`, see `governance.schemas.wants_object`), once and no deeper.
    """
    if raw is None or raw is MISSING:
        return ParsedArguments({})
    if is_object(raw):
        return _checked(raw)
    if not isinstance(raw, str):
        return _not_an_object(raw, None)
    if not raw.strip():
        return ParsedArguments({})
    return _from_text(raw, unwrap=wants_object)


def _from_text(text: str, *, unwrap: bool) -> ParsedArguments | InvalidArguments:
    try:
        value = parse_json_strict(text)
    except JSONProblem as problem:
        expected = f"{_ONLY_OBJECTS}; {problem.problem}"
        return InvalidArguments((ArgumentProblem("", expected, "text", problem.position),))
    if is_object(value):
        return ParsedArguments(value)
    if value is None:
        return ParsedArguments({})
    if unwrap and isinstance(value, str) and value.lstrip().startswith("{"):
        return _from_text(value, unwrap=False)
    return _not_an_object(value, len(text) - len(text.lstrip()))


def _checked(value: dict[str, JSON]) -> ParsedArguments | InvalidArguments:
    """Accept an object that came in one with the request, where it can be written as JSON again."""
    try:
        canonical_bytes(value)
    except NotCanonicalError:
        expected = "an object without NaN, infinities and lone surrogates"
        return InvalidArguments((ArgumentProblem("", expected, "object"),))
    if is_deeper(value, MAX_DEPTH):
        expected = f"an object nested at most {MAX_DEPTH} levels deep"
        return InvalidArguments((ArgumentProblem("", expected, "object"),))
    return ParsedArguments(value)


def _not_an_object(value: JSON, position: int | None) -> InvalidArguments:
    return InvalidArguments((ArgumentProblem("", _ONLY_OBJECTS, json_type(value), position),))
