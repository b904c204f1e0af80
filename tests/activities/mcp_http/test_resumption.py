"""Broken streams: what is fetched by GET, by the same process or another one, and when that must end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from activities.mcp_http.conversation import FIRST_RETRY_S
from activities.mcp_http.errors import MCPError, Outcome, SessionLost
from activities.mcp_http.types import CallHooks, Cursor, Limits, Timeouts
from tests.activities.mcp_http.connecting import connected, connected_modern, tool_call
from tests.activities.mcp_http.test_hostile_answers import fine
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

Script = Callable[[RawRequest, Peer], Awaitable[None]]


def dropping(*resumed: Callable[[str], bytes], first: bytes = b"id: 7\nretry: 0\ndata:\n\n") -> Script:
    """POST answers a stream that ends after `first`; the n-th GET answers what ``resumed[n]`` builds."""
    seen: dict[str, Any] = {"gets": 0}

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "POST":
            seen["id"] = request.message["id"]
            await peer.send(sse_head() + first)
        else:
            build = resumed[min(seen["gets"], len(resumed) - 1)]
            seen["gets"] += 1
            await peer.send(build(seen["id"]))
        peer.close()

    return script


def stream(*events: bytes) -> bytes:
    return sse_head() + b"".join(events)


@pytest.mark.anyio
async def test_a_stream_that_ends_early_is_resumed_by_get_with_the_last_event_id() -> None:
    async with connected(dropping(lambda i: stream(event(fine(i), "8"))), headers={"X-A": "b"}) as there:
        assert (await there.call()).content == ({"type": "text", "text": "fine"},)
        (get,) = there.server.gets()
        assert get.headers["last-event-id"] == "7"
        assert get.headers["accept"] == "text/event-stream"
        assert get.headers["mcp-session-id"] == "s-1"
        assert get.headers["mcp-protocol-version"] == "2025-11-25"
        assert get.headers["x-a"] == "b"
        assert len(there.server.received("tools/call")) == 1


@pytest.mark.anyio
async def test_the_last_event_id_survives_a_resumed_stream_that_brings_none() -> None:
    script = dropping(lambda _: stream(b": x\n\n"), lambda i: stream(event(fine(i))))
    async with connected(script) as there:
        await there.call()
        assert [get.headers["last-event-id"] for get in there.server.gets()] == ["7", "7"]


@pytest.mark.anyio
async def test_the_newest_event_id_is_asked_for_next() -> None:
    script = dropping(
        lambda _: stream(b"id: 8\ndata:\n\n"),
        lambda _: stream(b"id: 9\ndata:\n\n"),
        lambda i: stream(event(fine(i))),
    )
    async with connected(script) as there:
        await there.call()
        assert [get.headers["last-event-id"] for get in there.server.gets()] == ["7", "8", "9"]


@pytest.mark.anyio
async def test_retry_is_honoured() -> None:
    loop = asyncio.get_running_loop()
    moments: list[float] = []

    async def script(request: RawRequest, peer: Peer) -> None:
        moments.append(loop.time())
        if request.method == "POST":
            ids.append(request.message["id"])
            await peer.send(stream(b"id: 1\nretry: 300\ndata:\n\n"))
        else:
            await peer.send(stream(event(fine(ids[0]))))
        peer.close()

    ids: list[str] = []
    async with connected(script) as there:
        await there.call()
    assert 0.3 <= moments[1] - moments[0] < FIRST_RETRY_S


@pytest.mark.anyio
async def test_replayed_frames_foreign_answers_and_rubbish_are_skipped() -> None:
    def replay(request_id: str) -> bytes:
        progress = {"jsonrpc": "2.0", "method": "notifications/progress"}
        return stream(
            event({}, "8"),
            event(result("B", text_result("Echo: from B")), "9"),
            *(
                event({**progress, "params": {"progressToken": request_id, "progress": n}})
                for n in (1, 2, 1, 2)
            ),
            event(fine(request_id), "10"),
        )

    shown: list[float] = []

    async def on_progress(progress: Any) -> None:
        shown.append(progress.progress)

    async with connected(dropping(replay)) as there:
        answer = await there.call(hooks=CallHooks(on_progress=on_progress))
        assert answer.content == ({"type": "text", "text": "fine"},)
        assert shown == [1, 2]


@pytest.mark.anyio
async def test_a_reset_after_an_event_id_is_resumed_too() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "POST":
            ids.append(request.message["id"])
            await peer.send(sse_head() + b"id: 7\nretry: 0\ndata:\n\n")
            await peer.send(b"event: message\n")
            peer.reset()
        else:
            await peer.send(stream(event(fine(ids[0]))))
            peer.close()

    ids: list[str] = []
    async with connected(script) as there:
        assert (await there.call()).content


@pytest.mark.anyio
async def test_200_and_close_for_ever_ends_after_a_few_attempts() -> None:
    async with connected(dropping(lambda _: stream()), limits=Limits(max_resumes=2)) as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome, failure.retryable) == ("stream_lost", Outcome.UNKNOWN, False)
        assert len(there.server.gets()) == 3
        assert len(there.server.received("tools/call")) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    "page",
    [
        http(404, dump(error(None, -32600, "Session not found"))),
        http(405),
        http(400, b"no", "text/plain"),
        http(401),
        http(200, b"{}"),
    ],
    ids=["404", "405", "400", "401", "200 JSON"],
)
async def test_a_refused_resumption_leaves_the_outcome_unknown_and_is_no_reason_to_call_again(
    page: bytes,
) -> None:
    async with connected(dropping(lambda _: page)) as there:
        failure = await there.failure()
        assert not isinstance(failure, SessionLost)
        assert (failure.code, failure.outcome, failure.retryable) == (
            "resume_refused",
            Outcome.UNKNOWN,
            False,
        )
        assert len(there.server.gets()) == 1
        assert len(there.server.received("tools/call")) == 1


@pytest.mark.anyio
async def test_a_resumption_that_hangs_ends_with_the_call() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "POST":
            await peer.send(stream(b"id: 7\nretry: 0\ndata:\n\n"))
            peer.close()
        else:
            await peer.send(sse_head())
            await peer.wait_closed()

    async with connected(script) as there:
        failure = await there.failure(timeout_s=0.4)
        assert (failure.code, failure.outcome) == ("tool_timeout", Outcome.UNKNOWN)
        assert len(there.server.received("notifications/cancelled")) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_a_resumption_that_is_refused_for_now_is_tried_again(status: int) -> None:
    script = dropping(lambda _: http(status, b"", None), lambda i: stream(event(fine(i))))
    async with connected(script) as there:
        assert (await there.call()).content
        assert [get.headers["last-event-id"] for get in there.server.gets()] == ["7", "7"]


@pytest.mark.anyio
async def test_a_resumed_stream_that_stays_silent_is_opened_again() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "POST":
            ids.append(request.message["id"])
            await peer.send(stream(b"id: 7\nretry: 0\ndata:\n\n"))
            peer.close()
        elif len(there.server.gets()) < 4:
            await peer.send(sse_head() + b": stored events only\n\n")
            await peer.wait_closed()
        else:
            await peer.send(stream(event(fine(ids[0]))))
            peer.close()

    ids: list[str] = []
    patience = Timeouts(idle_s=0.05)
    async with connected(script, timeouts=patience, limits=Limits(max_resumes=1)) as there:
        assert (await there.call()).content
        assert len(there.server.gets()) == 4


@pytest.mark.anyio
async def test_another_process_fetches_the_answer_from_the_cursor_without_calling_again() -> None:
    cursors: list[Cursor] = []

    async def on_cursor(cursor: Cursor) -> None:
        cursors.append(cursor)
        reached.set()

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "POST":
            await peer.send(sse_head() + b"id: 7\nretry: 50\ndata:\n\n")
            await peer.wait_closed()
        else:
            await peer.send(stream(event(fine(call.request_id), "8")))
            peer.close()

    call, reached = tool_call(), asyncio.Event()
    async with connected(script) as there:
        hooks = CallHooks(on_cursor=on_cursor, tell_upstream_on_cancel=lambda: False)
        running = asyncio.create_task(there.call(call, hooks))
        await asyncio.wait_for(reached.wait(), 5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert cursors == [Cursor(call.request_id, "7", 0.05)]
        answer = await there.client.resume_call(there.session, cursors[0], call, timeout_s=20)
        assert answer.content == ({"type": "text", "text": "fine"},)
        assert len(there.server.received("tools/call")) == 1
        assert there.server.gets()[0].headers["last-event-id"] == "7"


@pytest.mark.anyio
async def test_a_lost_session_at_resume_call_leaves_the_outcome_unknown() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(http(404, dump(error(None, -32600, "Session not found"))))

    async with connected(script) as there:
        call = tool_call()
        with pytest.raises(MCPError) as caught:
            await there.client.resume_call(there.session, Cursor(call.request_id, "7"), call)
        assert (caught.value.code, caught.value.outcome) == ("resume_refused", Outcome.UNKNOWN)
        assert there.server.received("tools/call") == []


@pytest.mark.anyio
async def test_a_modern_stream_is_never_resumed() -> None:
    async with connected_modern(dropping(lambda i: stream(event(fine(i))))) as there:
        failure = await there.failure()
        assert (failure.code, failure.outcome) == ("no_answer", Outcome.UNKNOWN)
        assert there.server.gets() == []


@pytest.mark.anyio
@pytest.mark.parametrize("event_id", ["", "a\tb", "é", " x"], ids=["empty", "tab", "not ASCII", "edge space"])
async def test_event_ids_that_no_header_carries_never_reach_one(event_id: str) -> None:
    first = b"id: 7\nretry: 0\ndata:\n\n" + f"id: {event_id}\ndata:\n\n".encode()
    async with connected(dropping(lambda i: stream(event(fine(i))), first=first)) as there:
        if event_id == "é":
            await there.call()
            (get,) = there.server.gets()
            assert get.headers["last-event-id"].encode("latin-1") == "é".encode()
        else:
            assert (await there.failure()).code == "no_answer"
            assert there.server.gets() == []


@pytest.mark.anyio
async def test_cursors_and_progress_of_a_flood_are_thinned_out() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        note = {"jsonrpc": "2.0", "method": "notifications/progress"}
        params = {"progressToken": request.message["id"]}
        frames = (event({**note, "params": {**params, "progress": n}}, str(n + 1)) for n in range(2000))
        await peer.send(stream(*frames, event(fine(request.message["id"]), "9999")))
        peer.close()

    counts = {"cursor": 0, "progress": 0}

    async def on_cursor(_: Any) -> None:
        counts["cursor"] += 1

    async def on_progress(_: Any) -> None:
        counts["progress"] += 1

    async with connected(script) as there:
        await there.call(hooks=CallHooks(on_cursor=on_cursor, on_progress=on_progress), timeout_s=20)
    assert 20 <= counts["cursor"] < 200
    assert 20 <= counts["progress"] < 200
