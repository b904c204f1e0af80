"""From an HTTP response or JSON-RPC error to the typed error and its outcome. Pure: no I/O.

The session forms are the recorded answers of six families of servers.
"""

import email.utils
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from activities.mcp_http import wire
from activities.mcp_http.errors import (
    MCPError,
    Outcome,
    ProtocolError,
    SemanticError,
    SessionLost,
    TransportError,
)
from activities.mcp_http.types import JSON, Era

MAX_RETRY_AFTER_S: Final = 86_400.0
MAX_ERROR_BODY_BYTES: Final = 64 * 1024

_SESSION_TEXT: Final = re.compile(r"session|not initialized", re.IGNORECASE)
_SESSION_CODES: Final = frozenset({-32000, wire.INVALID_REQUEST, -32001})
_PROTOCOL_CODES: Final = frozenset(
    {
        wire.PARSE_ERROR,
        wire.INVALID_REQUEST,
        wire.METHOD_NOT_FOUND,
        wire.INVALID_PARAMS,
        wire.HEADER_MISMATCH,
        wire.CAPABILITY_REQUIRED,
        wire.UNSUPPORTED_VERSION,
    }
)

_SPOKEN: Final = frozenset({400, 404, 422})
"""Statuses on which a JSON-RPC error in the body says more than the status."""

MAX_ERROR_DATA_BYTES: Final = 16 * 1024
"""Larger ``data`` of a JSON-RPC error is left out of the details."""

_PROTOCOL_NAMES: Final = {
    wire.PARSE_ERROR: "parse_error",
    wire.INVALID_REQUEST: "invalid_request",
    wire.METHOD_NOT_FOUND: "method_not_found",
    wire.INVALID_PARAMS: "invalid_params",
    wire.HEADER_MISMATCH: "header_mismatch",
    wire.CAPABILITY_REQUIRED: "client_capability_required",
    wire.UNSUPPORTED_VERSION: "unsupported_protocol_version",
}
_REMEDIES: Final = {
    wire.INVALID_PARAMS: "refresh_tools",
    wire.HEADER_MISMATCH: "refresh_tools",
    wire.UNSUPPORTED_VERSION: "negotiate",
}


@dataclass(frozen=True, slots=True)
class _Refusal:
    """How one HTTP status is read when it proves that the request did not run."""

    code: str
    retryable: bool
    remedy: str | None


_REFUSED: Final = {
    401: _Refusal("unauthorized", retryable=False, remedy="credential"),
    403: _Refusal("forbidden", retryable=False, remedy=None),
    404: _Refusal("endpoint_not_found", retryable=False, remedy="negotiate"),
    405: _Refusal("method_not_allowed", retryable=False, remedy="negotiate"),
    406: _Refusal("not_acceptable", retryable=False, remedy=None),
    413: _Refusal("request_too_large", retryable=False, remedy=None),
    415: _Refusal("unsupported_media_type", retryable=False, remedy=None),
    421: _Refusal("misdirected_request", retryable=True, remedy="new_connection"),
    429: _Refusal("rate_limited", retryable=True, remedy="wait"),
}


@dataclass(frozen=True, slots=True)
class HTTPAnswer:
    """The parts of a response with a status of 300 or more that decide what it means.

    `headers` has lower-case names; `body` is cut at `MAX_ERROR_BODY_BYTES`.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    received_at: datetime

    def rpc_error(self) -> wire.RPCError | None:
        """Return the JSON-RPC error in the body, whatever its id.

        A body on a failed status answers this very POST: null, absent and made-up ids are all in use.
        """
        try:
            message = wire.read_message(wire.parse_json(self.body, 64))
        except wire.BadJSON:
            return None
        return message.error if isinstance(message, wire.Response) else None

    def facts(self) -> dict[str, JSON]:
        """Return what is worth telling: status, content type, first bytes, challenge and Retry-After."""
        found: dict[str, JSON] = {"http_status": self.status}
        if content_type := self.headers.get("content-type"):
            found["content_type"] = wire.clean_text(content_type, 200)
        if challenge := self.headers.get("www-authenticate"):
            found["www_authenticate"] = wire.clean_text(challenge, 2000)
        wait_s = retry_after_s(self.headers.get("retry-after"), self.received_at)
        if wait_s is not None:
            found["retry_after_s"] = wait_s
        return found


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Read ``Retry-After`` as seconds from `now`, 0 to a day. Source: RFC 9110, section 10.2.3."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), MAX_RETRY_AFTER_S)
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None  # Numbers beyond what dates and zones can hold overflow.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - now).total_seconds(), 0.0), MAX_RETRY_AFTER_S)


def is_session_lost(answer: HTTPAnswer, *, had_session: bool) -> bool:
    """Say whether a response means that the session is gone.

    A 404, unless its body says "method not found"; or a 400 whose JSON-RPC error has one of the codes in use
    and speaks of the session. Source: MCP 2025-11-25, Transports, Session Management, rule 3; the 400 forms
    are what server-everything and the SDKs of the 1.x line answer.
    """
    if not had_session or answer.status not in {400, 404}:
        return False
    error = answer.rpc_error()
    if answer.status == 404:
        return error is None or error.code != wire.METHOD_NOT_FOUND
    return error is not None and error.code in _SESSION_CODES and bool(_SESSION_TEXT.search(error.message))


def error_of_response(
    answer: HTTPAnswer, *, had_session: bool, refusal_statuses: frozenset[int] = frozenset()
) -> MCPError:
    """Return the error that a response with a status of 300 or more stands for."""
    facts = answer.facts()
    if is_session_lost(answer, had_session=had_session):
        return SessionLost(facts)
    if answer.status < 400:
        return _redirect_error(answer, facts)
    error = answer.rpc_error()
    if error is not None and answer.status in _SPOKEN and (answer.status == 400 or _is_reserved(error)):
        return _bad_request(error, facts)
    if error is not None:
        facts |= _rpc_facts(error)
    elif answer.body:
        facts["body_start"] = wire.clean_text(answer.body[:400].decode("utf-8", errors="replace"), 200)
    return _status_error(answer.status, facts, refusal_statuses)


def error_once_negotiated(error: MCPError, era: Era, *, negotiated: bool) -> MCPError:
    """Return what an error means to a request that relies on an earlier negotiation.

    A server that was modern and now refuses a request as legacy servers do, or one without sessions that now
    asks for one, is not the server that was spoken with: nothing ran, and negotiating anew helps.
    Source: MCP 2026-07-28, Transports, Backwards compatibility.
    """
    refused = error.http_status == 400 and error.code in {"bad_request", "invalid_request"}
    if not refused or not negotiated:
        return error
    if era == "modern":
        return TransportError(
            "era_changed",
            "The MCP server refuses what it agreed on earlier; it speaks another protocol version now.",
            Outcome.REFUSED,
            details={**error.details, "remedy": "negotiate"},
        )
    text = error.details.get("jsonrpc_message")
    return SessionLost(error.details) if isinstance(text, str) and _SESSION_TEXT.search(text) else error


def _is_reserved(error: wire.RPCError) -> bool:
    return error.code in _PROTOCOL_CODES


def _bad_request(error: wire.RPCError, facts: dict[str, JSON]) -> MCPError:
    if _is_reserved(error) or error.code == wire.INTERNAL_ERROR:
        return error_of_rpc(error, facts)
    # The codes around -32000 have no meaning of their own: one SDK uses it for at least eight refusals.
    return ProtocolError(
        "bad_request",
        f"The MCP server refused the request as malformed: {error.message}",
        Outcome.ANSWERED,
        details=facts | _rpc_facts(error),
    )


def _status_error(status: int, facts: dict[str, JSON], refusal_statuses: frozenset[int]) -> TransportError:
    refusal = _REFUSED.get(status)
    if refusal is None and status in refusal_statuses:
        refusal = _Refusal(f"http_{status}", retryable=True, remedy="wait")
    message = f"The MCP server answered HTTP {status}."
    if refusal is None:
        return TransportError(f"http_{status}", message, Outcome.UNKNOWN, details=facts)
    if refusal.remedy is not None:
        facts["remedy"] = refusal.remedy
    return TransportError(refusal.code, message, Outcome.REFUSED, retryable=refusal.retryable, details=facts)


def _redirect_error(answer: HTTPAnswer, facts: dict[str, JSON]) -> TransportError:
    facts["remedy"] = "negotiate"
    if location := answer.headers.get("location"):
        facts["location"] = wire.clean_text(location, 2000)
    return TransportError(
        "redirect_refused",
        f"The MCP server answered with a redirect (HTTP {answer.status}), which is not followed; "
        "configure the final URL. A redirect from https to http usually means a proxy that hides https.",
        Outcome.REFUSED,
        details=facts,
    )


def _rpc_facts(error: wire.RPCError) -> dict[str, JSON]:
    facts: dict[str, JSON] = {"jsonrpc_code": error.code, "jsonrpc_message": error.message}
    if error.data is not None and len(wire.dump_json(error.data)) <= MAX_ERROR_DATA_BYTES:
        facts["jsonrpc_data"] = error.data
    return facts


def error_of_rpc(error: wire.RPCError, facts: Mapping[str, JSON] | None = None) -> MCPError:
    """Return the typed error for a JSON-RPC error that answers our request.

    The codes that JSON-RPC and MCP reserve are protocol errors, all others the server's own: ``tool_error``.
    -32603 says nothing about what ran before it, so its outcome is unknown.
    """
    details: dict[str, JSON] = {**(facts or {}), **_rpc_facts(error)}
    message = f"The MCP server answered with error {error.code}: {error.message}"
    if error.code not in _PROTOCOL_CODES:
        outcome = Outcome.UNKNOWN if error.code == wire.INTERNAL_ERROR else Outcome.ANSWERED
        return SemanticError("tool_error", message, outcome, details=details)
    remedy = _REMEDIES.get(error.code)
    if remedy is not None:
        details["remedy"] = remedy
    if error.code == wire.UNSUPPORTED_VERSION:
        details["supported"] = supported_versions(error)
    return ProtocolError(_PROTOCOL_NAMES[error.code], message, Outcome.ANSWERED, details=details)


def supported_versions(error: wire.RPCError) -> list[JSON]:
    """Return the versions a -32022 error names as supported; empty if it names none."""
    named = wire.as_list((wire.as_object(error.data) or {}).get("supported")) or []
    return [wire.clean_text(version, 40) for version in named if isinstance(version, str)][:50]
