"""Regular expressions in schemas: which can be checked, what they cost, and how to do without. Pure: no I/O.

Schemas are written for engines that go back (look-around, back-references), which a hostile pattern can keep
busy for ever. Here only linear-time matching is used, so a pattern beyond it is left to the tool's server,
where leaving it out can only accept more.
"""

import re
from typing import Final

import jsonschema_rs

from governance.canonical import JSON, is_array, is_object
from governance.schema_cost import SchemaRefused

MAX_PATTERNS: Final = 200
"""Most patterns in a schema: the largest that fit take some 5 ms each to compile."""

PATTERN_OPTIONS: Final = jsonschema_rs.RegexOptions(size_limit=1 << 17, dfa_size_limit=1 << 17)
"""A linear-time engine, and the most memory that one compiled pattern may take: a few Unicode classes fit."""

_ATOM = re.compile(
    r"\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|\(|\)|\{(?P<least>[0-9]+)(?P<most>,[0-9]*)?\}|.", re.DOTALL
)
_MAPS = ("properties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("allOf", "anyOf", "prefixItems")
_SINGLE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "propertyNames",
    "then",
    "else",
)
_INVERTING = ("not", "if", "contains")
_MOST_STATES = 1_000_000


def pattern_states(pattern: str) -> int:
    """Estimate the states of a pattern's automaton: its atoms, with counted repetitions written out.

    Matching takes at worst time in proportion to them, for each character.
    """
    sizes = [0]
    last = 0
    for atom in _ATOM.finditer(pattern):
        written = atom.group()
        if written == "(":
            sizes.append(0)
        elif written == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif atom["least"]:
            times = int(((atom["most"] or "")[1:] or atom["least"])[:7])
            sizes[-1] = min(_MOST_STATES, sizes[-1] + last * max(0, times - 1))
            last = min(_MOST_STATES, last * times)
        else:
            last = 1
            sizes[-1] += 1
    return min(_MOST_STATES, sum(sizes))


def is_linear(pattern: str) -> bool:
    """Say whether the linear-time engine takes the pattern."""
    try:
        jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, pattern_options=PATTERN_OPTIONS, offline=True, validate_formats=False
        )
    except jsonschema_rs.ValidationError:
        return False
    return True


def without_other_patterns(schema: dict[str, JSON]) -> tuple[dict[str, JSON], tuple[str, ...]]:
    """Return the schema without the patterns that are not linear, and those patterns.

    What is returned accepts all that the schema accepts: each `oneOf` becomes an `anyOf`, because a branch
    without its pattern may fit beside another.

    Raises:
        SchemaRefused: a pattern stands where leaving it out would refuse good arguments (under `not`, `if` or
            `contains`, or as a name of `patternProperties`).
    """
    rewriting = _Rewriting()
    relaxed = rewriting.relaxed(schema)
    if rewriting.left_out and rewriting.inverts:
        raise SchemaRefused(_refusal(rewriting.left_out[0]))
    return relaxed, tuple(dict.fromkeys(rewriting.left_out))


def _refusal(pattern: str) -> str:
    return f"the pattern {pattern[:80]!r} needs look-around or back-references, or is too large"


class _Rewriting:
    """One pass over a schema; recursion is bounded by the depth that a schema may have."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self.inverts = False

    def relaxed(self, schema: JSON) -> JSON:
        if not is_object(schema):
            return schema
        self.inverts |= any(key in schema for key in _INVERTING)
        made = {
            key: self._part(key, value) for key, value in schema.items() if not self._leave_out(key, value)
        }
        if "oneOf" in made:
            branches = made.pop("oneOf")
            made["allOf"] = [*made.get("allOf", ()), {"anyOf": branches}]
        return made

    def _leave_out(self, key: str, value: JSON) -> bool:
        if key != "pattern" or not isinstance(value, str) or is_linear(value):
            return False
        self.left_out.append(value)
        return True

    def _part(self, key: str, value: JSON) -> JSON:
        if key == "patternProperties" and is_object(value):
            for name in value:
                if not is_linear(name):
                    raise SchemaRefused(_refusal(name))
        if key in (*_MAPS, "patternProperties") and is_object(value):
            return {name: self.relaxed(part) for name, part in value.items()}
        if key in (*_LISTS, "oneOf", "items") and is_array(value):
            return [self.relaxed(part) for part in value]
        return self.relaxed(value) if key in _SINGLE else value
