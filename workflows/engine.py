"""The engine's side of starting, waking and repairing, for entry points; workflow code never imports this."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.common import TypedSearchAttributes, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.reconciling import (
    OpenRetry,
    ReconcileReport,
    ReconcileRequest,
    Standing,
    UnfinishedRound,
)
from workflows.labels import RoundLabel
from workflows.messages import (
    CALL_RETRY,
    CANCEL_CALL_SIGNAL,
    CONNECTION_SYNC,
    PROVIDER_ROUND,
    RECONCILE,
    RESOLVE_UPDATE,
    SESSION_SWEEP,
    CallRetryInput,
    ConnectionSyncInput,
    RoundInput,
)

RPC_TIMEOUT = timedelta(seconds=2)
"""How long the engine may take to answer one request."""

RECONCILE_EVERY = timedelta(seconds=30)
"""How long something may stay broken after a crash, about."""

_STANDINGS = {
    WorkflowExecutionStatus.RUNNING: Standing.RUNNING,
    WorkflowExecutionStatus.CONTINUED_AS_NEW: Standing.RUNNING,
    WorkflowExecutionStatus.COMPLETED: Standing.COMPLETED,
    WorkflowExecutionStatus.CANCELED: Standing.CANCELED,
}


def retry_workflow_id(retry_key: str) -> str:
    """Name the workflow of an operator's retry: one for each, whoever starts it."""
    return f"retry:{retry_key}"


@dataclass(frozen=True)
class TemporalEngine:
    """`activities.reconciling.RoundEngine` on a Temporal client."""

    client: Client
    task_queue: str
    heartbeat_timeout_s: float
    task_timeout_s: float

    async def standing(self, workflow_id: str) -> Standing:
        """Say how a workflow stands."""
        try:
            handle = self.client.get_workflow_handle(workflow_id)
            description = await handle.describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            return Standing.MISSING if error.status is RPCStatusCode.NOT_FOUND else Standing.UNREACHABLE
        if description.status is None:
            return Standing.UNREACHABLE
        return _STANDINGS.get(description.status, Standing.BROKEN)

    async def start_round(self, round_: UnfinishedRound) -> bool:
        """Start the workflow of a requested round, for operators just as the API would have.

        A cluster that does not know our search attributes refuses them, and gets the round without.
        """
        return await self._start_round(round_, labelled=True) or await self._start_round(
            round_, labelled=False
        )

    async def _start_round(self, round_: UnfinishedRound, *, labelled: bool) -> bool:
        headers = round_.request_filter
        label = RoundLabel(round_.id, round_.key_id, round_.tool_names)
        request = RoundInput(
            key_id=round_.key_id,
            round_key=round_.round_key,
            round_id=round_.id,
            body_digest=round_.body_digest,
            include_clients=headers.get("include_clients"),
            include_tools=headers.get("include_tools"),
            search_attributes=labelled,
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            on_unknown=round_.on_unknown.value,
        )
        return await _carried_out(
            self.client.start_workflow(
                PROVIDER_ROUND,
                request,
                id=round_.workflow_id,
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                task_timeout=timedelta(seconds=self.task_timeout_s),
                rpc_timeout=RPC_TIMEOUT,
                static_summary=label.summary,
                static_details=label.details,
                search_attributes=label.attributes if labelled else TypedSearchAttributes.empty,
            )
        )

    async def wake_round(self, workflow_id: str, invocation_id: str) -> bool:
        """Tell a round that waits that an outcome was resolved."""
        handle = self.client.get_workflow_handle(workflow_id)
        return await _carried_out(
            # The id makes a repeated update the same one. The SDK leaves the type of a named update open.
            handle.execute_update(  # pyright: ignore[reportUnknownMemberType]
                RESOLVE_UPDATE, invocation_id, id=f"resolve:{invocation_id}", rpc_timeout=RPC_TIMEOUT
            )
        )

    async def cancel_call(self, workflow_id: str, position: int) -> bool:
        """Tell a round to stop one call."""
        handle = self.client.get_workflow_handle(workflow_id)
        return await _carried_out(handle.signal(CANCEL_CALL_SIGNAL, position, rpc_timeout=RPC_TIMEOUT))

    async def retry_call(self, retry: OpenRetry) -> bool:
        """Start the workflow of an operator's retry."""
        request = CallRetryInput(
            round_id=retry.round_id,
            position=retry.position,
            stage=retry.stage,
            activity_id=retry.activity_id,
            timeout_s=retry.timeout_s,
            heartbeat_timeout_s=self.heartbeat_timeout_s,
        )
        summary = f"retry of call {retry.position} of round {retry.round_id}"
        return await self._start(CALL_RETRY, request, retry_workflow_id(retry.retry_key), summary)

    async def start_reconcile(self, grace_s: float) -> bool:
        """Start a reconciliation, or join the one that was asked for before and goes on."""
        return await _carried_out(
            self.client.start_workflow(
                RECONCILE,
                ReconcileRequest(grace_s),
                id=self._reconcile_id,
                task_queue=self.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                rpc_timeout=RPC_TIMEOUT,
                static_summary="asked for by an operator",
            )
        )

    async def reconcile_report(self, wait_s: float) -> ReconcileReport | None:
        """Return what the reconciliation repaired; None where it has not ended within `wait_s`, or failed."""
        handle = self.client.get_workflow_handle(self._reconcile_id, result_type=ReconcileReport)
        try:
            async with asyncio.timeout(wait_s):
                report: ReconcileReport = await handle.result()
                return report
        except (TimeoutError, WorkflowFailureError, RPCError, RuntimeError):
            return None

    async def refresh_catalog(self, connection_id: str, delay: timedelta) -> bool:
        """Start a sync of a connection after `delay`, or join the one that waits or goes on."""
        return await _carried_out(
            self.client.start_workflow(
                CONNECTION_SYNC,
                ConnectionSyncInput(connection_id=connection_id),
                id=f"connection-sync:{connection_id}",
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_delay=delay,
                rpc_timeout=RPC_TIMEOUT,
                static_summary=f"the server of connection {connection_id} announced other tools",
            )
        )

    @property
    def _reconcile_id(self) -> str:
        return f"reconcile-now:{self.task_queue}"

    def retry_workflow_id(self, retry_key: str) -> str:
        """Name the workflow of a retry."""
        return retry_workflow_id(retry_key)

    async def _start(self, name: str, request: object, workflow_id: str, summary: str) -> bool:
        return await _carried_out(
            self.client.start_workflow(
                name,
                request,
                id=workflow_id,
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                task_timeout=timedelta(seconds=self.task_timeout_s),
                rpc_timeout=RPC_TIMEOUT,
                static_summary=summary,
            )
        )


async def _carried_out(request: Coroutine[Any, Any, object]) -> bool:
    try:
        await request
    except WorkflowAlreadyStartedError:
        return True
    except (RPCError, RuntimeError):
        # RuntimeError: a lazy client that cannot connect.
        return False
    return True


async def ensure_schedules(client: Client, task_queue: str) -> None:
    """Create the schedules of the reconciler and the session sweep, or bring them up to date.

    Raises:
        RPCError: the engine is away, or does not let us.
    """
    reconcile = ScheduleActionStartWorkflow(
        RECONCILE, ReconcileRequest(), id=f"reconcile:{task_queue}", task_queue=task_queue
    )
    await _ensure_schedule(client, f"sluicegate-reconcile-{task_queue}", reconcile)
    sweep = ScheduleActionStartWorkflow(
        SESSION_SWEEP, id=f"session-sweep:{task_queue}", task_queue=task_queue
    )
    await _ensure_schedule(client, f"sluicegate-session-sweep-{task_queue}", sweep)


async def _ensure_schedule(client: Client, schedule_id: str, action: ScheduleActionStartWorkflow) -> None:
    schedule = Schedule(
        action=action,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=RECONCILE_EVERY)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=RECONCILE_EVERY),
    )

    def renew(_input: ScheduleUpdateInput) -> ScheduleUpdate:
        return ScheduleUpdate(schedule)

    try:
        await client.create_schedule(schedule_id, schedule, trigger_immediately=True, rpc_timeout=RPC_TIMEOUT)
    except ScheduleAlreadyRunningError:
        handle = client.get_schedule_handle(schedule_id)
        await handle.update(renew, rpc_timeout=RPC_TIMEOUT)
        await handle.trigger(rpc_timeout=RPC_TIMEOUT)
