"""Cancelling and timing out: the server learns of it, other calls do not, and the outcome is honest."""

import asyncio
from typing import Any

import anyio
import pytest

from activities.mcp_http.errors import Outcome
from activities.mcp_http.types import CallHooks, Timeouts
from tests.activities.mcp_http.connecting import (
    Connected,
    client_of,
    connected,
    connected_modern,
    paced,
    tool_call,
)
from tests.activities.mcp_http.test_hostile_answers import fine
from tests.support.raw_server import Peer, RawRequest, dump, event, http, legacy_server, raw_server, sse_head


async def hang_or_answer(request: RawRequest, peer: Peer) -> None:
    """Hold calls of ``hang`` open in a stream; answer the others."""
    if request.message.get("params", {}).get("name") == "hang":
        await peer.send(sse_head() + b": waiting\n\n")
        await peer.wait_closed()
    else:
        await peer.send(http(200, dump(fine(request.message["id"]))))


async def started(there: Connected, **more: Any) -> tuple[asyncio.Task[Any], str]:
    """Start a call that hangs and wait until the server has it."""
    call = tool_call("hang")
    task = asyncio.create_task(there.call(call, **more))
    await there.server.wait_until(
        lambda s: any(r.message["id"] == call.request_id for r in s.received("tools/call"))
    )
    return task, call.request_id


@pytest.mark.anyio
async def test_cancelling_a_legacy_call_tells_the_server_which_one_and_spares_the_others() -> None:
    async with connected(hang_or_answer) as there:
        first, first_id = await started(there)
        second, _ = await started(there)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        (notice,) = there.server.received("notifications/cancelled")
        assert notice.message["params"]["requestId"] == first_id
        assert "id" not in notice.message
        assert notice.headers["mcp-session-id"] == "s-1"
        assert not second.done()
        assert (await there.call()).content
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)


@pytest.mark.anyio
async def test_a_cancel_scope_tells_the_server_too() -> None:
    async with connected(hang_or_answer) as there:
        with anyio.move_on_after(0.2) as scope:
            await there.call(tool_call("hang"))
        assert scope.cancelled_caught
        assert len(there.server.received("notifications/cancelled")) == 1


@pytest.mark.anyio
async def test_a_second_cancel_does_not_keep_the_server_from_being_told() -> None:
    release = asyncio.Event()

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method == "notifications/cancelled":
            await release.wait()
            await peer.send(http(202, b"", None))
            answered.append(1)
        else:
            await legacy_server(hang_or_answer)(request, peer)

    answered: list[int] = []
    async with raw_server(script) as server, client_of(server.url) as client:
        there = Connected(client, await client.open_session(), server)
        task, _ = await started(there)
        task.cancel()
        await there.server.wait_until(lambda s: bool(s.received("notifications/cancelled")))
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert answered == [1]


@pytest.mark.anyio
async def test_the_caller_decides_whether_the_server_is_told() -> None:
    async with connected(hang_or_answer) as there:
        task, _ = await started(there, hooks=CallHooks(tell_upstream_on_cancel=lambda: False))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert there.server.received("notifications/cancelled") == []


@pytest.mark.anyio
async def test_cancelling_a_modern_call_closes_its_stream_and_posts_nothing() -> None:
    async with connected_modern(hang_or_answer) as there:
        task, _ = await started(there)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await there.client.cancel_call(there.session, "x", "y")
        await there.server.wait_until(lambda s: s.closed_connections > 0)
        assert there.server.received("notifications/cancelled") == []


@pytest.mark.anyio
async def test_a_timeout_is_hard_tells_the_server_and_leaves_the_outcome_unknown() -> None:
    async def chatter(request: RawRequest, peer: Peer) -> None:
        await peer.send(sse_head())
        for number in range(1000):
            params = {"progressToken": request.message["id"], "progress": number}
            await peer.send(
                b": ping\n\n"
                + event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            )
            await asyncio.sleep(0.01)

    async with connected(chatter) as there:
        failure = await there.failure(timeout_s=0.3)
        assert (failure.code, failure.outcome, failure.retryable) == ("tool_timeout", Outcome.UNKNOWN, False)
        assert len(there.server.received("notifications/cancelled")) == 1


@pytest.mark.anyio
async def test_progress_extends_the_soft_limit_only() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        await peer.send(sse_head())
        lasts_s = request.message["params"]["arguments"]["lasts_s"]
        async for number in paced(lasts_s, 0.3):
            params = {"progressToken": request.message["id"], "progress": number}
            await peer.send(event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
        if lasts_s:
            await peer.send(event(fine(request.message["id"])))
            peer.close()
        else:
            await asyncio.Event().wait()

    soft = Timeouts(soft_s=1.0)
    async with connected(script, timeouts=soft) as there:
        answer = await there.call(tool_call(arguments={"lasts_s": 1.8}))
        assert answer.content
        failure = await there.failure(tool_call(arguments={"lasts_s": 0}))
        assert failure.code == "tool_timeout"


@pytest.mark.anyio
async def test_silence_longer_than_the_limit_is_an_unknown_outcome() -> None:
    timeouts = Timeouts(silence_s=0.3)
    async with connected(hang_or_answer, timeouts=timeouts) as there:
        failure = await there.failure(tool_call("hang"))
        assert (failure.code, failure.outcome) == ("read_timeout", Outcome.UNKNOWN)


@pytest.mark.anyio
async def test_a_timeout_before_anything_was_sent_is_not_sent() -> None:
    async def slow_gate() -> None:
        await asyncio.Event().wait()

    async with connected(hang_or_answer) as there:
        failure = await there.failure(hooks=CallHooks(before_send=slow_gate), timeout_s=0.1)
        assert (failure.code, failure.outcome) == ("tool_timeout", Outcome.NOT_SENT)
        assert failure.retryable
        assert there.server.received("tools/call") == []
        assert there.server.received("notifications/cancelled") == []


@pytest.mark.anyio
async def test_initialize_is_never_cancelled_at_the_server() -> None:
    async def script(_request: RawRequest, _peer: Peer) -> None:
        await asyncio.Event().wait()

    async with raw_server(script) as server:
        fast = Timeouts(negotiation_s=0.1)
        async with client_of(server.url, timeouts=fast) as client:
            with pytest.raises(Exception, match="did not answer 'initialize'"):
                await client.open_session()
        assert [r.rpc_method for r in server.requests] == ["initialize"]


@pytest.mark.anyio
async def test_cancel_call_works_from_any_process() -> None:
    async with connected(hang_or_answer) as there:
        await there.client.cancel_call(there.session, "other-workers-call", "stop")
        (notice,) = there.server.received("notifications/cancelled")
        assert notice.message["params"] == {"requestId": "other-workers-call", "reason": "stop"}
