"""HTTP statuses and JSON-RPC errors in answer to a tool call: the error, its outcome, what stays known."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from activities.mcp_http.errors import (
    MCPError,
    Outcome,
    ProtocolError,
    SemanticError,
    SessionLost,
    TransportError,
)
from activities.mcp_http.refusals import retry_after_s
from activities.mcp_http.types import Timeouts
from tests.activities.mcp_http.connecting import connected
from tests.activities.mcp_http.test_hostile_answers import answering
from tests.support.raw_server import dump, error, http

Answer = Callable[[Any], bytes]
REFUSED, UNKNOWN, ANSWERED = Outcome.REFUSED, Outcome.UNKNOWN, Outcome.ANSWERED

STATUSES: list[tuple[int, type[MCPError], str, Outcome, bool, str | None]] = [
    (401, TransportError, "unauthorized", REFUSED, False, "credential"),
    (403, TransportError, "forbidden", REFUSED, False, None),
    (405, TransportError, "method_not_allowed", REFUSED, False, "negotiate"),
    (406, TransportError, "not_acceptable", REFUSED, False, None),
    (413, TransportError, "request_too_large", REFUSED, False, None),
    (415, TransportError, "unsupported_media_type", REFUSED, False, None),
    (421, TransportError, "misdirected_request", REFUSED, True, "new_connection"),
    (429, TransportError, "rate_limited", REFUSED, True, "wait"),
    (404, SessionLost, "session_not_found", REFUSED, True, "initialize"),
    (307, TransportError, "redirect_refused", REFUSED, False, "negotiate"),
    (302, TransportError, "redirect_refused", REFUSED, False, "negotiate"),
    (400, TransportError, "http_400", UNKNOWN, False, None),
    (408, TransportError, "http_408", UNKNOWN, False, None),
    (409, TransportError, "http_409", UNKNOWN, False, None),
    (500, TransportError, "http_500", UNKNOWN, False, None),
    (503, TransportError, "http_503", UNKNOWN, False, None),
]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "kind", "code", "outcome", "retryable", "remedy"), STATUSES, ids=[str(s[0]) for s in STATUSES]
)
async def test_a_status_keeps_its_meaning_and_its_number(
    status: int, kind: type[MCPError], code: str, outcome: Outcome, retryable: object, remedy: str | None
) -> None:
    page = http(status, b"<h1>no\x07</h1>", "text/html", "Location: https://elsewhere.example/mcp")
    async with connected(answering(lambda _: page)) as there:
        failure = await there.failure()
        assert type(failure) is kind
        assert (failure.code, failure.outcome, failure.retryable) == (code, outcome, retryable)
        assert failure.http_status == status
        assert failure.details.get("remedy") == remedy
        assert len(there.server.received("tools/call")) == 1


@pytest.mark.anyio
async def test_a_connection_may_name_further_statuses_that_prove_a_refusal() -> None:
    page = http(503, b"", None, "Retry-After: 7")
    async with connected(answering(lambda _: page), refusal_statuses=frozenset({503})) as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome, failure.retryable) == ("http_503", REFUSED, True)
        assert failure.retry_after_s == 7


@pytest.mark.anyio
@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_retry_after_and_the_challenge_survive(status: int) -> None:
    challenge = 'Bearer resource_metadata="http://169.254.169.254/x"'
    page = http(status, b"", None, "Retry-After: 120", f"WWW-Authenticate: {challenge}")
    async with connected(answering(lambda _: page)) as there:
        failure = await there.failure()
        assert (failure.http_status, failure.retry_after_s) == (status, 120)
        assert failure.details["www_authenticate"] == challenge


NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0),
        (" 15 ", 15),
        ("99999999999999999999", 86_400),
        ("-5", None),
        ("soon", None),
        ("", None),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0),
        (format_datetime(NOW + timedelta(days=900), usegmt=True), 86_400),
    ],
)
def test_retry_after_is_read_and_bounded(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, NOW) == seconds


LOST: dict[str, Answer] = {
    "404 of the Python SDK": lambda _: http(404, dump(error(None, -32600, "Session not found"))),
    "404 of the 1.x line": lambda _: http(404, dump(error("server-error", -32600, "Session not found"))),
    "404 of the TypeScript SDK": lambda _: http(404, dump(error(None, -32001, "Session not found"))),
    "404 with a page": lambda _: http(404, b"<html>", "text/html"),
    "404 with nothing": lambda _: http(404, b"", None),
    "400 of server-everything": lambda _: http(
        400,
        dump({"jsonrpc": "2.0", "error": {"code": -32000, "message": "Bad Request: No valid session ID"}}),
    ),
    "400 not initialized": lambda _: http(
        400, dump(error(None, -32000, "Bad Request: Server not initialized"))
    ),
    "400 missing session": lambda _: http(400, dump(error("server-error", -32600, "Missing session ID"))),
}


@pytest.mark.anyio
@pytest.mark.parametrize("build", LOST.values(), ids=LOST.keys())
async def test_every_form_of_a_lost_session_is_recognised(build: Answer) -> None:
    async with connected(answering(build)) as there:
        failure = await there.failure()
        assert type(failure) is SessionLost
        assert (failure.outcome, failure.retryable) == (REFUSED, True)


NOT_LOST: dict[str, tuple[Answer, str, Outcome]] = {
    "404 method not found": (
        lambda i: http(404, dump(error(i, -32601, "Method not found"))),
        "method_not_found",
        ANSWERED,
    ),
    "400 about something else": (
        lambda _: http(400, dump(error(None, -32000, "Bad Request: Unsupported protocol version"))),
        "bad_request",
        ANSWERED,
    ),
    "400 of another code": (
        lambda _: http(400, dump(error(None, -32602, "no session parameter"))),
        "invalid_params",
        ANSWERED,
    ),
    "400 with a page about sessions": (lambda _: http(400, b"session", "text/html"), "http_400", UNKNOWN),
    "410": (lambda _: http(410, dump(error(None, -32000, "session gone"))), "http_410", UNKNOWN),
}


@pytest.mark.anyio
@pytest.mark.parametrize(("build", "code", "outcome"), NOT_LOST.values(), ids=NOT_LOST.keys())
async def test_what_only_resembles_a_lost_session_is_not_one(
    build: Answer, code: str, outcome: Outcome
) -> None:
    async with connected(answering(build)) as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome, failure.retryable) == (code, outcome, False)


CODES: list[tuple[int, type[MCPError], str, Outcome]] = [
    (-32700, ProtocolError, "parse_error", ANSWERED),
    (-32600, ProtocolError, "invalid_request", ANSWERED),
    (-32601, ProtocolError, "method_not_found", ANSWERED),
    (-32602, ProtocolError, "invalid_params", ANSWERED),
    (-32020, ProtocolError, "header_mismatch", ANSWERED),
    (-32021, ProtocolError, "client_capability_required", ANSWERED),
    (-32022, ProtocolError, "unsupported_protocol_version", ANSWERED),
    (-32603, SemanticError, "tool_error", UNKNOWN),
    (-32000, SemanticError, "tool_error", ANSWERED),
    (-32042, SemanticError, "tool_error", ANSWERED),
    (-32800, SemanticError, "tool_error", ANSWERED),
    (7, SemanticError, "tool_error", ANSWERED),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("number", "kind", "code", "outcome"), CODES, ids=[str(c[0]) for c in CODES])
async def test_a_json_rpc_error_is_protocol_or_semantic_by_its_code(
    number: int, kind: type[MCPError], code: str, outcome: Outcome
) -> None:
    build = answering(lambda i: http(200, dump(error(i, number, "bad\r\nnews", {"why": 1}))))
    async with connected(build) as there:
        failure = await there.failure()
        assert type(failure) is kind
        assert (failure.code, failure.outcome, failure.retryable) == (code, outcome, False)
        assert failure.details["jsonrpc_code"] == number
        assert failure.details["jsonrpc_message"] == "bad news"
        assert failure.details["jsonrpc_data"] == {"why": 1}


@pytest.mark.anyio
async def test_an_error_without_id_on_200_fails_the_call_at_once() -> None:
    async with connected(answering(lambda _: http(200, dump(error(None, -32600, "no"))))) as there:
        assert (await there.failure()).code == "invalid_request"


@pytest.mark.anyio
async def test_large_error_data_is_left_out() -> None:
    huge = {"x": "y" * 40_000}
    async with connected(answering(lambda i: http(200, dump(error(i, 5, "no", huge))))) as there:
        assert "jsonrpc_data" not in (await there.failure()).details


@pytest.mark.anyio
async def test_a_body_that_stalls_does_not_hide_the_status() -> None:
    head = b"HTTP/1.1 429 X\r\nContent-Length: 50\r\nRetry-After: 3\r\n\r\n{"
    impatient = Timeouts(negotiation_s=0.3)
    async with connected(answering(lambda _: head), timeouts=impatient) as there:
        failure = await there.failure()
        assert (failure.code, failure.retry_after_s) == ("rate_limited", 3)
