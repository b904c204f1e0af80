"""Say what to correct in arguments that do not fit a schema, without quoting them. Pure: no I/O."""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from jsonschema_rs import ValidationError, ValidationErrorKind

from governance.arguments import ArgumentProblem, json_type
from governance.canonical import JSON

_LONGEST_TEXT: Final = 200
_MOST_OPTIONS: Final = 20
_SENTENCES: Final = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} properties",
    "maxProperties": "at most {} properties",
    "pattern": "text that matches {}",
    "uniqueItems": "items that all differ",
    "contains": "another number of items of the form asked for",
    "oneOf": "a value that fits exactly one of the allowed forms; it fits several",
    "falseSchema": "no value here",
}


def problems_of(error: ValidationError) -> Iterator[ArgumentProblem]:
    """Yield what one validation error asks the model to correct."""
    kind = error.kind
    match kind:
        case ValidationErrorKind.Required(name):
            yield ArgumentProblem(pointer([*error.instance_path, name]), "a value: it is required", "missing")
        case ValidationErrorKind.AdditionalProperties(names) | ValidationErrorKind.UnevaluatedProperties(
            names
        ):
            for name in names:
                path = pointer([*error.instance_path, name])
                yield ArgumentProblem(path, "no property of this name", _type_inside(error.instance, name))
        case ValidationErrorKind.FalseSchema() if error.schema_path[-1:] == ["additionalProperties"]:
            # Where a schema names no properties, the validator reports the object and not the property.
            yield ArgumentProblem(pointer(error.instance_path), "no properties", "object")
        case ValidationErrorKind.AnyOf(branches) | ValidationErrorKind.OneOfNotValid(branches):
            yield from _alternatives(error, branches)
        case _:
            yield _problem(error, _expected(kind))


def _problem(error: ValidationError, expected: str) -> ArgumentProblem:
    return ArgumentProblem(pointer(error.instance_path), cut(expected), json_type(error.instance))


def _type_inside(value: JSON, name: str) -> str:
    return json_type(value[name])


def _alternatives(
    error: ValidationError, branches: Sequence[Sequence[ValidationError]]
) -> Iterator[ArgumentProblem]:
    """Describe the alternatives; where only one admits a value of this type, what that one asks for."""
    types = [_wrong_type(error, branch) for branch in branches]
    fitting = [branch for branch, wrong in zip(branches, types, strict=True) if wrong is None]
    if not fitting:
        names = dict.fromkeys(name for wrong in types for name in wrong or ())
        yield _problem(error, " or ".join(names))
    elif len(fitting) == 1:
        for inner in fitting[0]:
            yield from problems_of(inner)
    else:
        yield _problem(
            error, f"one of {len(branches)} forms, {len(fitting)} of which take a value of this type"
        )


def _wrong_type(error: ValidationError, branch: Sequence[ValidationError]) -> list[str] | None:
    for inner in branch:
        if inner.instance_path == error.instance_path and isinstance(inner.kind, ValidationErrorKind.Type):
            return inner.kind.types
    return None


def _expected(kind: ValidationErrorKind) -> str:
    match kind:
        case ValidationErrorKind.Type(types):
            return " or ".join(types)
        case ValidationErrorKind.Enum(options):
            shown = ", ".join(_shown(option) for option in options[:_MOST_OPTIONS])
            return f"one of {shown}" + (", ..." if len(options) > _MOST_OPTIONS else "")
        case ValidationErrorKind.Constant(value):
            return _shown(value)
        case ValidationErrorKind.PropertyNames(inner):
            return f"property names that are {_expected(inner.kind)}"
        case _:
            sentence = _SENTENCES.get(kind.name)
            return sentence.format(kind.value) if sentence else f"a value that its {kind.name} allows"


def _shown(option: JSON) -> str:
    return cut(json.dumps(option, ensure_ascii=False, default=str))


def cut(text: str) -> str:
    """Shorten a text that a schema's author chose, to be shown in a sentence."""
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def pointer(path: Sequence[str | int]) -> str:
    """Write a JSON Pointer. Source: RFC 6901."""
    tokens = (str(token).replace("~", "~0").replace("/", "~1") for token in path)
    return cut("".join(f"/{token}" for token in tokens))
