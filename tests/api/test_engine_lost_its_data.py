"""An idempotency key outlives the engine's memory: the database answers, and no tool runs again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from activities.ledger import CallOutcome, OpenCall
from activities.reconciling import Reconciler, ReconcileRequest
from activities.runner import Runner, SendGate
from api.embedded import EmbeddedOptions, EmbeddedTemporal
from api.engine import workflow_id_of
from governance.canonical import canonical_bytes
from governance.codes import InvocationStatus, SendOutcome
from models.invocation import Settlement
from tests.api.bench import APIBench, api_bench, error_of, make_settings, tool_call
from tests.support.databases import sqlite_copy
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo, text_result
from tests.support.temporal_server import connect
from tests.support.world import ConnectionPlan
from workflows.engine import TemporalEngine

pytestmark = pytest.mark.anyio

CALL = {"id": "c1", "type": "function", "function": {"name": "files-read", "arguments": '{"path":"a"}'}}
CALLS = [tool_call("files-read", "{}", "c1"), tool_call("files-write", "{}", "c2")]
ON_A_FILE = EmbeddedOptions(grace_s=0.0)


@dataclass
class HeldRunner:
    """Makes calls, and holds one of them after it was sent, or before, until the test lets it go on."""

    holds: str
    before_send: bool = False
    sent: list[str] = field(default_factory=list[str])
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, call: OpenCall, gate: SendGate) -> CallOutcome:
        if self.before_send:
            await self.hold(call.tool_call_id)
        await gate.before_send(None)
        self.sent.append(call.tool_call_id)
        if not self.before_send:
            await self.hold(call.tool_call_id)
        content = canonical_bytes(text_result("done"))
        return CallOutcome(Settlement(InvocationStatus.SUCCEEDED), SendOutcome.ANSWERED, content)

    async def hold(self, call_id: str) -> None:
        if call_id == self.holds:
            self.reached.set()
            await asyncio.wait_for(self.go_on.wait(), 20)


def statuses(answer: httpx.Response) -> list[str]:
    return [f"{result['status']}/{result['outcome']}" for result in answer.json()["results"]]


def reconciler(api: APIBench) -> Reconciler:
    return Reconciler(api.database, TemporalEngine(api.temporal, api.task_queue, 5.0, 2.0))


def handle_of(api: APIBench, key_id: str, round_key: str, repeat: str = "") -> WorkflowHandle[Any, Any]:
    return api.temporal.get_workflow_handle(workflow_id_of(key_id, round_key) + repeat)


async def called(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until a worker has a call of a round."""
    async with asyncio.timeout(5):
        while True:
            with suppress(RPCError):
                pending = (await handle.describe()).raw_description.pending_activities
                if any(one.state is PendingActivityState.PENDING_ACTIVITY_STATE_STARTED for one in pending):
                    return
            await asyncio.sleep(0.02)


async def reset(client: Client, workflow_id: str) -> None:
    """Do what the Temporal UI's button does: begin again at the first workflow task."""
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace="default",
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            reason="by hand",
            workflow_task_finish_event_id=4,
            request_id=uuid4().hex,
        )
    )


@asynccontextmanager
async def gateway(folder: Path, url: str, engine: Path, runner: Runner) -> AsyncIterator[APIBench]:
    """Run an engine on a data file, a worker and an app on a database that is there already."""
    async with EmbeddedTemporal(engine, ON_A_FILE) as server:
        client = await connect(server)
        settings = make_settings(folder, url)
        async with (
            api_bench(settings, client) as bench,
            round_worker(client, bench.database, runner, task_queue=settings.task_queue),
        ):
            yield bench


async def test_the_same_key_gives_the_same_result_after_the_engines_data_was_deleted(
    tmp_path: Path, sqlite_template_path: Path
) -> None:
    url = sqlite_copy(sqlite_template_path, tmp_path)
    runner = ScriptedRunner(echo)
    async with gateway(tmp_path, url, tmp_path / "engine", runner) as before:
        agent = await before.agent(ConnectionPlan())
        headers = {**agent.headers, "idempotency-key": "order-42"}
        first = await before.http.post("/v1/mcp/tool/execute", json=CALL, headers=headers)

    # An engine that has never heard of the round, which is what deleting the data file leaves.
    async with gateway(tmp_path, url, tmp_path / "another-engine", runner) as after:
        second = await after.http.post("/v1/mcp/tool/execute", json=CALL, headers=headers)

    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json() == first.json()
    assert runner.sent == ["c1"]


async def test_a_round_whose_engine_lost_it_midway_is_repeated_and_sends_nothing_twice(
    tmp_path: Path, sqlite_template_path: Path
) -> None:
    url = sqlite_copy(sqlite_template_path, tmp_path)
    held = HeldRunner("c1")
    headers = {"idempotency-key": "order-43"}
    async with gateway(tmp_path, url, tmp_path / "engine", held) as before:
        agent = await before.agent(ConnectionPlan())
        headers |= agent.headers
        first = await before.http.post("/v1/rounds", json={"tool_calls": CALLS, "wait": 0}, headers=headers)
        await asyncio.wait_for(held.reached.wait(), 5)

    runner = ScriptedRunner(echo)
    async with gateway(tmp_path, url, tmp_path / "another-engine", runner) as after:
        report = await reconciler(after).reconcile(ReconcileRequest(0))
        lost = await after.http.get(f"/v1/rounds/{first.json()['round_id']}", headers=headers)
        second = await after.http.post("/v1/rounds", json={"tool_calls": CALLS}, headers=headers)
        third = await after.http.post("/v1/rounds", json={"tool_calls": CALLS}, headers=headers)

    assert (first.status_code, report.finalized, lost.json()["state"]) == (202, 1, "failed")
    assert statuses(second) == ["failed/unknown", "succeeded/known"]
    assert (second.json()["state"], second.json()["round_id"]) == ("completed", first.json()["round_id"])
    assert second.json() == third.json()
    assert (held.sent, runner.sent) == (["c1"], ["c2"])


async def test_a_round_terminated_in_the_temporal_ui_is_repeated_with_what_never_left(
    engine_api: APIBench,
) -> None:
    api, held = engine_api, HeldRunner("c1")
    agent = await api.agent(ConnectionPlan())
    headers = agent.headers | {"idempotency-key": "order-44"}
    async with round_worker(api.temporal, api.database, held, task_queue=api.task_queue):
        await api.http.post("/v1/rounds", json={"tool_calls": CALLS, "wait": 0}, headers=headers)
        await asyncio.wait_for(held.reached.wait(), 5)
        await handle_of(api, agent.key_id, "order-44").terminate("by hand")
        await reconciler(api).reconcile(ReconcileRequest(0))
        held.go_on.set()
        answers = await asyncio.gather(
            *(api.http.post("/v1/rounds", json={"tool_calls": CALLS}, headers=headers) for _ in range(4))
        )
        again = handle_of(api, agent.key_id, "order-44", "/2")
        described = await again.describe()

    assert {tuple(statuses(answer)) for answer in answers} == {("failed/unknown", "succeeded/known")}
    assert held.sent == ["c1", "c2"]
    assert described.status is WorkflowExecutionStatus.COMPLETED


async def test_a_call_that_was_opened_and_never_left_is_made_by_the_repeat(engine_api: APIBench) -> None:
    api, held = engine_api, HeldRunner("c1", before_send=True)
    agent = await api.agent(ConnectionPlan())
    headers = agent.headers | {"idempotency-key": "order-45"}
    async with round_worker(api.temporal, api.database, held, task_queue=api.task_queue):
        await api.http.post("/v1/rounds", json={"tool_calls": CALLS, "wait": 0}, headers=headers)
        await asyncio.wait_for(held.reached.wait(), 5)
        await handle_of(api, agent.key_id, "order-45").terminate("by hand")
        await reconciler(api).reconcile(ReconcileRequest(0))
        # The first attempt is still there; it may not send any more, and its key is the repeat's now.
        asking = asyncio.create_task(api.http.post("/v1/rounds", json={"tool_calls": CALLS}, headers=headers))
        await called(handle_of(api, agent.key_id, "order-45", "/2"))
        held.go_on.set()
        answer = await asking

    assert statuses(answer) == ["succeeded/known", "succeeded/known"]
    assert held.sent == ["c1", "c2"]


async def test_a_round_that_was_reset_ends_as_if_it_had_not_been(engine_api: APIBench) -> None:
    api, held = engine_api, HeldRunner("c1")
    agent = await api.agent(ConnectionPlan())
    headers = agent.headers | {"idempotency-key": "order-46"}
    async with round_worker(api.temporal, api.database, held, task_queue=api.task_queue):
        await api.http.post("/v1/rounds", json={"tool_calls": CALLS, "wait": 0}, headers=headers)
        await asyncio.wait_for(held.reached.wait(), 5)
        await reset(api.temporal, workflow_id_of(agent.key_id, "order-46"))
        asking = asyncio.create_task(api.http.post("/v1/rounds", json={"tool_calls": CALLS}, headers=headers))
        held.go_on.set()
        answer = await asking

    assert statuses(answer) == ["succeeded/known", "succeeded/known"]
    assert held.sent == ["c1", "c2"]


async def test_a_lost_round_that_is_reset_after_its_repeat_changes_nothing(engine_api: APIBench) -> None:
    api, held = engine_api, HeldRunner("c1")
    agent = await api.agent(ConnectionPlan())
    headers = agent.headers | {"idempotency-key": "order-47"}
    async with round_worker(api.temporal, api.database, held, task_queue=api.task_queue):
        await api.http.post("/v1/rounds", json={"tool_calls": CALLS, "wait": 0}, headers=headers)
        await asyncio.wait_for(held.reached.wait(), 5)
        await handle_of(api, agent.key_id, "order-47").terminate("by hand")
        await reconciler(api).reconcile(ReconcileRequest(0))
        held.go_on.set()
        before = await api.http.post("/v1/rounds", json={"tool_calls": CALLS}, headers=headers)
        await reset(api.temporal, workflow_id_of(agent.key_id, "order-47"))
        with pytest.raises(WorkflowFailureError):
            await handle_of(api, agent.key_id, "order-47").result()
        after = await api.http.post("/v1/rounds", json={"tool_calls": CALLS}, headers=headers)

    assert after.json() == before.json()
    assert held.sent == ["c1", "c2"]


async def test_a_repeat_that_no_engine_takes_is_refused_and_loses_no_result(
    engine_api: APIBench, database_url: str, tmp_path: Path
) -> None:
    api, held = engine_api, HeldRunner("c2")
    agent = await api.agent(ConnectionPlan())
    headers = agent.headers | {"idempotency-key": "order-48"}
    async with round_worker(api.temporal, api.database, held, task_queue=api.task_queue):
        first = await api.http.post("/v1/rounds", json={"tool_calls": CALLS, "wait": 0}, headers=headers)
        await asyncio.wait_for(held.reached.wait(), 5)
        await handle_of(api, agent.key_id, "order-48").terminate("by hand")
        await reconciler(api).reconcile(ReconcileRequest(0))
        async with api_bench(make_settings(tmp_path, database_url), None) as alone:
            refused = await alone.http.post("/v1/rounds", json={"tool_calls": CALLS}, headers=headers)
            url = f"/v1/rounds/{first.json()['round_id']}"
            kept = await alone.http.get(url, headers=headers)
        held.go_on.set()
        later = await api.http.post("/v1/rounds", json={"tool_calls": CALLS}, headers=headers)

    assert (refused.status_code, error_of(refused)["code"]) == (503, "engine_unavailable")
    assert (kept.json()["state"], statuses(kept)) == ("failed", ["succeeded/known", "failed/unknown"])
    assert (later.json()["state"], statuses(later)) == ("completed", ["succeeded/known", "failed/unknown"])
    assert held.sent == ["c1", "c2"]
