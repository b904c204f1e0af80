"""What checking may cost: bounds on schemas and arguments, and the time that hostile ones take."""

from collections import Counter
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.arguments import ArgumentProblem
from governance.canonical import JSON
from governance.schema_cost import SchemaGraph
from governance.schemas import (
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_SIZE,
    ToolSchema,
    compile_schema,
)
from governance.strict_json import is_deeper
from tests.governance.schema_cases import compiled, properties, reason_against, told


def nested(depth: int) -> JSON:
    schema: JSON = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def doubling(levels: int) -> JSON:
    definitions: dict[str, JSON] = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{levels}": {}}}


def test_a_schema_may_nest_so_deep_and_no_deeper() -> None:
    compiled(nested(MAX_SCHEMA_DEPTH - 1))
    assert "deeper" in reason_against(nested(MAX_SCHEMA_DEPTH))
    assert "deeper" in reason_against(nested(200_000))


def test_a_schema_may_be_so_large_and_no_larger() -> None:
    compiled({"description": "x" * (MAX_SCHEMA_SIZE - 100)})
    assert "holds more" in reason_against({"description": "x" * MAX_SCHEMA_SIZE})


def again(levels: int) -> JSON:
    schema: JSON = {}
    for _ in range(levels):
        schema = {"unevaluatedProperties": False, "allOf": [schema]}
    return schema


def doubling_below(levels: int) -> JSON:
    definitions: dict[str, JSON] = {}
    for i in range(levels):
        below = {"$ref": f"#/$defs/d{i + 1}"}
        definitions[f"d{i}"] = {"allOf": [{"properties": {"a": below}}, {"additionalProperties": below}]}
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{levels}": {}}}


@pytest.mark.parametrize(
    "schema", [doubling(60), again(40), doubling_below(40)], ids=["references", "unevaluated", "children"]
)
def test_a_schema_that_would_take_exponential_time_is_refused(schema: JSON) -> None:
    started = perf_counter()

    assert "subschemas at one place" in reason_against(schema)
    assert perf_counter() - started < 1


EXPRESSIONS = {
    "oneOf": [
        {
            "required": [operator],
            "properties": {operator: {"const": 1}, "l": {"$ref": "#"}, "r": {"$ref": "#"}},
            "type": "object",
        }
        for operator in ("and", "or", "xor")
    ]
    + [{"const": 0}]
}
EVERY_WAY = {
    "type": "object",
    "properties": {"and": {"const": 1}, "l": {"$ref": "#"}},
    "patternProperties": {"l": {"$ref": "#"}, ".*[lm]": {"$ref": "#"}},
}
LISTS = {
    "type": ["array", "integer"],
    "allOf": [{"items": {"$ref": "#"}}] * 2,
    "prefixItems": [{"$ref": "#"}],
}


def expression(depth: int, leaf: JSON) -> JSON:
    for _ in range(depth):
        leaf = {"and": 1, "l": leaf}
    return leaf


@pytest.mark.parametrize("depth", [1, 3, 10, 25, 60])
@pytest.mark.parametrize(
    ("schema", "good"), [(EXPRESSIONS, 0), (EVERY_WAY, {})], ids=["expressions", "every way"]
)
def test_a_recursive_schema_is_checked_fast_at_any_depth(schema: JSON, good: JSON, depth: int) -> None:
    recursive = compiled(schema)
    started = perf_counter()

    assert recursive.check(expression(depth, good)) == ()
    assert len(recursive.check(expression(depth, "wrong"))) >= 1
    assert perf_counter() - started < 3


@pytest.mark.parametrize("depth", [1, 10, 60])
def test_a_recursive_list_is_checked_fast_at_any_depth(depth: int) -> None:
    value: JSON = "wrong"
    for _ in range(depth):
        value = [value]
    started = perf_counter()

    assert len(compiled(LISTS).check(value)) >= 1
    assert perf_counter() - started < 3


def test_what_is_too_deep_to_explain_is_refused_in_general_terms() -> None:
    assert told(EXPRESSIONS, expression(50, 1)) == [("", "a value that fits the tool's schema", "object")]


def test_a_schema_that_applies_itself_to_the_same_value_is_checked() -> None:
    assert told({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {}) == []


def test_large_arguments_of_a_simple_schema_are_checked() -> None:
    schema = properties(rows={"items": properties(n={"type": "integer"})}, text={"type": "string"})
    rows = [{"n": number} for number in range(5000)]

    assert told(schema, {"rows": rows, "text": "x" * 3_000_000}) == []
    assert told(schema, {"rows": [*rows[:2000], {"n": "x"}]}) == [("/rows/2000/n", "integer", "string")]


def test_large_arguments_of_a_costly_schema_are_refused() -> None:
    schema = compiled({"items": doubling(10) | {}, "$defs": doubling(10)["$defs"]})

    assert schema.check(list(range(100))) == ()
    assert schema.check(list(range(50_000))) == (
        ArgumentProblem("", "smaller arguments: these take too long to check", "array"),
    )


keywords = st.sampled_from(["allOf", "anyOf", "oneOf", "prefixItems"])
subschemas: st.SearchStrategy[JSON] = st.recursive(
    st.sampled_from([{}, True, {"$ref": "#"}, {"type": "integer"}, {"enum": [1, 2]}]),
    lambda inner: (
        st.builds(lambda key, parts: {key: parts}, keywords, st.lists(inner, min_size=1, max_size=3))
        | st.builds(
            lambda key, part: {key: part}, st.sampled_from(["items", "not", "additionalProperties"]), inner
        )
        | st.builds(lambda part, other: {"properties": {"a": part, "b": other}}, inner, inner)
    ),
    max_leaves=8,
)


def count_evaluations(root: JSON, value: JSON) -> Counter[str]:
    """Count subschemas evaluated at each place, one by one and remembering nothing."""
    counts: Counter[str] = Counter()

    def evaluate(schema: JSON, value: JSON, place: str, entered: tuple[int, ...]) -> None:
        if not isinstance(schema, dict) or id(schema) in entered:
            return
        counts[place] += 1
        for key in ("allOf", "anyOf", "oneOf"):
            for part in schema.get(key, []):
                evaluate(part, value, place, (*entered, id(schema)))
        evaluate(schema.get("not"), value, place, (*entered, id(schema)))
        if "$ref" in schema:
            evaluate(root, value, place, (*entered, id(schema)))
        if isinstance(value, dict):
            for name, child in value.items():
                evaluate(schema.get("properties", {}).get(name), child, f"{place}/{name}", ())
                evaluate(schema.get("additionalProperties"), child, f"{place}/{name}", ())
        if isinstance(value, list):
            for index, child in enumerate(value):
                prefix = schema.get("prefixItems", [])
                evaluate(prefix[index] if index < len(prefix) else None, child, f"{place}/{index}", ())
                evaluate(schema.get("items"), child, f"{place}/{index}", ())

    evaluate(root, value, "", ())
    return counts


values: st.SearchStrategy[JSON] = st.recursive(
    st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=5,
)


@given(subschemas.filter(lambda schema: isinstance(schema, dict)), values)
def test_the_bound_is_never_below_what_an_evaluation_by_hand_needs(schema: JSON, value: JSON) -> None:
    needed = max(count_evaluations(schema, value).values())

    assert needed <= SchemaGraph(schema).unrolled_evaluations(depth_of(value))


def depth_of(value: JSON) -> int:
    return next(depth for depth in range(50) if not is_deeper(value, depth))


@given(subschemas, values)
def test_any_schema_is_compiled_or_refused_and_any_arguments_are_answered(
    schema: JSON, arguments: JSON
) -> None:
    result = compile_schema(schema)

    assert isinstance(result, ToolSchema)
    assert isinstance(result.check(arguments), tuple)
