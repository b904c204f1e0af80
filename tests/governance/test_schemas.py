"""Schemas of tools: what is compiled, what is refused and what a model is told."""

import socket

import pytest

from governance.canonical import JSON
from governance.schemas import (
    MAX_PROBLEMS,
    compile_schema,
    wants_object,
)
from tests.governance.schema_cases import compiled, properties, reason_against, told

NULLABLE_OBJECT = {"anyOf": [{"type": "object", "required": ["q"]}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "arguments", "problems"),
    [
        ({"required": ["id"]}, {}, [("/id", "a value: it is required", "missing")]),
        (properties(a={"type": "integer"}), {"a": "7"}, [("/a", "integer", "string")]),
        (properties(a={"type": ["string", "null"]}), {"a": 7}, [("/a", "null or string", "integer")]),
        (properties(a={"enum": ["x", 1, None]}), {"a": "y"}, [("/a", 'one of "x", 1, null', "string")]),
        (properties(a={"const": {"k": 1}}), {"a": []}, [("/a", '{"k": 1}', "array")]),
        (properties(a={"minimum": 3}), {"a": 2}, [("/a", "at least 3", "integer")]),
        (properties(a={"maximum": 3}), {"a": 99**40}, [("/a", "at most 3", "integer")]),
        (properties(a={"exclusiveMinimum": 3}), {"a": 3}, [("/a", "more than 3", "integer")]),
        (properties(a={"exclusiveMaximum": 3}), {"a": 3.5}, [("/a", "less than 3", "number")]),
        (properties(a={"multipleOf": 2}), {"a": 3}, [("/a", "a multiple of 2", "integer")]),
        (properties(a={"minLength": 2}), {"a": ""}, [("/a", "at least 2 characters", "string")]),
        (properties(a={"maxLength": 2}), {"a": "abc"}, [("/a", "at most 2 characters", "string")]),
        (properties(a={"minItems": 1}), {"a": []}, [("/a", "at least 1 items", "array")]),
        (properties(a={"maxItems": 1}), {"a": [1, 2]}, [("/a", "at most 1 items", "array")]),
        (properties(a={"uniqueItems": True}), {"a": [1, 1]}, [("/a", "items that all differ", "array")]),
        (properties(a={"minProperties": 1}), {"a": {}}, [("/a", "at least 1 properties", "object")]),
        ({"maxProperties": 0}, {"a": 1}, [("", "at most 0 properties", "object")]),
        (properties(a={"pattern": "^x{2}$"}), {"a": "y"}, [("/a", "text that matches ^x{2}$", "string")]),
        (
            properties(a={"contains": {"const": 1}}),
            {"a": []},
            [("/a", "another number of items of the form asked for", "array")],
        ),
        (
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            [("", "property names that are at most 1 characters", "object")],
        ),
        ({"additionalProperties": False}, {"zz": 1}, [("", "no properties", "object")]),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"zz": 1, "a": 1},
            [("/zz", "no property of this name", "integer")],
        ),
        (
            {"properties": {"a": {"properties": {}, "additionalProperties": False}}},
            {"a": {"zz": 1}},
            [("/a/zz", "no property of this name", "integer")],
        ),
        ({"unevaluatedProperties": False}, {"zz": []}, [("/zz", "no property of this name", "array")]),
        (properties(a=False), {"a": 1}, [("/a", "no value here", "integer")]),
        (
            properties(a={"not": {"type": "string"}}),
            {"a": ""},
            [("/a", "a value that its not allows", "string")],
        ),
        (
            properties(a={"anyOf": [{"type": "string"}, {"type": "null"}]}),
            {"a": 1},
            [("/a", "string or null", "integer")],
        ),
        (properties(a=NULLABLE_OBJECT), {"a": {}}, [("/a/q", "a value: it is required", "missing")]),
        (
            properties(a={"oneOf": [{"const": 1}, {"const": 2}, {"type": "null"}]}),
            {"a": 3},
            [("/a", "one of 3 forms, 2 of which take a value of this type", "integer")],
        ),
        (
            properties(a={"oneOf": [{"minimum": 1}, {"minimum": 2}]}),
            {"a": 3},
            [("/a", "a value that fits exactly one of the allowed forms; it fits several", "integer")],
        ),
        (properties(a={"items": {"type": "string"}}), {"a": ["x", 1]}, [("/a/1", "string", "integer")]),
        ({"properties": {"m/~": {"type": "null"}}}, {"m/~": 1}, [("/m~1~0", "null", "integer")]),
        (False, {}, [("", "no value here", "object")]),
    ],
    ids=str,
)
def test_a_model_is_told_where_what_and_what_it_gave(
    schema: JSON, arguments: JSON, problems: list[tuple[str, str, str]]
) -> None:
    assert told(schema, arguments) == problems


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (True, {"a": 1}),
        ({}, {}),
        (properties(a={"type": "integer"}), {"a": 2**70}),
        (properties(a={"type": "string", "format": "email"}), {"a": "not an address"}),
        (properties(a={"type": "integer"}), {"b": "free"}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"const": 1}}}, {"a": 1}),
        (properties(a={"nullable": True, "example": {"$ref": "http://x.test/"}}), {"a": 1}),
        (properties(**{"$ref": {"type": "string"}, "$id": {"type": "string"}}), {"$ref": "x", "$id": "y"}),
        (properties(a={"default": {"$id": "x", "$ref": "http://x.test/"}}), {}),
    ],
    ids=str,
)
def test_arguments_that_fit_have_no_problems(schema: JSON, arguments: JSON) -> None:
    assert told(schema, arguments) == []


def test_problems_are_few_short_and_never_quote_the_arguments() -> None:
    schema = properties(**{f"p{i}": {"type": "integer"} for i in range(50)}, o={"enum": ["o" * 5000] * 50})
    arguments = {f"p{i}": "hunter2" for i in range(50)} | {"o": "hunter2"}

    problems = compiled(schema).check(arguments)
    assert len(problems) == MAX_PROBLEMS
    for problem in [*problems, *compiled(schema).check({"o": "hunter2"})]:
        assert len(problem.expected) <= 200
        assert "hunter2" not in str(problem)


def test_many_options_are_shortened() -> None:
    ((_, expected, _),) = told(properties(a={"enum": list(range(100))}), {"a": "x"})

    assert expected.startswith("one of 0, 1, 2,")
    assert expected.endswith(", 19, ...")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (None, "not null"),
        ([], "not array"),
        ("{}", "not string"),
        ({"type": "text"}, "/type"),
        ({"$ref": "#/$defs/nowhere"}, "nowhere"),
        ({"$ref": "#/$defs"}, "$defs"),
        ({"$ref": "#nowhere"}, "nowhere"),
        ({"$ref": "#/x/0/y", "x": [1]}, "/x/0/y"),
        ({"$ref": "#/x/7", "x": [{}]}, "/x/7"),
        ({"$schema": "http://example.test/dialect"}, "dialect"),
        ({"properties": {"a": {"$id": "http://x.test/", "type": "string"}}}, "$id"),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "properties": {"a": {"id": "http://x.test/"}},
            },
            "id",
        ),
        ({"not": {"pattern": "["}}, "/not/pattern"),
        ({"properties": {"a": {"pattern": "(?=a)"}}, "not": {"required": ["b"]}}, "look-around"),
        ({"patternProperties": {"(?=a)": {}}}, "look-around"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_used_is_refused_with_a_reason(schema: JSON, says: str) -> None:
    assert says in reason_against(schema)


REFERENCES = (
    "http://127.0.0.1:{port}/s",
    "https://x.test/s",
    "//x.test/s",
    "file:///etc/passwd",
    "other.json",
    "urn:x",
)


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize(
    "wrap",
    [lambda s: s, lambda s: {"properties": {"a": {"items": s}}}, lambda s: {"$ref": "#/x/y", "x": {"y": s}}],
)
def test_a_remote_reference_is_refused_and_never_fetched(keyword: str, reference: str, wrap: object) -> None:
    assert callable(wrap)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        written = reference.format(port=server.getsockname()[1])

        assert "none is ever fetched" in reason_against(wrap({keyword: written}))
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_remote_dialect_is_never_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)

        compile_schema({"$schema": f"http://127.0.0.1:{server.getsockname()[1]}/s"})
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("reference", ["#/$defs/a%20b~1~0", "#named", "#/properties/b", "#/$defs/n/anyOf/0"])
def test_references_within_the_schema_are_followed(reference: str) -> None:
    schema = {
        "properties": {"a": {"$ref": reference}, "b": {"type": "string"}},
        "$defs": {
            "a b/~": {"type": "string"},
            "n": {"$anchor": "named", "type": "string", "anyOf": [{"type": "string"}]},
        },
    }

    assert told(schema, {"a": 1}) == [("/a", "string", "integer")]
    assert told(schema, {"a": "x"}) == []


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object"}, True),
        ({}, True),
        (True, True),
        ({"type": ["null", "object"]}, True),
        ({"type": "string"}, False),
        ({"type": ["string", "null"]}, False),
    ],
)
def test_a_schema_says_whether_it_wants_an_object(schema: JSON, *, expected: bool) -> None:
    assert wants_object(schema) is expected
