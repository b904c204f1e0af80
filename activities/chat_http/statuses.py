"""From an HTTP response or a broken connection to the typed error. Pure: no I/O."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import httpx

from activities.chat_http.errors import BrokenAnswer, ChatError, NotReached, Refused
from activities.chat_http.types import JSON
from activities.chat_http.wire import LONGEST_TEXT, parse_object, refusal_in
from activities.mcp_http.refusals import retry_after_s
from activities.mcp_http.wire import clean_text

MAX_ERROR_BODY_BYTES: Final = 64 * 1024
MAX_ERROR_DEPTH: Final = 32

_NOT_SENT_CODES: Final[dict[type[httpx.TransportError], str]] = {
    httpx.ConnectTimeout: "connect_timeout",
    httpx.PoolTimeout: "pool_timeout",
}
_SENT_CODES: Final[dict[type[httpx.TransportError], str]] = {
    httpx.ReadTimeout: "read_timeout",
    httpx.WriteTimeout: "write_timeout",
}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The parts of a response other than 200 that decide what it means; `headers` has lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    received_at: datetime


def error_of_response(answer: ErrorAnswer) -> ChatError:
    """Return the error that a response with a status other than 200 stands for."""
    facts: dict[str, JSON] = {"http_status": answer.status}
    wait_s = retry_after_s(answer.headers.get("retry-after"), answer.received_at)
    if wait_s is not None:
        facts["retry_after_s"] = wait_s
    if answer.status < 400:
        return BrokenAnswer(
            "unexpected_status",
            f"The provider answered HTTP {answer.status}; redirects are not followed.",
            facts,
        )
    told = parse_object(answer.body, MAX_ERROR_DEPTH)
    if told is not None:
        return refusal_in(told, answer.status, facts)
    if answer.body:
        text = answer.body[: 4 * LONGEST_TEXT].decode("utf-8", errors="replace")
        facts["provider_message"] = clean_text(text, LONGEST_TEXT)
    message = f"The provider answered with HTTP {answer.status}."
    return Refused("provider_error", message, retryable=False, details=facts)


def error_of_connection(exc: httpx.TransportError, *, sent: bool) -> NotReached:
    """Say what a failure below HTTP means; `sent` tells whether the request had begun to leave."""
    name = type(exc).__name__
    if isinstance(exc, httpx.LocalProtocolError):
        message = "The request cannot be sent as HTTP."
        return NotReached("invalid_request", message, may_have_run=False, retryable=False)
    if sent:
        code = _SENT_CODES.get(type(exc), "connection_lost")
        message = f"The connection to the provider failed before its answer was whole ({name})."
        return NotReached(code, message, may_have_run=True)
    code = _NOT_SENT_CODES.get(type(exc), "tls_failed" if _is_tls(exc) else "connect_failed")
    return NotReached(code, f"No connection to the provider could be made ({name}).", may_have_run=False)


def _is_tls(exc: BaseException) -> bool:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
