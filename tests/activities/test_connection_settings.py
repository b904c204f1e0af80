"""What a connection says of questions and of the transport reaches its server, and its calls come through."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from models.connection import Connection, Elicitation, Transport
from models.database import Database, WriteSession
from tests.activities.mcp_http.test_http_sse import OldServer, answer
from tests.activities.test_mcp_calls import mcp_bench, world_of
from tests.support.raw_server import (
    Peer,
    RawRequest,
    event,
    http,
    legacy_server,
    raw_server,
    result,
    sse_head,
    text_result,
)
from tests.support.world import Call, World

pytestmark = pytest.mark.anyio

QUESTION = {"message": "Which branch?", "requestedSchema": {"type": "object", "properties": {}}}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


async def connection_to(database: Database, url: str, **settings: Any) -> World:
    world = await world_of(database, url)

    def change(session: WriteSession) -> None:
        connection = session.get_one(Connection, world.connection_id)
        for name, value in settings.items():
            setattr(connection, name, value)

    await database.write(change)
    return world


class Asking:
    """A server whose tool asks a person, and ends once it was told something."""

    def __init__(self) -> None:
        self.replies: list[dict[str, Any]] = []
        self._waiting: list[tuple[Any, Peer]] = []

    async def __call__(self, request: RawRequest, peer: Peer) -> None:
        if request.rpc_method == "tools/call":
            question = {"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": QUESTION}
            self._waiting.append((request.message["id"], peer))
            await peer.send(sse_head() + event(question))
            await peer.wait_closed()
        elif request.method == "GET":
            await peer.send(http(405))
        else:
            self.replies.append(request.message)
            await peer.send(http(202, b"", None))
            call, stream = self._waiting.pop()
            await stream.send(event(result(call, text_result("went on"))))
            stream.close()


@pytest.mark.parametrize(
    ("elicitation", "declared", "reply"),
    [
        (Elicitation.NONE, {}, {"error": {"code": -32601, "message": "Method not found"}}),
        (Elicitation.DECLINE, {"elicitation": {"form": {}}}, {"result": {"action": "decline"}}),
    ],
    ids=["none", "decline"],
)
async def test_a_tool_that_asks_a_person_is_answered_at_once_as_the_connection_says(
    elicitation: Elicitation,
    declared: dict[str, Any],
    reply: dict[str, Any],
    database: Database,
    temporal_client: Client,
    task_queue: str,
) -> None:
    asking = Asking()
    async with raw_server(legacy_server(asking)) as server:
        world = await connection_to(
            database, server.url, elicitation=elicitation, protocol_version="2025-11-25"
        )
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            record, _ = await bench.run(world.key_id, [Call("files-read")])
        [opening] = server.received("initialize")

    assert record.statuses() == ["succeeded"]
    assert opening.message["params"]["capabilities"] == declared
    assert asking.replies == [{"jsonrpc": "2.0", "id": 0, **reply}]


async def test_a_server_of_the_first_version_is_called_where_the_connection_says_so(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    old = OldServer()
    old.on_call = answer
    async with raw_server(old) as server:
        world = await connection_to(database, server.url, transport=Transport.HTTP_SSE)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            record, _ = await bench.run(world.key_id, [Call("files-read")])
            again, _ = await bench.run(world.key_id, [Call("files-read")])

    assert (record.statuses(), again.statuses()) == (["succeeded"], ["succeeded"])
