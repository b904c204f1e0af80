"""Every kind of wrong, odd or hostile answer to a tool call, over real sockets, with the wanted outcome."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from activities.mcp_http.errors import Outcome
from activities.mcp_http.types import Limits
from tests.activities.mcp_http.connecting import connected, tool_call
from tests.support.raw_server import (
    Peer,
    RawRequest,
    dump,
    error,
    event,
    http,
    result,
    sse_head,
    text_result,
)

Answer = Callable[[Any], bytes]


def fine(request_id: Any) -> dict[str, Any]:
    return result(request_id, text_result("fine"))


def stream(*events: bytes) -> bytes:
    return sse_head() + b"".join(events)


def answering(build: Answer) -> Callable[[RawRequest, Peer], Any]:
    async def script(request: RawRequest, peer: Peer) -> None:
        answer = build(request.message["id"])
        await peer.send(answer)
        if b"Connection: close" in answer:
            peer.close()

    return script


GOOD: dict[str, Answer] = {
    "json": lambda i: http(200, dump(fine(i))),
    "json with a BOM": lambda i: http(200, b"\xef\xbb\xbf" + dump(fine(i))),
    "json with a charset": lambda i: http(200, dump(fine(i)), "Application/JSON; charset=utf-8"),
    "a JSON array as in 2025-03-26": lambda i: http(200, dump([fine("other"), fine(i)])),
    "an array in a stream": lambda i: stream(event([fine("other"), fine(i)])),
    "gzip that was not asked for": lambda i: http(
        200, gzip.compress(dump(fine(i))), "application/json", "Content-Encoding: gzip"
    ),
    "stream": lambda i: stream(event(fine(i))),
    "stream with an upper-case type": lambda i: (
        sse_head(content_type="Text/Event-Stream; charset=latin-1") + event(fine(i))
    ),
    "BOM before the first event": lambda i: sse_head() + b"\xef\xbb\xbf" + event(fine(i)),
    "CRLF": lambda i: sse_head() + event(fine(i)).replace(b"\n", b"\r\n"),
    "bare CR": lambda i: sse_head() + event(fine(i)).replace(b"\n", b"\r"),
    "no event name": lambda i: stream(event(fine(i), name=None)),
    "another event name": lambda i: stream(event(fine(i), name="error")),
    "five data lines": lambda i: stream(event(json.dumps(fine(i), indent=1))),
    "answer for another id first": lambda i: stream(
        event(result("other", text_result("WRONG"))), event(fine(i))
    ),
    "broken JSON first": lambda i: stream(event("{not json"), event(fine(i))),
    "an empty object first": lambda i: stream(event({}), event(fine(i))),
    "NaN first": lambda i: stream(event('{"a":NaN}'), event(fine(i))),
    "comments and priming": lambda i: stream(
        b": ping\n\n", b"id: 1\ndata:\n\n", b": ping\n\n", event(fine(i))
    ),
    "negative and endless retry": lambda i: stream(
        b"retry: -5\n\n", b"retry: 99999999999\n\n", event(fine(i))
    ),
    "unknown notifications": lambda i: stream(
        event({"jsonrpc": "2.0", "method": "notifications/odd", "params": [1]}),
        event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}),
        event(fine(i)),
    ),
    "ghost progress": lambda i: stream(
        *(
            event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            for params in (
                {"progressToken": "ghost", "progress": 1},
                {"progressToken": i, "progress": "half"},
                {"progressToken": True, "progress": 1},
                {"progressToken": i, "progress": True},
                {"progressToken": i, "progress": 10**400},
                {},
            )
        ),
        event(fine(i)),
    ),
    "5000 progress frames": lambda i: stream(
        *(
            event(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/progress",
                    "params": {"progressToken": i, "progress": n},
                }
            )
            for n in range(5000)
        ),
        event(fine(i)),
    ),
    "too long a Content-Length is no matter once the stream has answered": lambda i: (
        sse_head("Content-Length: 100000") + event(fine(i))
    ),
}


@pytest.mark.anyio
@pytest.mark.parametrize("build", GOOD.values(), ids=GOOD.keys())
async def test_a_call_gets_its_own_answer_out_of(build: Answer) -> None:
    async with connected(answering(build)) as there:
        answer = await there.call()
        assert answer.content == ({"type": "text", "text": "fine"},)
        assert len(there.server.received("tools/call")) == 1


def deep(request_id: str) -> bytes:
    nested = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    return b'{"jsonrpc":"2.0","id":"' + request_id.encode() + b'","result":' + nested + b"}"


UNKNOWN: dict[str, tuple[Answer, str]] = {
    "202": (lambda _: http(202, b"", None), "no_answer"),
    "204": (lambda _: b"HTTP/1.1 204 X\r\n\r\n", "no_answer"),
    "login page": (lambda _: http(200, b"<html>Log in</html>", "text/html"), "unexpected_content_type"),
    "plain text": (lambda _: http(200, b"fine", "text/plain"), "unexpected_content_type"),
    "no content type": (lambda i: http(200, dump(fine(i)), None), "unexpected_content_type"),
    "empty JSON body": (lambda _: http(200), "invalid_json"),
    "broken JSON": (lambda _: http(200, b'{"jsonrpc":'), "invalid_json"),
    "not UTF-8": (lambda _: http(200, b'"\xff\xfe"'), "invalid_json"),
    "NaN": (lambda i: http(200, dump(result(i, {"content": float("nan")}))), "invalid_json"),
    "a number beyond floats": (lambda _: http(200, b'{"a":1e999}'), "invalid_json"),
    "lone surrogate": (
        lambda i: http(200, json.dumps(result(i, text_result("\ud800"))).encode()),
        "invalid_json",
    ),
    "100 000 levels": (lambda i: http(200, deep(i)), "invalid_json"),
    "an integer of 5000 digits": (lambda _: http(200, b'{"a":' + b"1" * 5000 + b"}"), "invalid_json"),
    "the id of nobody": (lambda _: http(200, dump(fine("nobody"))), "answer_id_mismatch"),
    "id 0": (lambda _: http(200, dump(fine(0))), "answer_id_mismatch"),
    "id true": (lambda _: http(200, dump(fine(bool(1)))), "answer_id_mismatch"),
    "id null": (lambda _: http(200, dump(fine(None))), "answer_id_mismatch"),
    "no id": (lambda _: http(200, dump({"jsonrpc": "2.0", "result": {}})), "answer_id_mismatch"),
    "an empty array": (lambda _: http(200, b"[]"), "answer_id_mismatch"),
    "result and error": (lambda i: http(200, dump(fine(i) | error(i, 1, "x"))), "invalid_answer"),
    "result null": (lambda i: http(200, dump(result(i, None))), "invalid_answer"),
    "result a list": (lambda i: http(200, dump(result(i, []))), "invalid_answer"),
    "neither": (lambda i: http(200, dump({"jsonrpc": "2.0", "id": i})), "invalid_answer"),
    "no jsonrpc": (lambda i: http(200, dump({"id": i, "result": {}})), "invalid_answer"),
    "code as text": (lambda i: http(200, dump(error(i, "1", "x"))), "invalid_answer"),  # type: ignore[arg-type]
    "malformed in a stream": (lambda i: stream(event(result(i, None))), "invalid_answer"),
    "stream without answer": (lambda _: stream(b": nothing\n\n"), "no_answer"),
    "only another id": (lambda _: stream(event(fine("other"))), "no_answer"),
    "unterminated event": (lambda i: stream(event(fine(i))[:-1]), "no_answer"),
    "a task that was not asked for": (
        lambda i: http(200, dump(result(i, {"task": {"taskId": "1"}}))),
        "undeclared_task",
    ),
    "unknown coding": (
        lambda i: http(200, dump(fine(i)), "application/json", "Content-Encoding: br"),
        "broken_content_encoding",
    ),
    "gzip that is none": (
        lambda i: http(200, dump(fine(i)), "application/json", "Content-Encoding: gzip"),
        "broken_content_encoding",
    ),
    "too short a Content-Length": (
        lambda i: (
            b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n" + dump(fine(i))
        ),
        "invalid_json",
    ),
    "500": (lambda _: http(500, dump(error("server-error", -32603, "x"))), "http_500"),
    "502 as HTML": (lambda _: http(502, b"<html>", "text/html"), "http_502"),
    "504": (lambda _: http(504, b"", None), "http_504"),
    "409": (lambda _: http(409, b"", None), "http_409"),
    "410": (lambda _: http(410, b"", None), "http_410"),
}


@pytest.mark.anyio
@pytest.mark.parametrize(("build", "code"), UNKNOWN.values(), ids=UNKNOWN.keys())
async def test_the_outcome_is_unknown_and_nothing_is_sent_again_after(build: Answer, code: str) -> None:
    async with connected(answering(build)) as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome, failure.retryable) == (code, Outcome.UNKNOWN, False)
        assert len(there.server.received("tools/call")) == 1
        assert there.server.gets() == []


@pytest.mark.anyio
async def test_a_reset_in_the_middle_of_a_body_fails_only_its_own_call() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.message["params"]["name"] == "reset":
            await peer.send(
                b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            )
            peer.reset()
        else:
            await peer.send(http(200, dump(fine(request.message["id"]))))

    async with connected(script) as there:
        failure = await there.failure(tool_call("reset"))
        assert (failure.code, failure.outcome) == ("connection_lost", Outcome.UNKNOWN)
        assert (await there.call()).content == ({"type": "text", "text": "fine"},)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "build",
    [
        lambda _: (
            b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 999\r\n"
            b"Connection: close\r\n\r\n{}"
        ),
        lambda _: (
            b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n5\r\nab"
        ),
        lambda _: b"garbage\r\nConnection: close\r\n\r\n",
        lambda _: b"Connection: close",
    ],
    ids=["too long a Content-Length", "truncated chunk", "no HTTP", "no status line"],
)
async def test_broken_framing_is_a_lost_connection(build: Answer) -> None:
    async with connected(answering(build)) as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome) == ("connection_lost", Outcome.UNKNOWN)


BOMB = gzip.compress(bytes(20_000_000))
SMALL = Limits(max_body_bytes=200_000, max_event_bytes=100_000, max_resumes=0)

TOO_LARGE: dict[str, Answer] = {
    "declared length": lambda _: (
        b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 999999999\r\n\r\n"
    ),
    "body without length": lambda _: (
        b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + b"x" * 300_000
    ),
    "one event": lambda _: stream(event("y" * 150_000)),
    "one endless line": lambda _: stream(b"data: " + b"z" * 150_000),
    "many data lines": lambda _: stream(b"data: zzzzzzzz\n" * 10_000),
    "an endless comment": lambda _: stream(b": " + b"z" * 150_000),
    "many small events": lambda _: stream(*(event("w" * 1000) for _ in range(300))),
    "a gzip bomb": lambda _: http(200, BOMB, "application/json", "Content-Encoding: gzip"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("build", TOO_LARGE.values(), ids=TOO_LARGE.keys())
async def test_an_answer_beyond_the_cap_is_cut_off_and_cancelled(build: Answer) -> None:
    async with connected(answering(build), limits=SMALL) as there:
        call = tool_call()
        failure = await there.failure(call)
        assert (failure.code, failure.outcome) == ("answer_too_large", Outcome.UNKNOWN)
        (cancelled,) = there.server.received("notifications/cancelled")
        assert cancelled.message["params"]["requestId"] == call.request_id
