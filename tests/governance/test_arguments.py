"""The arguments of a call as models write them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.arguments import (
    MISSING,
    ArgumentProblem,
    InvalidArguments,
    Missing,
    ParsedArguments,
    json_type,
    parse_arguments,
)
from governance.canonical import JSON
from tests.governance.test_canonical_and_failures import deep_list, json_values

objects = st.dictionaries(st.text("abé", max_size=3), json_values, max_size=4)


@pytest.mark.parametrize("raw", [MISSING, None, "", " \n\t", "null", " null ", "{}", " {} ", {}])
def test_arguments_that_say_nothing_are_an_empty_object(raw: JSON | Missing) -> None:
    assert parse_arguments(raw) == ParsedArguments({})


@given(objects)
def test_an_object_arrives_whole_however_it_is_written(value: dict[str, JSON]) -> None:
    text = json.dumps(value)

    for raw in (value, text, json.dumps(value, ensure_ascii=False, indent=2), json.dumps(text)):
        assert parse_arguments(raw) == ParsedArguments(value)


def test_large_integers_keep_every_digit() -> None:
    assert parse_arguments('{"id": 9223372036854775807}') == ParsedArguments({"id": 9223372036854775807})


def test_a_string_argument_that_holds_json_stays_a_string() -> None:
    assert parse_arguments('{"text": "{\\"a\\": 1}"}') == ParsedArguments({"text": '{"a": 1}'})


@pytest.mark.parametrize(
    ("raw", "got", "position"),
    [
        (0, "integer", None),
        (1.5, "number", None),
        (False, "boolean", None),
        ([], "array", None),
        ("0", "integer", 0),
        (" false", "boolean", 1),
        ("[]", "array", 0),
        ('[{"a":1}]', "array", 0),
        ('"x"', "string", 0),
        ('""', "string", 0),
        ('"null"', "string", 0),
        ('"{"', "text", 1),
        ("{", "text", 1),
        ("NaN", "text", 0),
        ('{"a":NaN}', "text", 5),
        ('{"a":1}{"b":2}', "text", 7),
        ('{"a":1,"a":2}', "text", 7),
        ("a=1", "text", 0),
    ],
)
def test_anything_else_is_refused_with_its_type_and_place(raw: JSON, got: str, position: int | None) -> None:
    parsed = parse_arguments(raw)

    assert isinstance(parsed, InvalidArguments)
    (problem,) = parsed.problems
    assert (problem.path, problem.got, problem.position) == ("", got, position)
    assert problem.expected.startswith("a JSON object")


def test_text_within_text_is_unwrapped_once_and_only_for_tools_that_want_an_object() -> None:
    once = json.dumps('{"a":1}')
    twice = json.dumps(once)

    assert parse_arguments(once) == ParsedArguments({"a": 1})
    for refused in (parse_arguments(once, wants_object=False), parse_arguments(twice)):
        assert isinstance(refused, InvalidArguments)
        assert refused.problems[0].got == "string"


@pytest.mark.parametrize(
    "value", [{"a": float("nan")}, {"a": "\ud800"}, {"a": deep_list(63)}, {"a": deep_list(100_000)}]
)
def test_an_object_that_cannot_be_sent_is_refused(value: JSON) -> None:
    parsed = parse_arguments(value)

    assert isinstance(parsed, InvalidArguments)
    assert parsed.problems[0].got == "object"


def test_an_object_as_deep_as_text_may_be_is_accepted() -> None:
    value = {"a": deep_list(62)}

    assert parse_arguments(value) == ParsedArguments(value)


def test_a_refusal_never_quotes_the_arguments() -> None:
    secret = "hunter2"
    for raw in (
        f'{{"password": "{secret}"',
        f'["{secret}"]',
        f'"{secret}"',
        f'{{"a":"{secret}","a":1}}',
        secret,
    ):
        parsed = parse_arguments(raw)
        assert isinstance(parsed, InvalidArguments)
        assert secret not in str(parsed)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "boolean"),
        (1, "integer"),
        (1.0, "number"),
        ("", "string"),
        ([], "array"),
        ({}, "object"),
    ],
)
def test_values_are_named_by_their_json_type(value: JSON, name: str) -> None:
    assert json_type(value) == name


def test_a_problem_is_shown_with_path_expected_got_and_position() -> None:
    assert ArgumentProblem("/a", "string", "integer").to_json() == {
        "path": "/a",
        "expected": "string",
        "got": "integer",
        "position": None,
    }
