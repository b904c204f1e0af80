"""Runs rounds on the real Temporal server with the real activities, and reads what became of them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import SharedStateManager, UnsandboxedWorkflowRunner, Worker, WorkflowRunner

from activities.finalizing import RoundFinalizer
from activities.freezing import RoundFreezer
from activities.guardrail_hooks import GuardrailHooks
from activities.guardrail_http import Webhooks
from activities.guardrails import Guardrails
from activities.runner import Runner
from activities.tool_calls import ToolCalls
from activities.waiting import UnknownsWatch
from governance.resolutions import OnUnknown
from governance.tool_cache import ToolCache
from models.database import Database
from models.invocation import ToolInvocation, load_invocations
from models.round import Round, RoundCall, load_events, load_round_calls
from models.slot import SLOT_LEASE_S
from models.tool import SourceKind
from models.vault import Vault
from tests.support.world import Call, add_round
from workflows.call_retry import CallRetry
from workflows.messages import RoundInput, RoundResult
from workflows.provider_round import ProviderRound

__all__ = ["RoundBench", "SharedStateManager", "round_worker"]


@asynccontextmanager
async def round_worker(
    client: Client,
    database: Database,
    runner: Runner,
    *,
    task_queue: str,
    workflow: type = ProviderRound,
    workflow_runner: WorkflowRunner | None = None,
    slot_lease_s: float = SLOT_LEASE_S,
    hooks: GuardrailHooks | None = None,
) -> AsyncIterator["RoundBench"]:
    """Run a worker with the production activities, its tools behind `runner`, its guardrails `hooks`."""
    tools = ToolCache()
    guardrails = Guardrails(database, tools, hooks or GuardrailHooks(Webhooks(Vault(bytes(32)))))
    calls = ToolCalls(
        database, tools, {SourceKind.MCP: runner}, "test-worker", slot_lease_s, guardrails=guardrails
    )
    finalizer = RoundFinalizer(database)
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=[workflow, CallRetry],
        activities=[
            RoundFreezer(database, tools).freeze_round,
            guardrails.guard_round,
            calls.call_tool,
            finalizer.finalize_round,
            finalizer.settle_lost_calls,
            UnknownsWatch(database).look_at_unknowns,
        ],
        workflow_runner=workflow_runner or UnsandboxedWorkflowRunner(),
        max_eager_activity_reservations_per_workflow_task=10,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        max_heartbeat_throttle_interval=timedelta(seconds=0.2),
        default_heartbeat_throttle_interval=timedelta(seconds=0.2),
    )
    async with worker:
        yield RoundBench(client, database, task_queue)


@dataclass(frozen=True)
class RoundRecord:
    """What the database says of a round."""

    row: Round
    calls: tuple[RoundCall, ...]
    invocations: Mapping[str, ToolInvocation]
    events: tuple[tuple[str, Mapping[str, object]], ...]

    def statuses(self) -> list[str]:
        """Return each call's status in the model's order; refused calls show their code."""
        return [
            call.refusal["code"]
            if call.refusal is not None
            else "not_started"
            if call.invocation_id is None
            else self.invocations[call.invocation_id].status.value
            for call in self.calls
        ]


@dataclass(frozen=True)
class RoundBench:
    """Starts rounds and looks at them."""

    client: Client
    database: Database
    task_queue: str
    heartbeat_timeout_s: float = 5.0

    async def start(
        self,
        key_id: str,
        calls: Sequence[Call],
        workflow_id: str | None = None,
        on_unknown: OnUnknown = OnUnknown.FAIL,
    ) -> tuple[str, WorkflowHandle[ProviderRound, RoundResult]]:
        workflow_id = workflow_id or f"round:{key_id}:{uuid4().hex}"
        round_id = await self.database.write(add_round, key_id, calls, workflow_id, on_unknown)
        handle = await self.client.start_workflow(
            ProviderRound.run,
            RoundInput(
                key_id,
                round_id,
                round_id,
                search_attributes=False,
                heartbeat_timeout_s=self.heartbeat_timeout_s,
                on_unknown=on_unknown.value,
            ),
            id=workflow_id,
            task_queue=self.task_queue,
            task_timeout=timedelta(seconds=2),
            request_eager_start=True,
        )
        return round_id, handle

    async def run(self, key_id: str, calls: Sequence[Call]) -> tuple[RoundRecord, RoundResult]:
        round_id, handle = await self.start(key_id, calls)
        result = await handle.result()
        return await self.record(round_id), result

    async def record(self, round_id: str) -> RoundRecord:
        def read(session: object) -> RoundRecord:
            row = session.get_one(Round, round_id)  # type: ignore[attr-defined]
            return RoundRecord(
                row,
                load_round_calls(session, round_id),  # type: ignore[arg-type]
                load_invocations(session, round_id),  # type: ignore[arg-type]
                tuple((event.kind, event.data) for event in load_events(session, round_id, 0)),  # type: ignore[arg-type]
            )

        return await self.database.read(read)

    async def history(self, handle: WorkflowHandle[ProviderRound, RoundResult]) -> list[HistoryEvent]:
        return [event async for event in handle.fetch_history_events()]


def stage_spans(history: Sequence[HistoryEvent]) -> dict[int, tuple[list[int], list[int]]]:
    """Return, for each stage, the event numbers at which its calls were scheduled and at which they ended."""
    scheduled: dict[int, int] = {}
    spans: dict[int, tuple[list[int], list[int]]] = {}
    for event in history:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            name = event.activity_task_scheduled_event_attributes.activity_id
            stage = int(name.split(".")[0][1:])
            scheduled[event.event_id] = stage
            spans.setdefault(stage, ([], []))[0].append(event.event_id)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            started = event.activity_task_completed_event_attributes.scheduled_event_id
            spans[scheduled[started]][1].append(event.event_id)
    return spans


def barrier_holds(history: Sequence[HistoryEvent]) -> bool:
    """Say whether no stage was scheduled before every call of the stage before it had ended."""
    spans = stage_spans(history)
    return all(
        len(spans[stage - 1][0]) == len(spans[stage - 1][1])
        and max(spans[stage - 1][1]) < min(spans[stage][0])
        for stage in spans
        if stage > 0
    )
