"""JSON text with exactly one meaning."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.canonical import JSON, canonical_bytes
from governance.strict_json import JSONProblem, is_deeper, parse_json_strict
from tests.governance.test_canonical_and_failures import deep_list, json_values


@given(json_values)
def test_what_is_written_as_json_reads_back_exactly(value: JSON) -> None:
    text = canonical_bytes(value)

    assert canonical_bytes(parse_json_strict(text)) == text
    assert canonical_bytes(parse_json_strict(json.dumps(value, indent=1))) == text


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, -(2**63), 2**64, 10**400])
def test_integers_of_any_size_keep_every_digit(number: int) -> None:
    assert parse_json_strict(f'{{"n": {number}}}') == {"n": number}


@pytest.mark.parametrize(
    ("text", "problem", "position"),
    [
        ('{"a":1,"a":2}', "duplicate key", 7),
        ('{"a":{"b":1,"b" : 2}}', "duplicate key", 12),
        ('{"b":"\\u0061","a":1,"\\u0061":2}', "duplicate key", 20),
        ('{"a":{"c":1},"b":[{"c":1}],"a":2}', "duplicate key", 27),
        ("NaN", "NaN and infinities are not JSON", 0),
        ('["NaN", NaN]', "NaN and infinities are not JSON", 8),
        ('{"a":-Infinity}', "NaN and infinities are not JSON", 5),
        ("[1e999]", "number out of range", 1),
        ("[-1e999]", "number out of range", 1),
        ("[1.5, " + "9" * 5000 + "]", "number out of range", 6),
        ('{"a":"\\ud800"}', "lone surrogate", 5),
        ('{"\\udc00":1}', "lone surrogate", 1),
        ('["\ud800"]', "lone surrogate", 1),
        ('{"a":1}{"b":2}', "extra data", 7),
        ("[1] x", "extra data", 4),
        ("{", "expecting property name enclosed in double quotes", 1),
        ('{"a":1,}', "illegal trailing comma before end of object", 6),
        ("{'a':1}", "expecting property name enclosed in double quotes", 1),
        ("", "expecting value", 0),
        ("\ufeff{}", "expecting value", 0),
        ('"a\nb"', "invalid control character", 2),
        ("[" * 65 + "]" * 65, "nested deeper than 64 levels", 64),
        ('{"a":' * 65 + "1" + "}" * 65, "nested deeper than 64 levels", 320),
        ("[" * 100_000, "nested deeper than 64 levels", 64),
    ],
)
def test_a_doubtful_text_is_refused_with_the_place(text: str, problem: str, position: int) -> None:
    with pytest.raises(JSONProblem) as refused:
        parse_json_strict(text)

    # Versions of Python word and place a trailing comma differently.
    if "trailing comma" not in problem:
        assert (refused.value.problem, refused.value.position) == (problem, position)


def test_bytes_that_are_not_utf_8_are_refused_with_the_place() -> None:
    with pytest.raises(JSONProblem) as refused:
        parse_json_strict(b'["\xff"]')

    assert (refused.value.problem, refused.value.position) == ("not UTF-8", 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[" * 64 + "]" * 64, deep_list(63)),
        ("[[],[],[]]" * 1, [[], [], []]),
        ('["\\ud83d\\ude00"]', ["\U0001f600"]),
        ('["é", "\\u00e9"]', ["é", "é"]),
        ('{"a":"a","b":["a","a"],"c":{"a":1}}', {"a": "a", "b": ["a", "a"], "c": {"a": 1}}),
        (b'{"k": "[[[["}', {"k": "[[[["}),
    ],
)
def test_an_unusual_but_clear_text_is_read(text: str | bytes, value: JSON) -> None:
    assert parse_json_strict(text) == value


def test_many_containers_side_by_side_are_not_deep() -> None:
    assert parse_json_strict(json.dumps([[] for _ in range(500)])) == [[]] * 500


def test_a_limit_past_what_the_decoder_can_nest_still_ends_in_a_refusal() -> None:
    with pytest.raises(JSONProblem, match="nested too deep"):
        parse_json_strict("[" * 100_000 + "]" * 100_000, max_depth=1_000_000)


@pytest.mark.parametrize(
    ("value", "depth"),
    [(1, 0), ("x", 0), ([], 1), ({}, 1), ([1], 1), ([[]], 2), ({"a": [{}]}, 3), ([1, {"a": 2}], 2)],
)
def test_depth_counts_arrays_and_objects(value: JSON, depth: int) -> None:
    assert not is_deeper(value, depth)
    assert depth == 0 or is_deeper(value, depth - 1)


@given(st.text('{}[]",:\\u0a18dNIae.- ', max_size=24))
def test_any_text_is_read_or_refused_within_itself(text: str) -> None:
    value, problem = read(text)

    assert problem is None or 0 <= problem.position <= len(text)
    assert problem is not None or canonical_bytes(value) == canonical_bytes(json.loads(text))


def read(text: str) -> tuple[JSON, JSONProblem | None]:
    try:
        return parse_json_strict(text), None
    except JSONProblem as problem:
        return None, problem
