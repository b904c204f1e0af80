"""Compile the JSON Schema of a tool and check arguments against it, within bounds. Pure: no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import jsonschema_rs

from governance.arguments import ArgumentProblem, json_type
from governance.canonical import JSON, is_array, is_object
from governance.schema_cost import SchemaGraph, SchemaRefused
from governance.schema_patterns import (
    MAX_PATTERNS,
    PATTERN_OPTIONS,
    is_linear,
    pattern_states,
    without_other_patterns,
)
from governance.schema_problems import cut, pointer, problems_of

MAX_SCHEMA_DEPTH: Final = 100
"""Deepest nesting of objects and arrays in a schema; the validator's own parser stops at 255."""

MAX_SCHEMA_SIZE: Final = 1_000_000
"""Most a schema may hold: its values, keys and characters, counted together."""

MAX_EVALUATIONS: Final = 10_000
"""Most subschemas that a schema may apply at one place of the arguments."""

MAX_PROBLEMS: Final = 16
"""Problems reported at once; more would not help a model."""

_MAX_REPEATED: Final = 8 * MAX_PROBLEMS
# The work of one check, in steps of about 20 ns: one subschema evaluated, or 16 characters looked at.
_MAX_WORK: Final = 50_000_000
_CHARACTERS_PER_STEP: Final = 16
# A state of a pattern takes two steps for each character, but hardly any real pattern meets its worst case.
_MAX_MATCHING: Final = 125_000_000
# Explaining costs some 50 us a step, since errors are objects that hold what they are about.
_MAX_EXPLAINED: Final = 50_000


@dataclass(frozen=True)
class SchemaProblem:
    """The schema cannot be used, so neither can its tool; the reason is for operators."""

    reason: str


@dataclass(frozen=True, eq=False)
class ToolSchema:
    """A compiled schema. Making one costs about a millisecond: keep it, by the digest of its schema.

    `unchecked_patterns` are those of the schema that only the tool's server can check.
    """

    unchecked_patterns: tuple[str, ...]
    _validator: jsonschema_rs.Validator
    _graph: SchemaGraph
    _evaluations: int
    _pattern_states: int

    def check(self, arguments: JSON) -> tuple[ArgumentProblem, ...]:
        """Return what to correct in the arguments, at most `MAX_PROBLEMS`; empty means that they fit.

        Arguments that would take too long to check against a costly schema do not fit.
        """
        size = _measure(arguments, _MAX_WORK)
        steps = (size.values + size.characters // _CHARACTERS_PER_STEP) * self._evaluations
        if steps > _MAX_WORK or size.characters * self._pattern_states * self._evaluations > _MAX_MATCHING:
            return (_whole(arguments, "smaller arguments: these take too long to check"),)
        if self._validator.is_valid(arguments):
            return ()
        found = islice(self._explained(arguments, size), _MAX_REPEATED)
        # Several branches of a schema may ask the same of one place.
        problems = tuple(islice(dict.fromkeys(found), MAX_PROBLEMS))
        return problems or (_whole(arguments, "a value that fits the tool's schema"),)

    def _explained(self, arguments: JSON, size: "_Size") -> Iterator[ArgumentProblem]:
        # The validator remembers nothing while it explains: a recursive schema can ask for 2**depth steps.
        if self._graph.unrolled_evaluations(size.depth) * size.values <= _MAX_EXPLAINED:
            for error in self._validator.iter_errors(arguments):
                yield from problems_of(error)


@dataclass(frozen=True)
class _Size:
    values: int
    characters: int
    depth: int


def compile_schema(schema: JSON, *, every_pattern: bool = False) -> ToolSchema | SchemaProblem:
    """Compile a JSON Schema, an object or a boolean; without `$schema` it is one of draft 2020-12.

    Nothing is ever fetched: a reference out of the schema is a problem. Patterns run on a linear-time engine;
    those it does not take (look-around, back-references, huge repetitions) are left to the tool's server, or
    are a problem with `every_pattern`, which is for the operator's own rules. Formats are annotations, as
    draft 2020-12 has them.
    Source: MCP 2025-11-25, Basic, JSON Schema Usage.
    """
    if not is_object(schema) and not isinstance(schema, bool):
        return SchemaProblem(f"a schema is an object or a boolean, not {json_type(schema)}")
    try:
        _refuse_large(schema)
        return _compiled(schema, every_pattern=every_pattern)
    except jsonschema_rs.ValidationError as error:
        return SchemaProblem(cut(f"{error.message} (at {pointer(error.instance_path)!r})"))
    except ValueError as error:
        return SchemaProblem(cut(str(error)))


def _compiled(schema: JSON, *, every_pattern: bool) -> ToolSchema:
    graph = _bounded_graph(schema)
    left_out: tuple[str, ...] = ()
    if not every_pattern and is_object(schema) and not all(map(is_linear, graph.patterns)):
        schema, left_out = without_other_patterns(schema)
        graph = _bounded_graph(schema)
    validator = jsonschema_rs.validator_for(
        schema, pattern_options=PATTERN_OPTIONS, offline=True, validate_formats=False
    )
    states = max(map(pattern_states, graph.patterns), default=0)
    return ToolSchema(left_out, validator, graph, graph.evaluations(), states)


def _bounded_graph(schema: JSON) -> SchemaGraph:
    graph = SchemaGraph(schema)
    if len(graph.patterns) > MAX_PATTERNS:
        refused = f"the schema has more than {MAX_PATTERNS} patterns"
        raise SchemaRefused(refused)
    if graph.evaluations() > MAX_EVALUATIONS:
        refused = f"the schema applies more than {MAX_EVALUATIONS} subschemas at one place"
        raise SchemaRefused(refused)
    return graph


def wants_object(schema: JSON) -> bool:
    """Say whether the schema can take an object, so that text holding one is worth unwrapping."""
    declared = schema.get("type", "object") if is_object(schema) else "object"
    return "object" in (declared if is_array(declared) else [declared])


def _refuse_large(schema: JSON) -> None:
    size = _measure(schema, MAX_SCHEMA_SIZE)
    if size.depth > MAX_SCHEMA_DEPTH:
        refused = f"the schema nests deeper than {MAX_SCHEMA_DEPTH} levels"
        raise SchemaRefused(refused)
    if size.values + size.characters > MAX_SCHEMA_SIZE:
        refused = f"the schema holds more than {MAX_SCHEMA_SIZE} values and characters"
        raise SchemaRefused(refused)


def _whole(arguments: JSON, expected: str) -> ArgumentProblem:
    return ArgumentProblem("", expected, json_type(arguments))


def _measure(value: JSON, most: int) -> _Size:
    """Count values, the characters of strings and keys, and the depth, level by level, until past `most`."""
    values = characters = depth = 0
    level: list[JSON] = [value]
    while level and values + characters <= most:
        values += len(level)
        below: list[JSON] = []
        nests = False
        for item in level:
            if isinstance(item, str):
                characters += len(item)
            elif is_object(item):
                nests = True
                characters += sum(map(len, item))
                below += item.values()
            elif is_array(item):
                nests = True
                below += item
        depth += nests
        level = below
    return _Size(values, characters, depth)
