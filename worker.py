"""The Temporal worker: lists every workflow and activity, and builds what they need.

Run as `python worker.py`, or embedded in the API's process by `sluicegate up` and `serve --with-worker`.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner

from activities.audit_sealer import sealing
from activities.catalog_refresh import CatalogWatch
from activities.client_pool import ClientPool
from activities.connection_sync import ConnectionSyncer
from activities.core_matrix_runner import CoreMatrixRunner
from activities.finalizing import RoundFinalizer
from activities.freezing import RoundFreezer
from activities.guardrail_hooks import GuardrailHooks
from activities.guardrail_http import Webhooks
from activities.guardrails import Guardrails
from activities.mcp_runner import McpRunner
from activities.mcp_sessions import McpSessions
from activities.mcp_streams import StreamKeeper
from activities.reconciling import Reconciler
from activities.runner import Runner
from activities.session_sweep import SessionSweeper
from activities.start_grants import StartGate
from activities.tool_calls import ToolCalls
from activities.waiting import UnknownsWatch
from governance.start_grants import GRANT_PURPOSE
from governance.tool_cache import ToolCache
from models.database import Database
from models.tool import SourceKind
from models.vault import Vault, vault_from_file, vault_from_text
from models.version_projection import project_core
from settings import Settings
from workflows.call_retry import CallRetry
from workflows.connection_sync import ConnectionSync
from workflows.engine import TemporalEngine, ensure_schedules
from workflows.payloads import data_converter, prepare_round_messages
from workflows.provider_round import ProviderRound
from workflows.reconcile import Reconcile
from workflows.session_sweep import SessionSweep

WORKFLOWS = (ProviderRound, CallRetry, ConnectionSync, Reconcile, SessionSweep)
"""Every workflow, in the order of the folder."""

EAGER_RESERVATIONS = 10
"""Calls of a stage that a workflow task may hand to this worker at once, without a dispatch by the server."""

logger = logging.getLogger("sluicegate.worker")


@dataclass(frozen=True)
class WorkerParts:
    """What a worker shares with the process that it runs in."""

    settings: Settings
    database: Database
    vault: Vault
    client: Client
    urgent: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the worker stops: running calls are given up at once, not when the drain time is over."""


def vault_of(settings: Settings) -> Vault:
    """Return the vault of the settings' key, or of the key file in the data folder, made if need be."""
    if settings.vault_key is not None:
        return vault_from_text(settings.vault_key.get_secret_value())
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return vault_from_file(settings.data_dir / "vault.key")


def database_of(settings: Settings) -> Database:
    """Open the database of the settings."""
    return Database(
        settings.resolved_database_url(),
        pool_size=settings.database_pool_size,
        busy_timeout_ms=settings.database_busy_timeout_ms,
    )


async def connect(settings: Settings) -> Client:
    """Connect to the Temporal server of the settings.

    Raises:
        RuntimeError: the server cannot be reached.
    """
    return await Client.connect(
        settings.temporal_address,
        namespace=settings.temporal_namespace,
        data_converter=data_converter,
    )


def engine_of(settings: Settings, client: Client) -> TemporalEngine:
    """Return the engine as the reconciler and the control plane use it."""
    return TemporalEngine(client, settings.task_queue, settings.heartbeat_timeout_s, settings.task_timeout_s)


async def schedule_repairs(settings: Settings, client: Client) -> None:
    """Have the reconciler run twice a minute; a cluster that forbids it leaves `sluicegate reconcile`."""
    try:
        await ensure_schedules(client, settings.task_queue)
    except RPCError as error:
        logger.warning("The reconciler's schedule could not be made (%s).", error.status.name)


@asynccontextmanager
async def running_worker(
    parts: WorkerParts, workflow_runner: WorkflowRunner | None = None
) -> AsyncGenerator[Worker]:
    """Run a worker until the block is left, then let its running calls finish for the drain time."""
    settings = parts.settings
    prepare_round_messages()
    async with AsyncExitStack() as stack:
        clients = await stack.enter_async_context(ClientPool(settings.result_hard_max_bytes, parts.vault))
        tools = ToolCache()
        sessions = McpSessions(parts.database, parts.vault)
        engine = engine_of(settings, parts.client)
        catalogs = CatalogWatch(parts.database, engine)
        streams = await stack.enter_async_context(StreamKeeper(parts.database, catalogs))
        runners: Mapping[SourceKind, Runner] = {
            SourceKind.MCP: McpRunner(clients, sessions, streams, settings.result_hard_max_bytes),
            SourceKind.CORE_MATRIX: CoreMatrixRunner(parts.database),
        }
        await parts.database.write(project_core)
        webhooks = await stack.enter_async_context(Webhooks(parts.vault))
        hooks = await stack.enter_async_context(GuardrailHooks(webhooks))
        guardrails = Guardrails(parts.database, tools, hooks)
        calls = ToolCalls(parts.database, tools, runners, _identity(), guardrails=guardrails)
        finalizer = RoundFinalizer(parts.database)
        worker = Worker(
            parts.client,
            task_queue=settings.task_queue,
            workflows=WORKFLOWS,
            activities=[
                RoundFreezer(parts.database, tools, _start_gate(parts)).freeze_round,
                guardrails.guard_round,
                calls.call_tool,
                finalizer.finalize_round,
                finalizer.settle_lost_calls,
                UnknownsWatch(parts.database).look_at_unknowns,
                Reconciler(parts.database, engine).reconcile,
                ConnectionSyncer(parts.database, clients).sync_connection,
                SessionSweeper(parts.database, parts.vault, clients, engine).sweep_sessions,
            ],
            identity=_identity(),
            # Measured: 18 ms to 11 ms for a round. Determinism is kept by lint, sandboxed tests and replays.
            workflow_runner=workflow_runner or UnsandboxedWorkflowRunner(),
            max_concurrent_activities=settings.max_concurrent_calls,
            max_eager_activity_reservations_per_workflow_task=EAGER_RESERVATIONS,
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_timeout_s),
            max_heartbeat_throttle_interval=timedelta(seconds=settings.heartbeat_throttle_s),
            default_heartbeat_throttle_interval=timedelta(seconds=settings.heartbeat_throttle_s),
            graceful_shutdown_timeout=settings.drain,
        )
        giving_up = asyncio.create_task(_give_up(parts.urgent, calls))
        # Until the worker has ended, which leaving the block waits for.
        stack.callback(giving_up.cancel)
        await stack.enter_async_context(sealing(parts.database))
        await stack.enter_async_context(worker)
        await schedule_repairs(settings, parts.client)
        yield worker


def _start_gate(parts: WorkerParts) -> StartGate | None:
    if not parts.settings.require_start_grant:
        return None
    return StartGate(parts.database, parts.vault.derive(GRANT_PURPOSE))


def _identity() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"


async def _give_up(urgent: asyncio.Event, calls: ToolCalls) -> None:
    await urgent.wait()
    logger.warning("The worker gives up its running calls: what was sent and not answered is unknown.")
    calls.give_up()


async def run(settings: Settings) -> None:
    """Run a worker until the process is asked to stop."""
    async with database_of(settings) as database:
        parts = WorkerParts(settings, database, vault_of(settings), await connect(settings))
        await run_until_stopped(parts)


async def run_until_stopped(parts: WorkerParts) -> None:
    """Run a worker until a signal comes, and let its running calls finish for the drain time.

    What runs then goes to another worker, or is unknown where it was sent and its answer cannot be fetched.
    A second signal does the same at once; a third ends the process where it stands.
    """
    stop = asyncio.Event()

    def ask() -> None:
        if not stop.is_set():
            stop.set()
        elif not parts.urgent.is_set():
            parts.urgent.set()
        else:
            os._exit(1)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask)
    async with running_worker(parts):
        logger.info("The worker polls task queue %s.", parts.settings.task_queue)
        await stop.wait()
        logger.info("The worker stops; running calls have %s s to finish.", parts.settings.drain_s)


def main() -> None:
    """Run a worker as a process of its own."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(run(Settings()))
    sys.stdout.flush()
    sys.stderr.flush()
    # The SDK's threads can crash the interpreter's own exit; everything is closed by now.
    os._exit(0)


if __name__ == "__main__":
    main()
