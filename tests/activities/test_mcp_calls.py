"""Governed calls over a real socket: the ledger knows of a send before the server sees its first byte."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from activities.catalog_refresh import CatalogWatch
from activities.client_pool import ClientPool
from activities.mcp_runner import McpRunner
from activities.mcp_sessions import McpSessions
from activities.mcp_streams import StreamKeeper
from governance.codes import InvocationOutcome, SendOutcome
from models.connection import Connection, OnSessionLoss
from models.database import Database, ReadSession, WriteSession
from models.projection import reproject_definition
from models.send import ToolSend
from models.tool import ToolDefinition
from models.vault import Vault
from tests.activities.socket_server import Reply, done, socket_server
from tests.support.rounds import RoundBench, round_worker
from tests.support.world import Call, ConnectionPlan, World, build_world
from workflows.engine import TemporalEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


@asynccontextmanager
async def mcp_bench(client: Client, database: Database, task_queue: str) -> AsyncIterator[RoundBench]:
    catalogs = CatalogWatch(database, TemporalEngine(client, task_queue, 5.0, 2.0))
    async with (
        ClientPool(1024 * 1024, Vault(bytes(32))) as clients,
        StreamKeeper(database, catalogs) as streams,
    ):
        runner = McpRunner(clients, McpSessions(database, Vault(bytes(32))), streams, 1024 * 1024)
        async with round_worker(client, database, runner, task_queue=task_queue) as bench:
            yield bench


async def world_of(database: Database, url: str, loss: OnSessionLoss = OnSessionLoss.RETRY_ONCE) -> World:
    world = await build_world(database, ConnectionPlan(url=url, parallel_safe=("read",)))

    def change(session: WriteSession) -> None:
        session.get_one(Connection, world.connection_id).on_session_loss = loss

    await database.write(change)
    return world


def sends(session: ReadSession) -> list[ToolSend]:
    return list(session.query(ToolSend).order_by(ToolSend.id))


async def test_a_send_is_in_the_ledger_before_its_first_byte_arrives(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    seen: list[list[bool]] = []
    async with socket_server() as server:

        async def look() -> None:
            seen.append([send.sent_at is not None for send in await database.read(sends)])

        server.on_first_byte = look
        world = await world_of(database, server.url)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            record, _ = await bench.run(world.key_id, [Call("files-read")])

    assert record.statuses() == ["succeeded"]
    assert server.methods[-1] == "tools/call"
    # The handshake sends nothing of the call; when the call's first byte is there, so is its mark.
    assert seen == [[False]] * (len(server.methods) - 1) + [[True]]


async def test_a_server_that_cannot_be_reached_was_sent_nothing(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await world_of(database, "http://127.0.0.1:9/mcp")
    async with mcp_bench(temporal_client, database, task_queue) as bench:
        record, result = await bench.run(world.key_id, [Call("files-read")])

    stored = await database.read(sends)
    assert (record.statuses(), result.unknown) == (["failed"], 0)
    assert {(send.sent_at, send.outcome) for send in stored} == {(None, SendOutcome.NOT_SENT)}


async def test_a_forgotten_session_is_opened_again_and_the_call_repeated_once(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    async with socket_server() as server:
        world = await world_of(database, server.url)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            await bench.run(world.key_id, [Call("files-read")])
            server.lost.add("s1")
            record, _ = await bench.run(world.key_id, [Call("files-read")])

    assert record.statuses() == ["succeeded"]
    assert server.sessions == 2
    outcomes = [send.outcome for send in await database.read(sends)]
    assert outcomes == [SendOutcome.ANSWERED, SendOutcome.REFUSED, SendOutcome.ANSWERED]


async def test_a_connection_may_report_the_loss_instead(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    async with socket_server() as server:
        world = await world_of(database, server.url, OnSessionLoss.REPORT)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            await bench.run(world.key_id, [Call("files-read")])
            server.lost.add("s1")
            lost, _ = await bench.run(world.key_id, [Call("files-read")])
            again, _ = await bench.run(world.key_id, [Call("files-read")])

    [invocation] = lost.invocations.values()
    assert invocation.error is not None
    assert (invocation.error["code"], invocation.outcome) == ("session_not_found", InvocationOutcome.KNOWN)
    assert again.statuses() == ["succeeded"]
    assert server.sessions == 2


async def test_calls_in_parallel_open_one_session(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    async with socket_server() as server:
        world = await world_of(database, server.url)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            record, _ = await bench.run(world.key_id, [Call("files-read") for _ in range(8)])

    assert record.statuses() == ["succeeded"] * 8
    assert server.sessions == 1


async def has_beaten(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until the engine has heard a heartbeat of the workflow's activity."""
    async with asyncio.timeout(5):
        while True:
            described = (await handle.describe()).raw_description
            if any(one.HasField("last_heartbeat_time") for one in described.pending_activities):
                return


async def test_a_cancel_reaches_the_server_within_a_second(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    arrived = asyncio.Event()

    async def hang(_message: dict[str, Any]) -> Reply:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with socket_server(hang) as server:
        world = await world_of(sqlite_database, server.url)
        async with mcp_bench(temporal_client, sqlite_database, task_queue) as bench:
            _, handle = await bench.start(world.key_id, [Call("files-read")])
            await asyncio.wait_for(arrived.wait(), 20)
            # Past the first beat, as a call is that somebody wants to cancel.
            await has_beaten(handle)
            loop = asyncio.get_running_loop()
            asked = loop.time()
            await handle.cancel()
            await asyncio.wait_for(server.canceled.wait(), 5)
            took = loop.time() - asked
            with pytest.raises(WorkflowFailureError):
                await handle.result()

    assert took < 1.0


async def test_a_connection_lost_after_the_call_left_is_an_unknown_outcome(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    async def drop(_message: dict[str, Any]) -> Reply:
        raise ConnectionResetError

    async with socket_server(drop) as server:
        world = await world_of(database, server.url)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            record, result = await bench.run(world.key_id, [Call("files-read")])

    assert (record.statuses(), result.unknown) == (["failed"], 1)
    assert server.methods.count("tools/call") == 1
    [send] = await database.read(sends)
    assert send.outcome is SendOutcome.UNKNOWN


async def test_a_server_that_is_busy_is_asked_again(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    answers = iter([(429, None), (200, "done")])

    async def busy(message: dict[str, Any]) -> Reply:
        status, _ = next(answers)
        return (status, None) if status != 200 else await done(message)

    async with socket_server(busy) as server:
        world = await world_of(database, server.url)
        async with mcp_bench(temporal_client, database, task_queue) as bench:
            record, _ = await bench.run(world.key_id, [Call("files-read")])

    assert record.statuses() == ["succeeded"]
    assert server.methods.count("tools/call") == 2


async def test_a_tools_own_time_limit_ends_the_call_before_its_connections(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    async def hang(_message: dict[str, Any]) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    def limit(session: WriteSession) -> None:
        definition = session.query(ToolDefinition).filter_by(tool_name="files-read").one()
        definition.timeout_s = 0.3
        session.flush()
        reproject_definition(session, definition)

    async with socket_server(hang) as server:
        # The connection's own limit is half a minute.
        world = await world_of(sqlite_database, server.url)
        await sqlite_database.write(limit)
        async with mcp_bench(temporal_client, sqlite_database, task_queue) as bench, asyncio.timeout(5):
            record, result = await bench.run(world.key_id, [Call("files-read")])
            await server.canceled.wait()

    [error] = [row.error for row in record.invocations.values()]
    assert error is not None
    assert (record.statuses(), result.unknown) == (["failed"], 1)
    assert (error["code"], error["details"]["timeout_s"]) == ("tool_timeout", 0.3)
