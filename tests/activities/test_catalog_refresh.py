"""A server that changes its tools: announced fifty times to two workers, listed once."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update
from temporalio.client import Client

from api.embedded import EmbeddedTemporal
from models.base import utc_now
from models.connection import Connection, ConnectionHealth
from models.database import Database, ReadSession, WriteSession
from models.mcp_session import McpSession, SessionState
from tests.activities.listening_server import CHANGED, listening_server
from tests.support.rounds import RoundBench
from tests.support.world import Call, ConnectionPlan, build_world

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
BURST_S = 5
"""How long the refresh waits for more notices here: longer than a loaded machine needs for fifty."""


@asynccontextmanager
async def whole_worker(folder: Path, url: str, address: str, task_queue: str) -> AsyncIterator[None]:
    """Run `python worker.py`, as it is deployed."""
    settings = {
        "DATA_DIR": str(folder),
        "DATABASE_URL": url,
        "DATABASE_BUSY_TIMEOUT_MS": "15000",
        "TEMPORAL_ADDRESS": address,
        "TASK_QUEUE": task_queue,
    }
    environment = {**os.environ, **{f"SLUICEGATE_{name}": value for name, value in settings.items()}}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "worker.py"), cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert child.stderr is not None
    try:
        async with asyncio.timeout(60):
            while b"polls task queue" not in (line := await child.stderr.readline()):
                assert line != b"", "the worker ended"
        yield
    finally:
        child.kill()
        await child.communicate()


def connection_of(session: ReadSession) -> Connection:
    return session.scalars(select(Connection)).one()


def session_of(session: ReadSession) -> McpSession:
    return session.scalars(select(McpSession)).one()


async def test_fifty_notices_to_two_workers_cause_one_listing(
    database_url: str,
    temporal_client: Client,
    temporal_server: EmbeddedTemporal,
    task_queue: str,
    tmp_path: Path,
) -> None:
    def listed_before(session: WriteSession) -> None:
        # A statement: the edit of an object would be a new version of the connection.
        session.execute(update(Connection).values(synced_at=utc_now() - timedelta(seconds=10 - BURST_S)))

    async with Database(database_url, busy_timeout_ms=15_000) as database, listening_server() as server:
        world = await build_world(database, ConnectionPlan(url=server.url, parallel_safe=("read",)))
        bench = RoundBench(temporal_client, database, task_queue, heartbeat_timeout_s=20.0)
        worker = (tmp_path, database_url, temporal_server.address, task_queue)
        async with whole_worker(*worker), whole_worker(*worker):
            await bench.run(world.key_id, [Call("files-read")])
            await server.raw.wait_until(lambda _: "s1" in server.streams)
            await database.write(listed_before)
            server.told_in_calls = [CHANGED] * 2
            record, _ = await bench.run(world.key_id, [Call("files-read")] * 20)
            for _ in range(10):
                await server.tell("s1", CHANGED)
            async with asyncio.timeout(60):
                while (connection := await database.read(connection_of)).health is ConnectionHealth.UNKNOWN:  # noqa: ASYNC110 - A database calls nobody.
                    await asyncio.sleep(0.05)
        session = await database.read(session_of)

    assert record.statuses() == ["succeeded"] * 20
    # The server's own counter, and nothing is left that would ask again.
    assert server.listings == 1
    assert (connection.health, connection.stale_at) == (ConnectionHealth.HEALTHY, None)
    # What a listing stores does not end the sessions that calls use; it opened and closed one of its own.
    assert (session.state, session.connection_version) == (SessionState.OPEN, connection.version)
    assert (server.sessions, server.deleted) == (["s1", "s2"], ["s2"])
