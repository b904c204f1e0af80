"""Request bodies: read up to a limit, parsed to exactly one meaning, then checked against a model."""

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.errors import APIProblem, malformed
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.strict_json import JSONProblem, parse_json_strict

ModelT = TypeVar("ModelT", bound=BaseModel)

PARSED_IN_LINE_BYTES = 64 * 1024
"""A longer body is parsed in a thread, so that other requests do not wait for it."""

SHOWN_PROBLEMS = 20
"""How many faults of a body an answer lists."""


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request.

    Raises:
        APIProblem: body_too_large, as soon as more than `limit` bytes are announced or have come.
    """
    too_large = APIProblem(ErrorCode.BODY_TOO_LARGE, {"limit_bytes": limit}, headers={"connection": "close"})
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


async def read_json(request: Request, limit: int) -> JSON:
    """Return the JSON value of a request's body; integers keep every digit.

    Raises:
        APIProblem: body_too_large, or invalid_request with the position of the fault.
    """
    body = await read_body(request, limit)
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    # Anything but JSON is refused: a browser sends forms and text across origins without asking first.
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise malformed("the body is sent as application/json", content_type=media_type[:100])
    try:
        if len(body) <= PARSED_IN_LINE_BYTES:
            return parse_json_strict(body)
        return await asyncio.to_thread(parse_json_strict, body)
    except JSONProblem as problem:
        raise malformed(
            f"the body is not JSON: {problem.problem} at position {problem.position}",
            position=problem.position,
        ) from problem


async def read_model(request: Request, model: type[ModelT], limit: int) -> ModelT:
    """Return the body of a request as `model`.

    Raises:
        APIProblem: body_too_large or invalid_request, with `details.problems` for what each place needs.
    """
    return check_model(model, await read_json(request, limit))


def check_model(model: type[ModelT], value: JSON) -> ModelT:
    """Return a JSON value as `model`, or raise invalid_request."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid_fields(error) from error


def invalid_fields(error: ValidationError) -> APIProblem:
    """Describe the faults of a value by place, without quoting what was sent."""
    problems: list[JSON] = [
        {"path": _path(fault["loc"]), "problem": problem_of(fault["type"], fault["msg"])}
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    first = problems[0]
    clause = f"{first['path'] or 'the body'}: {first['problem']}"
    return malformed(clause, problems=problems[:SHOWN_PROBLEMS])


_WORDS = {
    "extra_forbidden": "there is no such field",
    "missing": "this field is required",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
"""Faults in the words of JSON; the validator speaks of Python's types."""


def problem_of(kind: str, message: str) -> str:
    """Say what is wrong with a value, from the validator's kind of fault and its message."""
    plain = message.removeprefix("Value error, ").replace(" after validation", "")
    return _WORDS.get(kind, plain)


def _path(place: tuple[int | str, ...]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:200]
