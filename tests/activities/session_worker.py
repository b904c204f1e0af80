"""A worker process of its own, with the production runner: DATABASE_URL TEMPORAL_ADDRESS TASK_QUEUE."""

import asyncio
import sys

from temporalio.client import Client

from activities.catalog_refresh import CatalogWatch
from activities.client_pool import ClientPool
from activities.mcp_runner import McpRunner
from activities.mcp_sessions import McpSessions
from activities.mcp_streams import StreamKeeper
from models.database import Database
from models.vault import Vault
from tests.support.rounds import round_worker
from workflows.engine import TemporalEngine
from workflows.payloads import data_converter


async def run(url: str, address: str, task_queue: str) -> None:
    client = await Client.connect(address, data_converter=data_converter)
    async with (
        Database(url, busy_timeout_ms=15_000) as database,
        ClientPool(1024 * 1024, Vault(bytes(32))) as clients,
    ):
        catalogs = CatalogWatch(database, TemporalEngine(client, task_queue, 5.0, 2.0))
        async with (
            StreamKeeper(database, catalogs) as streams,
            round_worker(
                client,
                database,
                McpRunner(clients, McpSessions(database, Vault(bytes(32))), streams, 1024 * 1024),
                task_queue=task_queue,
            ),
        ):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:4]))
