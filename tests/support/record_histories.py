"""Record histories for the replay test: `python -m tests.support.record_histories`.

Histories are append-only: a file that is there already is left alone.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.client_pool import ClientPool
from activities.connection_sync import ConnectionSyncer
from activities.ledger import OpenCall
from governance.canonical import JSON
from models.database import Database
from models.migration import migrate
from tests.support.rounds import RoundBench, round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.temporal_server import connect, running_temporal
from tests.support.world import Call, ConnectionPlan, World, build_world
from workflows.connection_sync import ConnectionSync
from workflows.messages import ConnectionSyncInput

FOLDER = Path(__file__).parents[1] / "workflows" / "histories"

Recorder = Callable[[Client, Database, World], Awaitable[WorkflowHandle[Any, Any]]]


async def mixed_round(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """Parallel-safe and serial stages, and a refused call."""
    async with round_worker(client, database, ScriptedRunner(echo), task_queue="mixed") as bench:
        names = ["files-read", "files-read", "files-write", "files-nothing", "files-read"]
        _, handle = await bench.start(world.key_id, [Call(name) for name in names])
        await handle.result()
    return handle


async def canceled_round(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """A cancel while a stage runs."""
    started = asyncio.Event()

    async def endless(_call: OpenCall) -> JSON:
        started.set()
        await asyncio.Event().wait()

    async with round_worker(client, database, ScriptedRunner(endless), task_queue="canceled") as bench:
        return await _cancel_running(bench, world, started)


async def _cancel_running(
    bench: RoundBench, world: World, started: asyncio.Event
) -> WorkflowHandle[Any, Any]:
    _, handle = await bench.start(world.key_id, [Call("files-read"), Call("files-write")])
    await started.wait()
    await handle.cancel()
    try:
        await handle.result()
    except WorkflowFailureError:
        return handle
    raise AssertionError("The round was not canceled.")


async def connection_sync(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """A server that cannot be reached."""
    async with ClientPool(1024) as clients:
        worker = Worker(
            client,
            task_queue="sync",
            workflows=[ConnectionSync],
            activities=[ConnectionSyncer(database, clients).sync_connection],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            handle = await client.start_workflow(
                ConnectionSync.run,
                ConnectionSyncInput(world.connection_id),
                id="sync",
                task_queue="sync",
            )
            await handle.result()
    return handle


RECORDERS: dict[str, Recorder] = {
    "mixed_round": mixed_round,
    "canceled_round": canceled_round,
    "connection_sync": connection_sync,
}


async def record() -> None:
    """Record each history that is not there yet."""
    folder = Path(tempfile.mkdtemp())
    database = Database(f"sqlite:///{folder / 'histories.db'}")
    migrate(database)
    world = await build_world(database, ConnectionPlan(parallel_safe=("read",)))
    async with running_temporal(folder / "temporal") as server:
        client = await connect(server)
        for name, recorder in RECORDERS.items():
            path = FOLDER / f"{name}.json"
            if path.exists():
                continue
            handle = await recorder(client, database, world)
            path.write_text((await handle.fetch_history()).to_json(), "utf-8")
            sys.stdout.write(f"recorded {name}\n")
    database.close()


if __name__ == "__main__":
    asyncio.run(record())
    sys.stdout.flush()
    os._exit(0)  # As in tests.support.session_end: the SDK's threads may crash the interpreter's own end.
