"""What was agreed with a server and does not hold any more: it is agreed anew, and no call runs twice."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import select
from temporalio.client import Client

from governance.codes import SendOutcome
from models.database import Database, ReadSession
from models.mcp_session import McpSession
from tests.activities.listening_server import listening_server
from tests.activities.socket_server import Reply, socket_server
from tests.activities.test_mcp_calls import mcp_bench, sends, world_of
from tests.support.world import Call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


def session_rows(session: ReadSession) -> list[McpSession]:
    return list(session.scalars(select(McpSession)))


@pytest.mark.parametrize("becomes", ["legacy", "modern"])
async def test_a_server_that_changes_its_version_between_two_calls_is_spoken_to_as_it_is(
    becomes: str, database: Database, temporal_client: Client, task_queue: str
) -> None:
    async with listening_server(announces=False, modern=becomes == "legacy") as server:
        world = await world_of(database, server.url)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            before, _ = await bench.run(world.key_id, [Call("files-read")])
            server.modern = becomes == "modern"
            after, _ = await bench.run(world.key_id, [Call("files-read")])
            stored = await database.read(session_rows)

    assert (before.statuses(), after.statuses(), server.calls) == (["succeeded"], ["succeeded"], 2)
    outcomes = [send.outcome for send in await database.read(sends)]
    assert outcomes == [SendOutcome.ANSWERED, SendOutcome.REFUSED, SendOutcome.ANSWERED]
    assert [(row.negotiated or {})["era"] for row in stored] == [becomes]


async def test_sessions_that_expire_again_and_again_leave_one_open(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    async with socket_server() as server:
        world = await world_of(database, server.url)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            for number in range(1, 6):
                record, _ = await bench.run(world.key_id, [Call("files-read")] * 10)
                assert record.statuses() == ["succeeded"] * 10
                server.lost.add(f"s{number}")
            stored = await database.read(session_rows)

    assert (server.sessions, len(stored)) == (5, 1)


@pytest.mark.parametrize(
    "answer",
    [
        {"result": {"content": [], "isError": True}},
        {"error": {"code": -32602, "message": "bad argument"}},
        {"error": {"code": -32000, "message": "the session of the shop expired"}},
    ],
    ids=["isError", "-32602", "-32000"],
)
async def test_an_ordinary_failure_of_a_tool_is_neither_repeated_nor_a_reason_to_reconnect(
    answer: dict[str, Any], database: Database, temporal_client: Client, task_queue: str
) -> None:
    async def fail(message: dict[str, Any]) -> Reply:
        return 200, {"jsonrpc": "2.0", "id": message["id"], **answer}

    async with socket_server(fail) as server:
        world = await world_of(database, server.url)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            record, result = await bench.run(world.key_id, [Call("files-read")])

    assert (record.statuses(), result.unknown) == (["failed"], 0)
    assert (server.methods.count("tools/call"), server.sessions) == (1, 1)
