"""JSON-RPC frames and MCP versions: bytes in, typed messages out. Pure: no I/O."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

from pydantic_core import from_json

from activities.mcp_http.types import JSON, ClientInfo

MODERN_VERSION: Final = "2026-07-28"
"""The one version of the modern era this client speaks."""

LEGACY_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions accepted as an answer to ``initialize``, newest first; the first is offered."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
CAPABILITY_REQUIRED: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
META_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
META_CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"

_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_BOM: Final = b"\xef\xbb\xbf"
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class BadJSON(ValueError):
    """Bytes that are no JSON we accept: syntax, encoding, NaN, lone surrogates, depth, endless integers."""


@dataclass(frozen=True, slots=True)
class RPCError:
    """The error member of a response."""

    code: int
    message: str
    data: JSON = None


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: exactly one of `result` and `error` is set. `id` is None if it was null or absent."""

    id: JSON
    result: dict[str, JSON] | None = None
    error: RPCError | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request from the server; `id` is in the server's own number space."""

    id: JSON
    method: str
    params: dict[str, JSON]


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification from the server."""

    method: str
    params: dict[str, JSON]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A JSON value that is no JSON-RPC message; `id` is what it carried, None if nothing."""

    reason: str
    id: JSON = None


Message = Response | Request | Notification | Malformed


def as_object(value: JSON) -> dict[str, JSON] | None:
    """Return `value` if it is a JSON object, else None."""
    return value if _is_object(value) else None


def _is_object(value: JSON) -> TypeGuard[dict[str, JSON]]:
    return isinstance(value, dict)


def as_list(value: JSON) -> list[JSON] | None:
    """Return `value` if it is a JSON array, else None."""
    return value if _is_list(value) else None


def _is_list(value: JSON) -> TypeGuard[list[JSON]]:
    return isinstance(value, list)


def parse_json(data: bytes | str, max_depth: int) -> JSON:
    """Parse JSON text; a leading BOM is skipped and integers stay exact.

    Args:
        data: UTF-8 bytes, or text.
        max_depth: Nesting allowed; the parser itself stops at 200 levels.

    Raises:
        BadJSON: The text is not JSON, not UTF-8, nested deeper than `max_depth`, or holds NaN, an infinity, a
            number beyond floats, a lone surrogate or an integer of more digits than Python converts.
    """
    data = data.removeprefix(_BOM) if isinstance(data, bytes) else data.removeprefix("\ufeff")
    try:
        value: JSON = from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as exc:
        raise BadJSON("not JSON, or nested deeper than 200 levels") from exc
    _check_values(value, max_depth)
    return value


def _check_values(value: JSON, max_depth: int) -> None:
    level: list[JSON] = [value]
    depth = 0
    while level:
        below: list[JSON] = []
        nested = False
        for item in level:
            kind = item.__class__
            if kind is dict:
                nested = True
                below.extend(item.values())
            elif kind is list:
                nested = True
                below.extend(item)
            elif kind is float and math.isinf(item):
                raise BadJSON("a number is too large")
        depth += nested
        if depth > max_depth:
            raise BadJSON(f"JSON is nested deeper than {max_depth} levels")
        level = below


def dump_json(value: JSON) -> bytes:
    """Encode a JSON value as UTF-8 bytes.

    Raises:
        BadJSON: The value is not JSON: NaN, a lone surrogate, a foreign type, a cycle or endless depth.
    """
    try:
        return _ENCODER.encode(value).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadJSON(f"value cannot be sent as JSON: {type(exc).__name__}") from exc


def read_message(value: JSON) -> Message:
    """Tell what a parsed JSON value is as a JSON-RPC message. Source: JSON-RPC 2.0, sections 4 and 5."""
    frame = as_object(value)
    if frame is None:
        return Malformed("not an object")
    if frame.get("jsonrpc") != "2.0":
        return Malformed("jsonrpc is not 2.0", frame.get("id"))
    if "method" in frame:
        return _read_call(frame)
    return _read_response(frame)


def _read_call(frame: dict[str, JSON]) -> Message:
    method, params = frame["method"], as_object(frame.get("params")) or {}
    if not isinstance(method, str):
        return Malformed("method is not a string")
    if "id" not in frame:
        return Notification(method, params)
    if not isinstance(frame["id"], str | int | float) or isinstance(frame["id"], bool):
        return Malformed("request id is neither string nor number")
    return Request(frame["id"], method, params)


def _read_response(frame: dict[str, JSON]) -> Message:
    answer_id = frame.get("id")
    result, error = as_object(frame.get("result")), frame.get("error")
    if frame.get("result") is not None and error is not None:
        return Malformed("both result and error", answer_id)
    if error is not None:
        return _read_error(answer_id, error)
    if result is None:
        return Malformed("result is not an object" if "result" in frame else "no result or error", answer_id)
    return Response(answer_id, result=result)


def _read_error(answer_id: JSON, error: JSON) -> Message:
    body = as_object(error)
    if body is None:
        return Malformed("error is not an object", answer_id)
    code, message = body.get("code"), body.get("message")
    if not isinstance(code, int) or isinstance(code, bool):
        return Malformed("error code is not an integer", answer_id)
    text = message if isinstance(message, str) else ""
    return Response(answer_id, error=RPCError(code, clean_text(text, 2000), body.get("data")))


def is_answer_to(answer_id: JSON, request_id: str) -> bool:
    """Say whether a response id names our request.

    Our ids are strings; an integer whose decimal text is our id is accepted, because some servers convert.
    ``true`` and ``1.0`` never match.
    """
    if isinstance(answer_id, int) and not isinstance(answer_id, bool):
        return str(answer_id) == request_id
    return isinstance(answer_id, str) and answer_id == request_id


def request_bytes(request_id: str, method: str, params: Mapping[str, JSON]) -> bytes:
    """Encode a request."""
    return dump_json({"jsonrpc": "2.0", "id": request_id, "method": method, "params": dict(params)})


def notification_bytes(method: str, params: Mapping[str, JSON] | None = None) -> bytes:
    """Encode a notification; `params` is left out when it is None."""
    frame: dict[str, JSON] = {"jsonrpc": "2.0", "method": method}
    return dump_json(frame if params is None else {**frame, "params": dict(params)})


def modern_meta(client: ClientInfo, capabilities: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the ``_meta`` entries that every modern request carries; capabilities even when empty.

    Source: MCP 2026-07-28, Basic, Per-request metadata.
    """
    return {
        META_VERSION: MODERN_VERSION,
        META_CLIENT_INFO: {"name": client.name, "version": client.version},
        META_CLIENT_CAPABILITIES: dict(capabilities),
    }


def clean_text(text: str, limit: int) -> str:
    """Return a server's text made safe for logs and messages: no control characters, at most `limit` long."""
    cleaned = _CONTROL_CHARACTERS.sub(" ", text[: 2 * limit]).strip()
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"
