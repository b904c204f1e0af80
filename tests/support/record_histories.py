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
from activities.reconciling import Reconciler, ReconcileRequest
from governance.canonical import JSON
from governance.resolutions import OnUnknown, ResolutionKind
from models.connection import Connection
from models.database import Database, WriteSession
from models.guardrail import replace_guardrails
from models.migration import migrate
from models.vault import Vault
from tests.support.rounds import RoundBench, round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.temporal_server import connect, running_temporal
from tests.support.world import Call, ConnectionPlan, World, add_round, build_world
from tests.workflows.unknowns import SendsRunner, answered, open_questions, resolve_only, unknown
from workflows.connection_sync import ConnectionSync
from workflows.engine import TemporalEngine, retry_workflow_id
from workflows.messages import RESOLVE_UPDATE, ConnectionSyncInput
from workflows.reconcile import Reconcile

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


async def wide_round(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """A stage of more calls than one workflow task starts."""
    async with round_worker(client, database, ScriptedRunner(echo), task_queue="wide") as bench:
        _, handle = await bench.start(world.key_id, [Call("files-read") for _ in range(51)])
        await handle.result()
    return handle


async def queued_round(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """Calls that wait for the one slot of their connection, woken and by their timers."""

    async def slow(_call: OpenCall) -> JSON:
        await asyncio.sleep(0.3)
        return {"content": []}

    await database.write(_cap, world.connection_id, 1)
    async with round_worker(client, database, ScriptedRunner(slow), task_queue="queued") as bench:
        _, handle = await bench.start(world.key_id, [Call("files-read") for _ in range(4)])
        await handle.result()
    await database.write(_cap, world.connection_id, None)
    return handle


def _cap(session: WriteSession, connection_id: str, cap: int | None) -> None:
    session.get_one(Connection, connection_id).max_concurrency = cap


async def waiting_round(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """An unknown outcome that an operator has called again, and one that he resolves."""
    runner = SendsRunner([unknown, unknown, answered])
    async with round_worker(client, database, runner, task_queue="waiting") as bench:
        round_id, handle = await bench.start(
            world.key_id, [Call("files-write"), Call("files-write")], on_unknown=OnUnknown.WAIT
        )
        for kind in (ResolutionKind.RETRY, ResolutionKind.FAILED):
            while await open_questions(database, round_id) == 0:  # noqa: ASYNC110 - The database calls nobody.
                await asyncio.sleep(0.02)
            resolved = await resolve_only(database, round_id, kind)
            await handle.execute_update(RESOLVE_UPDATE, resolved.invocation_id)
        await handle.result()
    return handle


async def call_retry(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """A retry of a call whose round has ended."""
    runner = SendsRunner([unknown, answered])
    async with round_worker(client, database, runner, task_queue="retry") as bench:
        record, _ = await bench.run(world.key_id, [Call("files-write")])
        resolved = await resolve_only(database, record.row.id, ResolutionKind.RETRY)
        if resolved.retry is None:
            raise AssertionError("A retry names the call to make.")
        await TemporalEngine(client, "retry", 5.0, 2.0).retry_call(resolved.retry)
        handle = client.get_workflow_handle(retry_workflow_id(resolved.retry.retry_key))
        await handle.result()
    return handle


async def guarded_round(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """Calls that guardrails judge first: one redacted, one blocked, one under none."""
    words = {"name": "words", "kind": "patterns", "settings": {"deny": ["forbidden"]}}
    guardrails = [
        {"name": "pii", "kind": "redaction", "stages": ["before"], "selector": {"tools": ["files-read"]}},
        {**words, "stages": ["before"], "selector": {"tools": ["files-read"]}},
    ]
    await database.write(replace_guardrails, guardrails)
    async with round_worker(client, database, ScriptedRunner(echo), task_queue="guarded") as bench:
        texts = ["ask nina.okafor@kranich.example", "forbidden"]
        calls = [*(Call("files-read", {"text": text}) for text in texts), Call("files-write")]
        record, _ = await bench.run(world.key_id, calls)
        handle = client.get_workflow_handle(record.row.workflow_id)
    if record.statuses() != ["succeeded", "guardrail_blocked", "succeeded"]:
        raise AssertionError(f"One call was to be blocked: {record.statuses()}")
    await database.write(replace_guardrails, [])
    return handle


async def reconcile(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """A repair: a round that was only requested is started."""
    await database.write(add_round, world.key_id, [Call("files-read")], "round:reconciled")
    engine = TemporalEngine(client, "nobody-polls", 5.0, 2.0)
    worker = Worker(
        client,
        task_queue="reconcile",
        workflows=[Reconcile],
        activities=[Reconciler(database, engine).reconcile],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    async with worker:
        handle = await client.start_workflow(
            Reconcile.run, ReconcileRequest(0), id="reconcile", task_queue="reconcile"
        )
        report = await handle.result()
    if report.started != 1:
        raise AssertionError(f"One round was to be started: {report}")
    return handle


async def connection_sync(client: Client, database: Database, world: World) -> WorkflowHandle[Any, Any]:
    """A server that cannot be reached."""
    async with ClientPool(1024, Vault(bytes(32))) as clients:
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
    "wide_round": wide_round,
    "queued_round": queued_round,
    "waiting_round": waiting_round,
    "call_retry": call_retry,
    "guarded_round": guarded_round,
    "connection_sync": connection_sync,
    "reconcile": reconcile,
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
