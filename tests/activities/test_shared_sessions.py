"""Sessions belong to no worker: two processes that find one lost open one between them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.client import Client

from api.embedded import EmbeddedTemporal
from models.database import Database
from models.send import ToolSend
from tests.activities.socket_server import socket_server
from tests.activities.test_mcp_calls import sends, world_of
from tests.support.rounds import RoundBench
from tests.support.world import Call

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def worker_process(url: str, address: str, task_queue: str) -> AsyncIterator[int]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.activities.session_worker", url, address, task_queue),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(60):
            assert await child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.kill()
        await child.wait()


async def test_twenty_calls_of_two_processes_on_a_lost_session_initialize_once(
    database_url: str, temporal_client: Client, temporal_server: EmbeddedTemporal, task_queue: str
) -> None:
    async with Database(database_url) as database, socket_server() as server:
        world = await world_of(database, server.url)
        bench = RoundBench(temporal_client, database, task_queue, heartbeat_timeout_s=20.0)
        address = temporal_server.address
        async with (
            worker_process(database_url, address, task_queue),
            worker_process(database_url, address, task_queue),
        ):
            first, _ = await bench.run(world.key_id, [Call("files-read")])
            server.lost.add("s1")
            lost, _ = await bench.run(world.key_id, [Call("files-read") for _ in range(20)])

        stored: list[ToolSend] = await database.read(sends)

    assert first.statuses() == ["succeeded"]
    assert lost.statuses() == ["succeeded"] * 20
    # The server's own counter: one session at first, one after the loss.
    assert server.sessions == 2
    answered = [send for send in stored if send.outcome is not None and send.outcome.value == "answered"]
    assert len({send.session_digest for send in answered}) == 2
