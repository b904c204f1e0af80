"""HTTP header fields of MCP requests: what we send, what we refuse to send. Pure: no I/O."""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Final

from activities.mcp_http.types import JSON, Endpoint
from activities.mcp_http.wire import as_list, as_object

JSON_TYPE: Final = "application/json"
EVENT_STREAM_TYPE: Final = "text/event-stream"
MAX_SESSION_ID_LENGTH: Final = 8192

RawHeaders = list[tuple[bytes, bytes]]
"""Header fields in the form httpx takes without parsing."""

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_CONFIGURED_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_ENCODED_VALUE: Final = re.compile(r"=\?base64\?.*\?=")

_OWNED_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-charset",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "origin",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that HTTP framing or the protocol owns; configuration may not set them."""

_OWNED_PREFIX: Final = "mcp-"

_PARAMETER_TYPES: Final = ("string", "integer", "boolean")
_SINGLE_SUBSCHEMA: Final = frozenset(
    {
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_SUBSCHEMA_LIST: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SUBSCHEMA_MAP: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties"})


def refusal_of_header(name: str, value: str) -> str | None:
    """Say why a configured header may not be sent, or None if it may. Never repeats the value."""
    lowered = name.lower()
    if not _TOKEN.fullmatch(name):
        return f"header name {name!r} is not an HTTP token"
    if lowered in _OWNED_HEADERS or lowered.startswith(_OWNED_PREFIX):
        return f"header {name!r} belongs to the protocol and cannot be configured"
    if not _CONFIGURED_VALUE.fullmatch(value):
        return f"the value of header {name!r} holds characters other than printable ASCII"
    return None


def is_session_id(value: str) -> bool:
    """Say whether a server's session id may go into a header.

    Source: MCP 2025-11-25, Transports, Session Management: visible ASCII only, 0x21 to 0x7E.
    """
    return len(value) <= MAX_SESSION_ID_LENGTH and _VISIBLE.fullmatch(value) is not None


def post_headers(endpoint: Endpoint, version: str | None, session_id: str | None) -> RawHeaders:
    """Return the fields of a POST; `version` and `session_id` are None before they are negotiated.

    ``Accept-Encoding: identity`` because a small compressed body may expand to any size.
    """
    fields = [
        (b"Accept", f"{JSON_TYPE}, {EVENT_STREAM_TYPE}".encode()),
        (b"Content-Type", JSON_TYPE.encode()),
        *_shared_headers(endpoint, version, session_id),
    ]
    return _with_defaults(fields, endpoint)


def get_headers(
    endpoint: Endpoint, version: str | None, session_id: str | None, last_event_id: str | None = None
) -> RawHeaders:
    """Return the fields of a GET that opens or resumes an event stream."""
    fields = [
        (b"Accept", EVENT_STREAM_TYPE.encode()),
        (b"Cache-Control", b"no-store"),
        *_shared_headers(endpoint, version, session_id),
    ]
    if last_event_id is not None:
        fields.append((b"Last-Event-ID", last_event_id.encode("utf-8")))
    return _with_defaults(fields, endpoint)


def _shared_headers(endpoint: Endpoint, version: str | None, session_id: str | None) -> RawHeaders:
    fields = [(b"Accept-Encoding", b"identity")]
    fields.extend((name.encode("ascii"), value.encode("ascii")) for name, value in endpoint.headers.items())
    if version is not None:
        fields.append((b"MCP-Protocol-Version", version.encode("ascii")))
    if session_id is not None:
        fields.append((b"Mcp-Session-Id", session_id.encode("ascii")))
    return fields


def _with_defaults(fields: RawHeaders, endpoint: Endpoint) -> RawHeaders:
    if not any(name.lower() == b"user-agent" for name, _ in fields):
        info = endpoint.client_info
        fields.append((b"User-Agent", f"{info.name}/{info.version}".encode("ascii", errors="replace")))
    return fields


MAX_EVENT_ID: Final = 1024
"""Longest event id that is kept and sent back: servers refuse long headers, and each id is stored."""


def is_sendable_event_id(value: str) -> bool:
    """Say whether an event id may go into ``Last-Event-ID``: short, no control characters, no edge spaces."""
    return (
        0 < len(value) <= MAX_EVENT_ID
        and value == value.strip()
        and all(char >= " " and char != "\x7f" for char in value)
    )


def encode_value(value: str) -> str:
    """Return `value` as it goes into an ``Mcp-Name`` or ``Mcp-Param-*`` header.

    Printable ASCII without edge spaces goes plain; all else, and what looks encoded, as ``=?base64?…?=``.
    Source: MCP 2026-07-28, Transports, Header value encoding.
    """
    if _PLAIN_VALUE.fullmatch(value) and not _ENCODED_VALUE.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8')).decode('ascii')}?="


def modern_headers(
    method: str, name: str | None, parameters: Mapping[tuple[str, ...], str], arguments: Mapping[str, JSON]
) -> RawHeaders:
    """Return ``Mcp-Method``, ``Mcp-Name`` and the ``Mcp-Param-*`` fields of one modern request.

    Args:
        method: The JSON-RPC method.
        name: The tool, prompt or resource the request names, None if it names none.
        parameters: Property path to header name suffix, as `parameter_headers` returns it.
        arguments: The tool arguments; absent and null ones get no header.
    """
    fields = [(b"Mcp-Method", method.encode("ascii"))]
    if name is not None:
        fields.append((b"Mcp-Name", encode_value(name).encode("ascii")))
    for path, suffix in parameters.items():
        text = _scalar_text(_value_at(arguments, path))
        if text is not None:
            fields.append((b"Mcp-Param-" + suffix.encode("ascii"), encode_value(text).encode("ascii")))
    return fields


def _value_at(arguments: Mapping[str, JSON], path: tuple[str, ...]) -> JSON:
    value: JSON = dict(arguments)
    for key in path:
        holder = as_object(value)
        if holder is None:
            return None
        value = holder.get(key)
    return value


def _scalar_text(value: JSON) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def parameter_headers(input_schema: JSON) -> dict[tuple[str, ...], str] | str:
    """Return the argument headers a tool's schema asks for, or the reason why its annotations are invalid.

    Valid only on string, integer or boolean properties reached through ``properties`` alone; names are HTTP
    tokens, unique ignoring case. Source: MCP 2026-07-28, Transports, Custom headers from tool parameters.
    """
    found: dict[tuple[str, ...], str] = {}
    taken: set[str] = set()
    for path, schema in _subschemas(input_schema):
        if "x-mcp-header" not in schema:
            continue
        suffix = schema["x-mcp-header"]
        if not path:
            return "x-mcp-header outside a chain of properties"
        if not isinstance(suffix, str) or not _TOKEN.fullmatch(suffix):
            return "x-mcp-header is not an HTTP token"
        if schema.get("type") not in _PARAMETER_TYPES:
            return "x-mcp-header on a property that is not string, integer or boolean"
        if suffix.lower() in taken:
            return f"x-mcp-header {suffix!r} is used twice"
        taken.add(suffix.lower())
        found[path] = suffix
    return found


def _subschemas(root: JSON) -> Iterator[tuple[tuple[str, ...] | None, dict[str, JSON]]]:
    """Yield each subschema with its path of properties; the path is None once another keyword was crossed."""
    pending: list[tuple[tuple[str, ...] | None, JSON]] = [((), root)]
    while pending:
        path, node = pending.pop()
        schema = as_object(node)
        if schema is None:
            continue
        yield path, schema
        for keyword, value in schema.items():
            if keyword == "properties":
                below = (as_object(value) or {}).items()
                pending.extend((None if path is None else (*path, name), sub) for name, sub in below)
            elif keyword in _SINGLE_SUBSCHEMA:
                pending.append((None, value))
            elif keyword in _SUBSCHEMA_LIST:
                pending.extend((None, sub) for sub in as_list(value) or [])
            elif keyword in _SUBSCHEMA_MAP:
                pending.extend((None, sub) for sub in (as_object(value) or {}).values())
