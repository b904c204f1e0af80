"""What a server asks of us in the middle of a call, and what it gets."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from activities.mcp_http.types import CallHooks
from tests.activities.mcp_http.connecting import connected
from tests.activities.mcp_http.test_hostile_answers import fine
from tests.support.raw_server import Peer, RawRequest, event, http, sse_head


class Asking:
    """Sends requests inside the call's stream and answers the call once all replies are there."""

    def __init__(self, *asked: dict[str, Any], reply_status: int = 202, wait: bool = True) -> None:
        self._asked = asked
        self._status = reply_status
        self._wait = wait
        self.replies: list[dict[str, Any]] = []
        self._got = asyncio.Event()

    async def __call__(self, request: RawRequest, peer: Peer) -> None:
        if request.rpc_method == "tools/call":
            await peer.send(sse_head(), *(event({"jsonrpc": "2.0", **asked}) for asked in self._asked))
            if self._wait:
                await asyncio.wait_for(self._got.wait(), 5)
            await peer.send(event(fine(request.message["id"])))
            peer.close()
            return
        self.replies.append(request.message)
        if len(self.replies) == len(self._asked):
            self._got.set()
        if self._status == 0:
            await peer.wait_closed()
        else:
            await peer.send(http(self._status, b"{}" if self._status == 200 else b""))


@pytest.mark.anyio
@pytest.mark.parametrize("request_id", [0, 1, "p-1", 2.5], ids=str)
@pytest.mark.parametrize("status", [202, 200, 400, 500])
async def test_a_ping_is_answered_whatever_its_id_and_whatever_the_server_makes_of_it(
    request_id: Any, status: int
) -> None:
    script = Asking({"id": request_id, "method": "ping"}, reply_status=status)
    async with connected(script) as there:
        assert (await there.call()).content
    assert script.replies == [{"jsonrpc": "2.0", "id": request_id, "result": {}}]


@pytest.mark.anyio
async def test_a_server_that_never_takes_our_answer_does_not_hold_up_the_call() -> None:
    script = Asking({"id": 0, "method": "ping"}, reply_status=0)
    async with connected(script) as there:
        assert (await there.call()).content


ELICIT = {"id": 5, "method": "elicitation/create", "params": {"message": "m", "requestedSchema": {}}}
URL_ELICIT = {"id": 6, "method": "elicitation/create", "params": {"mode": "url", "url": "https://x.example"}}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "elicitation", "answer"),
    [
        ({"id": 1, "method": "sampling/createMessage"}, "none", -32601),
        ({"id": 1, "method": "roots/list"}, "none", -32601),
        ({"id": 1, "method": "tasks/get"}, "none", -32601),
        ({"id": 1, "method": "x/unknown"}, "decline", -32601),
        (ELICIT, "none", -32601),
        (ELICIT, "decline", {"action": "decline"}),
        (ELICIT, "ask", {"action": "accept", "content": {"name": "octo"}}),
        (URL_ELICIT, "decline", -32602),
        (URL_ELICIT, "ask", -32602),
    ],
)
async def test_what_was_not_declared_is_refused_at_once(
    asked: dict[str, Any], elicitation: str, answer: int | dict[str, Any]
) -> None:
    async def on_elicitation(params: Mapping[str, Any]) -> dict[str, Any]:
        assert params["message"] == "m"
        return {"action": "accept", "content": {"name": "octo"}}

    script = Asking(asked)
    async with connected(script, elicitation=elicitation) as there:
        await there.call(hooks=CallHooks(on_elicitation=on_elicitation))
        declared = there.server.requests[0].message["params"]["capabilities"]
    (reply,) = script.replies
    assert reply["id"] == asked["id"]
    assert reply.get("result", reply.get("error", {}).get("code")) == answer
    assert declared == ({} if elicitation == "none" else {"elicitation": {"form": {}}})


@pytest.mark.anyio
async def test_a_call_answers_pings_for_as_long_as_it_runs() -> None:
    """Servers ping every few seconds and drop who stops answering: no number of pings is enough."""

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method != "tools/call":
            await peer.send(http(202, b"", None))
            replied[request.message["id"]].set()
            return
        await peer.send(sse_head())
        for number, answered in enumerate(replied):
            await peer.send(event({"jsonrpc": "2.0", "id": number, "method": "ping"}))
            await asyncio.wait_for(answered.wait(), 2)
        await peer.send(event(fine(request.message["id"])))
        peer.close()

    replied = [asyncio.Event() for _ in range(70)]
    async with connected(script) as there:
        assert (await there.call()).content
    assert all(answered.is_set() for answered in replied)


@pytest.mark.anyio
async def test_a_flood_of_requests_whose_answers_are_not_taken_is_bounded_and_costs_no_call() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method != "tools/call":
            replies.append(request.message["id"])
            await peer.wait_closed()
            return
        asked = [{"jsonrpc": "2.0", "id": n, "method": "roots/list"} for n in range(2_000)]
        await peer.send(sse_head(), b"".join(map(event, asked)))
        await peer.send(event(fine(request.message["id"])))
        peer.close()

    replies: list[int] = []
    async with connected(script) as there:
        assert (await there.call()).content
    assert len(replies) <= 64


@pytest.mark.anyio
async def test_a_request_repeated_by_a_replay_is_answered_once() -> None:
    script = Asking({"id": 0, "method": "ping"}, {"id": 0, "method": "ping"}, wait=False)
    async with connected(script) as there:
        await there.call()
        await there.server.wait_until(lambda s: s.connections >= 1)
    assert len(script.replies) <= 1


@pytest.mark.anyio
async def test_a_request_with_our_own_id_is_not_our_answer() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method != "tools/call":
            await peer.send(http(202))
            return
        ours = request.message["id"]
        await peer.send(
            sse_head() + event({"jsonrpc": "2.0", "id": ours, "method": "ping"}) + event(fine(ours))
        )
        peer.close()

    async with connected(script) as there:
        assert (await there.call()).content == ({"type": "text", "text": "fine"},)


@pytest.mark.anyio
async def test_notifications_of_the_stream_reach_the_caller() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        await peer.send(sse_head() + event(changed) * 50 + event(fine(request.message["id"])))
        peer.close()

    seen: list[str] = []

    async def on_notification(method: str, _params: Mapping[str, Any]) -> None:
        seen.append(method)

    async with connected(script) as there:
        await there.call(hooks=CallHooks(on_notification=on_notification))
    assert seen == ["notifications/tools/list_changed"] * 50


@pytest.mark.anyio
async def test_an_exception_of_a_hook_reaches_the_caller_unchanged() -> None:
    class Stop(Exception):
        pass

    async def stop(*_: Any) -> None:
        raise Stop

    async def script(request: RawRequest, peer: Peer) -> None:
        params = {"progressToken": request.message["id"], "progress": 1}
        await peer.send(
            sse_head() + event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}, "1")
        )
        await peer.wait_closed()

    async with connected(script) as there:
        for hooks in (CallHooks(on_progress=stop), CallHooks(on_cursor=stop)):
            with pytest.raises(Stop):
                await there.call(hooks=hooks)
