"""Patterns that cannot be checked in linear time are left to the tool's server, and only those."""

from random import Random
from time import perf_counter

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.canonical import JSON
from governance.schema_patterns import MAX_PATTERNS, is_linear, pattern_states
from governance.schemas import SchemaProblem, compile_schema
from tests.governance.schema_cases import compiled, properties, reason_against, told

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
"""What a widespread schema generator writes for an e-mail address."""

HOSTILE_PATTERNS = [
    "^(a+)+$",
    "^(a|a)*$",
    "^(a|aa)+$",
    "(.*a){20}",
    r"^(\w+\s?)*$",
    "a{0,500}a{0,500}$",
    "(?=(a+)+$)b",
    r"(a*)*\1$",
    "((a{100}){100}){100}",
]


@pytest.mark.parametrize("pattern", HOSTILE_PATTERNS)
def test_a_hostile_pattern_is_answered_fast(pattern: str) -> None:
    started = perf_counter()

    compiled(properties(a={"pattern": pattern})).check({"a": "a" * 30_000 + "!"})
    assert perf_counter() - started < 2


@pytest.mark.parametrize(
    "pattern",
    ["^a$", r"^\d{3}-\d{4}$", r"^\p{L}+$", "(?i)x", "^[0-9a-f]{8}(-[0-9a-f]{4}){3}$", r"^\w{1,255}$"],
)
def test_an_ordinary_pattern_is_linear(pattern: str) -> None:
    assert is_linear(pattern)
    assert compiled({"pattern": pattern}).unchecked_patterns == ()


@pytest.mark.parametrize("pattern", [EMAIL, "(?=a)", "(?<!a)b", r"(a)\1", "[", "((a{100}){100}){100}"])
def test_a_pattern_that_is_not_linear_is_left_out_and_named(pattern: str) -> None:
    schema = properties(to={"type": "string", "pattern": pattern}, x={"pattern": "^x$"})

    tool = compiled(schema)
    assert tool.unchecked_patterns == (pattern,)
    assert tool.check({"to": "anything", "x": "x"}) == ()
    assert told(schema, {"to": 1, "x": "y"}) == [
        ("/to", "string", "integer"),
        ("/x", "text that matches ^x$", "string"),
    ]


def test_the_operators_own_rules_may_not_leave_a_pattern_out() -> None:
    refused = compile_schema(properties(to={"pattern": EMAIL}), every_pattern=True)

    assert isinstance(refused, SchemaProblem)
    assert "/properties/to/pattern" in refused.reason


def places(part: JSON) -> list[JSON]:
    return [
        properties(a=part),
        properties(a={"items": part}),
        properties(a={"prefixItems": [part]}),
        properties(a={"anyOf": [part, {"type": "null"}]}),
        properties(a={"oneOf": [part, {"type": "string", "minLength": 1}]}),
        properties(a={"oneOf": [part, {"type": "null"}], "allOf": [{}]}),
        {"additionalProperties": part, "properties": {"b": True, "c": False}},
        {"patternProperties": {"^a": part}},
        {"propertyNames": part},
        {"allOf": [properties(a={"$ref": "#/$defs/p"})], "$defs": {"p": part}},
        {"dependentSchemas": {"a": properties(a=part)}},
    ]


@pytest.mark.parametrize("schema", places({"pattern": EMAIL}), ids=str)
def test_a_pattern_is_left_out_wherever_that_only_accepts_more(schema: JSON) -> None:
    assert compiled(schema).unchecked_patterns == (EMAIL,)
    assert told(schema, {"a": "x"}) == []


@pytest.mark.parametrize("keyword", ["not", "if", "contains"])
def test_a_schema_that_turns_a_pattern_round_is_refused(keyword: str) -> None:
    schema = {"properties": {"a": {"pattern": EMAIL}}, "items": {keyword: {"$ref": "#/properties/a"}}}

    assert "look-around" in reason_against(schema)


def test_names_and_values_that_look_like_keywords_are_kept() -> None:
    schema = properties(pattern={"const": {"pattern": EMAIL}}, a={"pattern": EMAIL})

    assert compiled(schema).unchecked_patterns == (EMAIL,)
    assert told(schema, {"pattern": {"pattern": EMAIL}}) == []
    assert len(told(schema, {"pattern": "x"})) == 1


parts = st.recursive(
    st.sampled_from(
        [
            {},
            {"type": "string"},
            {"pattern": "^a"},
            {"pattern": "(?=a)"},
            {"pattern": "^a(?!b)"},
            {"const": "ab"},
        ]
    ),
    lambda inner: (
        st.builds(
            lambda key, several: {key: several},
            st.sampled_from(["allOf", "anyOf", "oneOf"]),
            st.lists(inner, min_size=1, max_size=3),
        )
        | st.builds(lambda part: {"properties": {"a": part}}, inner)
        | st.builds(lambda part: {"additionalProperties": part}, inner)
    ),
    max_leaves=6,
)
texts = st.sampled_from(["", "a", "b", "ab", "ba"])


@given(parts, texts | st.dictionaries(st.sampled_from("ab"), texts))
def test_what_the_whole_schema_accepts_is_accepted_without_some_patterns(schema: JSON, value: JSON) -> None:
    whole = jsonschema_rs.validator_for(schema, offline=True)

    assert not whole.is_valid(value) or compiled(schema).check(value) == ()


def test_a_schema_may_have_so_many_patterns_and_no_more() -> None:
    def many(count: int) -> JSON:
        return properties(**{f"p{i}": {"pattern": f"^{i}"} for i in range(count)})

    compiled(many(MAX_PATTERNS))
    assert "patterns" in reason_against(many(MAX_PATTERNS + 1))


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("", 0),
        ("abc", 3),
        (r"\w\p{Lu}[a-z\]]", 3),
        ("a{3}", 3),
        ("a{2,5}b", 6),
        ("a{3,}", 3),
        ("(ab){3}", 6),
        ("((ab){3}c){2}", 14),
        ("(a{1000}){1000}", 1_000_000),
        ("a{99999999999999}", 1_000_000),
        ("a{0}", 1),
        (")(", 1),
    ],
)
def test_the_states_of_a_pattern_are_its_atoms_repetitions_written_out(pattern: str, states: int) -> None:
    assert pattern_states(pattern) == states


def test_more_text_than_a_costly_pattern_can_match_soon_is_refused() -> None:
    schema = compiled(properties(a={"pattern": "[ab]*a[ab]{440}c"}, b={"type": "string"}))
    text = "".join(Random(1).choices("ab", k=200_000))

    assert schema.check({"b": text[:20_000]}) == ()
    assert [problem.expected for problem in schema.check({"a": text})] == [
        "smaller arguments: these take too long to check"
    ]


@given(st.text("ab(){}[]\\,0129?*+|.^$", max_size=20))
def test_any_pattern_has_states(pattern: str) -> None:
    assert 0 <= pattern_states(pattern) <= 1_000_000
