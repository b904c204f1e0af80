"""The stream outside of calls: what arrives, when it reconnects, when it ends."""

import asyncio
from typing import Any

import pytest

from activities.mcp_http.errors import MCPError, SessionLost
from activities.mcp_http.types import CallHooks, Limits
from tests.activities.mcp_http.connecting import Connected, connected, connected_modern
from tests.support.raw_server import Peer, RawRequest, dump, error, event, http, result, sse_head

CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


class Heard:
    """Collects messages; `first` is set with the first one."""

    def __init__(self, count: int = 1) -> None:
        self.messages: list[tuple[dict[str, Any], str | None]] = []
        self.enough = asyncio.Event()
        self._count = count

    async def __call__(self, message: dict[str, Any], event_id: str | None) -> None:
        self.messages.append((message, event_id))
        if len(self.messages) >= self._count:
            self.enough.set()


async def listen_until_heard(there: Connected, heard: Heard, last_event_id: str | None = None) -> None:
    task = asyncio.create_task(there.client.listen(there.session, heard, last_event_id))
    await asyncio.wait_for(heard.enough.wait(), 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.anyio
async def test_notifications_arrive_with_their_event_ids_and_requests_are_answered() -> None:
    replies: list[Any] = []

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "POST":
            replies.append(request.message)
            answered.set()
            await peer.send(http(202, b"", None))
            return
        ping = {"jsonrpc": "2.0", "id": 0, "method": "ping"}
        await peer.send(sse_head() + b"id: 3\nretry: 5\ndata:\n\n" + event(ping) + b": x\n\n")
        await asyncio.wait_for(answered.wait(), 5)
        await peer.send(event("{broken"), event(CHANGED, "4"))
        await peer.wait_closed()

    answered = asyncio.Event()
    async with connected(script) as there:
        heard = Heard()
        await listen_until_heard(there, heard, "2")
        (get,) = there.server.gets()
    assert heard.messages == [({**CHANGED, "params": {}}, "4")]
    assert get.headers["last-event-id"] == "2"
    assert get.headers["mcp-session-id"] == "s-1"
    assert replies == [{"jsonrpc": "2.0", "id": 0, "result": {}}]


@pytest.mark.anyio
async def test_streams_take_no_connection_away_from_calls() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "GET":
            await peer.send(sse_head() + event(CHANGED))
            await peer.wait_closed()
        else:
            await peer.send(http(200, dump(result(request.message["id"], {"content": []}))))

    async with connected(script, limits=Limits(max_connections=1, max_streams=2)) as there:
        heard = Heard(2)
        listening = [
            asyncio.create_task(there.client.listen(there.session, heard, on_open=stands.set))
            for stands in (asyncio.Event(), asyncio.Event())
        ]
        await asyncio.wait_for(heard.enough.wait(), 5)
        assert (await there.call(timeout_s=5)).content == ()
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
        assert (await there.call(timeout_s=5)).content == ()


@pytest.mark.anyio
async def test_a_stream_that_ends_is_opened_again_where_it_stood() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        number = len(opened)
        opened.append(number)
        await peer.send(sse_head() + b"retry: 0\n\n" + event(CHANGED, f"e{number}"))
        peer.close()

    opened: list[int] = []
    async with connected(script) as there:
        heard = Heard(3)
        await listen_until_heard(there, heard)
        assert [get.headers.get("last-event-id") for get in there.server.gets()][:3] == [None, "e0", "e1"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "page",
    [http(405), http(501), http(200, b"{}"), http(200, b"ok", "text/html")],
    ids=["405", "501", "JSON", "page"],
)
async def test_a_server_without_such_a_stream_is_asked_once(page: bytes) -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(page)

    async with connected(script) as there:
        await there.client.listen(there.session, Heard())
        assert len(there.server.gets()) == 1


@pytest.mark.anyio
async def test_a_second_stream_is_a_conflict_and_a_lost_session_is_lost() -> None:
    pages = [
        http(409, dump(error(None, -32600, "Conflict"))),
        # The stream, and the ping that tells a lost session from a server without such a stream.
        http(404, dump(error(None, -32600, "Session not found"))),
        http(404, dump(error(None, -32600, "Session not found"))),
    ]

    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(pages.pop(0))

    async with connected(script) as there:
        with pytest.raises(MCPError) as caught:
            await there.client.listen(there.session, Heard())
        assert (caught.value.code, caught.value.retryable) == ("listen_conflict", True)
        with pytest.raises(SessionLost):
            await there.client.listen(there.session, Heard())


@pytest.mark.anyio
async def test_200_and_close_for_ever_ends() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(sse_head() + b"retry: 0\n\n")
        peer.close()

    async with connected(script, limits=Limits(max_resumes=1)) as there:
        with pytest.raises(MCPError) as caught:
            await there.client.listen(there.session, Heard())
        assert caught.value.code == "stream_lost"
        assert len(there.server.gets()) == 2


@pytest.mark.anyio
async def test_a_person_may_answer_an_elicitation_that_comes_outside_of_the_call() -> None:
    replies: list[Any] = []

    async def script(request: RawRequest, peer: Peer) -> None:
        if request.method == "POST":
            replies.append(request.message)
            await peer.send(http(202, b"", None))
            return
        ask = {"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {"message": "m"}}
        await peer.send(sse_head() + event(ask) + event(CHANGED))
        await peer.wait_closed()

    async def on_elicitation(_params: Any) -> dict[str, Any]:
        return {"action": "cancel"}

    async with connected(script, elicitation="ask") as there:
        hooks = CallHooks(on_elicitation=on_elicitation)
        heard = Heard()
        task = asyncio.create_task(there.client.listen(there.session, heard, hooks=hooks))
        await there.server.wait_until(lambda _: bool(replies))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert replies[0]["result"] == {"action": "cancel"}


@pytest.mark.anyio
async def test_a_modern_server_is_subscribed_to_and_may_end_it_gracefully() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        await peer.send(sse_head())
        acknowledged = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {}}
        await peer.send(event(acknowledged), event(CHANGED), event(result(request.message["id"], {})))
        peer.close()

    async with connected_modern(script) as there:
        heard = Heard()
        await there.client.listen(there.session, heard)
        assert [message["method"] for message, _ in heard.messages] == [
            "notifications/subscriptions/acknowledged",
            "notifications/tools/list_changed",
        ]
        sent = there.server.received("subscriptions/listen")[0]
        assert sent.message["params"]["notifications"] == {"toolsListChanged": True}
        assert sent.headers["mcp-method"] == "subscriptions/listen"
        assert there.server.gets() == []


@pytest.mark.anyio
async def test_a_modern_server_without_subscriptions_is_asked_once() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        await peer.send(http(404, dump(error(request.message["id"], -32601, "Method not found"))))

    async with connected_modern(script) as there:
        await there.client.listen(there.session, Heard())
        assert len(there.server.received("subscriptions/listen")) == 1
