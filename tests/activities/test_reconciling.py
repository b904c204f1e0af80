"""What crashes leave behind is repaired, once, and what goes on is left alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError

from activities.finalizing import FinalizedRound, FinalizeRound, finalize
from activities.ledger import CallPlace, OpenCall, Owner, mark_call_sent
from activities.opening import open_call
from activities.reconciling import Reconciler, ReconcileReport, ReconcileRequest, Standing
from api.engine import Engine, RoundStart
from governance.canonical import JSON
from governance.codes import InvocationStatus, RoundState
from governance.resolutions import ResolutionKind
from governance.tool_cache import ToolCache
from models.audit import AuditEvent, AuditKind
from models.base import utc_now
from models.database import Database, ReadSession, WriteSession
from models.reconciliation import repeat_round
from models.resolution import load_open_retries
from models.round import Round, abandon_round, load_round_calls
from settings import Settings
from tests.models.frozen import freeze_world
from tests.support.rounds import RoundBench, round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.temporal_server import connect, running_temporal
from tests.support.world import Call, add_round, build_world
from tests.workflows.unknowns import SendsRunner, answered, resolve_only, unknown
from workflows.engine import TemporalEngine, retry_workflow_id
from workflows.messages import KEY_ATTRIBUTE, PROVIDER_ROUND, TOOLS_ATTRIBUTE, RoundInput, RoundResult
from workflows.provider_round import ProviderRound

pytestmark = pytest.mark.anyio

NOW = ReconcileRequest(0)


@workflow.defn(name=PROVIDER_ROUND)
class EndlessRound(ProviderRound):
    """A round that cannot write its end: it completes all the same, as rounds do after an hour of trying."""

    @workflow.init
    def __init__(self, request: RoundInput) -> None:
        super().__init__(request)

    @workflow.run
    async def run(self, request: RoundInput) -> RoundResult:
        return await super().run(request)

    async def _finalize(self, round_id: str, *, canceled: bool) -> FinalizedRound:
        del round_id
        return FinalizedRound(FinalizeRound("", canceled).state.value, 0, 0, 0, 0, 0)


async def reset_workflow(client: Client, workflow_id: str) -> None:
    """Do what the Temporal UI's button does: begin again at the first workflow task."""
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            reason="by hand",
            workflow_task_finish_event_id=4,
            request_id=uuid4().hex,
        )
    )


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


def reconciler(client: Client, database: Database, task_queue: str) -> Reconciler:
    return Reconciler(database, TemporalEngine(client, task_queue, 5.0, 2.0))


async def round_of(database: Database, round_id: str) -> Round:
    def read(session: ReadSession) -> Round:
        return session.get_one(Round, round_id)

    return await database.read(read)


async def test_a_round_that_was_only_requested_is_started(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = ScriptedRunner(echo)
    workflow_id = f"round:{task_queue}"
    round_id = await database.write(add_round, world.key_id, [Call("files-read")], workflow_id)
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        report = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
        again = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
        await temporal_client.get_workflow_handle(workflow_id).result()
        record = await bench.record(round_id)

    assert (report.started, report.repaired) == (1, 1)
    assert again.started == 0
    assert record.statuses() == ["succeeded"]
    assert runner.sent == ["call_0"]


async def test_a_worker_whose_clock_is_an_hour_ahead_starts_and_ends_nothing_twice(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    """To its reconciler, what was stored or started this instant looks an hour old."""
    world = await build_world(sqlite_database)
    ahead, runner = ReconcileRequest(-3600), ScriptedRunner(echo)
    workflow_id = f"round:{task_queue}"
    calls = [Call("files-read"), Call("files-write")]
    round_id = await sqlite_database.write(add_round, world.key_id, calls, workflow_id)
    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
        mine = reconciler(temporal_client, sqlite_database, task_queue)
        reports = await asyncio.gather(*(mine.reconcile(ahead) for _ in range(3)))
        await temporal_client.get_workflow_handle(workflow_id).result()
        record = await bench.record(round_id)

    assert {report.finalized + report.settled for report in reports} == {0}
    assert record.statuses() == ["succeeded", "succeeded"]
    assert runner.sent == ["call_0", "call_1"]


async def test_a_round_started_by_the_reconciler_looks_like_one_started_by_the_api(
    sqlite_database: Database, temporal_client: Client, task_queue: str, tmp_path: Path
) -> None:
    world = await build_world(sqlite_database)
    calls = [Call("files-read"), Call("files-write"), Call("no fit name")]
    round_id = await sqlite_database.write(add_round, world.key_id, calls, f"round:{task_queue}")
    settings = Settings(data_dir=tmp_path, task_queue=f"{task_queue}-api")
    api = Engine(temporal_client, settings, search_attributes=True, eager_start=False)
    start = RoundStart(round_id, world.key_id, "key", "", [call.name for call in calls], None, None)

    await reconciler(temporal_client, sqlite_database, task_queue).reconcile(NOW)
    await api.start_round(start)

    described = [
        await temporal_client.get_workflow_handle(workflow_id).describe()
        for workflow_id in (f"round:{task_queue}", start.workflow_id)
    ]
    mine, apis = [
        (
            dict(one.typed_search_attributes),
            await one.static_summary(),
            await one.static_details(),
        )
        for one in described
    ]
    assert mine == apis
    assert mine[0][KEY_ATTRIBUTE] == world.key_id
    assert mine[0][TOOLS_ATTRIBUTE] == ["files-read", "files-write"]
    assert mine[1] == "3 calls · files-read · files-write"


async def test_a_cluster_without_our_search_attributes_gets_the_round_without(
    sqlite_database: Database, task_queue: str, tmp_path: Path
) -> None:
    world = await build_world(sqlite_database)
    workflow_id = f"round:{task_queue}"
    round_id = await sqlite_database.write(add_round, world.key_id, [Call("files-read")], workflow_id)
    async with running_temporal(tmp_path) as server:
        client = await connect(server)
        names = [KEY_ATTRIBUTE.name, TOOLS_ATTRIBUTE.name]
        await client.operator_service.remove_search_attributes(
            RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=names)
        )
        async with round_worker(
            client, sqlite_database, ScriptedRunner(echo), task_queue=task_queue
        ) as bench:
            report = await reconciler(client, sqlite_database, task_queue).reconcile(NOW)
            await client.get_workflow_handle(workflow_id).result()
            record = await bench.record(round_id)

    assert report == ReconcileReport(started=1)
    assert record.statuses() == ["succeeded"]


async def test_a_round_that_got_a_503_is_never_started(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    round_id = await database.write(add_round, world.key_id, [Call("files-read")], f"round:{task_queue}")
    await database.write(abandon_round, round_id, "engine_unavailable")

    report = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
    again = await reconciler(temporal_client, database, task_queue).reconcile(NOW)

    assert (report, again) == (ReconcileReport(), ReconcileReport())


async def test_nothing_is_looked_into_before_its_grace_is_over(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    await sqlite_database.write(add_round, world.key_id, [Call("files-read")], f"round:{task_queue}")

    report = await reconciler(temporal_client, sqlite_database, task_queue).reconcile(ReconcileRequest(60))

    assert report == ReconcileReport()


@pytest.mark.parametrize("was_sent", [True, False], ids=["sent", "not sent"])
async def test_a_round_whose_workflow_is_gone_is_ended_truly(
    *, was_sent: bool, database: Database, temporal_client: Client, task_queue: str
) -> None:
    frozen = await freeze_world(database)
    place = CallPlace(frozen.round_id, 0, 0, "s0.c0")
    opened = await database.write(open_call, place, Owner("dead", "token"), frozen.tools)
    assert isinstance(opened, OpenCall)
    if was_sent:
        await database.write(mark_call_sent, opened, opened.send_id, None)

    report = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
    again = await reconciler(temporal_client, database, task_queue).reconcile(NOW)

    record = await RoundBench(temporal_client, database, task_queue).record(frozen.round_id)
    assert (report.finalized, again) == (1, ReconcileReport())
    assert (record.row.state, record.row.state_reason) == (RoundState.FAILED, "engine_lost_the_round")
    assert record.statuses() == ["failed", "not_started"]
    [invocation] = record.invocations.values()
    assert invocation.outcome.value == ("unknown" if was_sent else "known")
    assert record.row.has_unknown is was_sent

    def repairs(session: ReadSession) -> list[dict[str, JSON]]:
        rows = session.query(AuditEvent).where(AuditEvent.kind == AuditKind.RECONCILED)
        return [row.data for row in rows]

    [repair] = await database.read(repairs)
    assert repair["repair"] == "finalized"


async def test_a_round_that_was_terminated_in_the_engine_is_ended(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    started, go_on = asyncio.Event(), asyncio.Event()

    async def hang(call: OpenCall) -> JSON:
        started.set()
        await asyncio.wait_for(go_on.wait(), 20)
        return await echo(call)

    runner = ScriptedRunner(hang)
    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read"), Call("files-write")])
        await asyncio.wait_for(started.wait(), 10)
        await handle.terminate("by hand")
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        report = await reconciler(temporal_client, sqlite_database, task_queue).reconcile(NOW)
        again = await reconciler(temporal_client, sqlite_database, task_queue).reconcile(NOW)
        record = await bench.record(round_id)
        go_on.set()

    assert (report, again) == (ReconcileReport(finalized=1), ReconcileReport())
    assert (record.row.state, record.row.state_reason) == (RoundState.FAILED, "workflow_ended_early")
    assert record.statuses() == ["failed", "not_started"]
    assert record.row.has_unknown
    assert runner.sent == ["call_0"]


async def test_a_round_that_runs_is_left_alone(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    started, go_on = asyncio.Event(), asyncio.Event()

    async def hang(call: OpenCall) -> JSON:
        started.set()
        await asyncio.wait_for(go_on.wait(), 20)
        return await echo(call)

    async with round_worker(
        temporal_client, sqlite_database, ScriptedRunner(hang), task_queue=task_queue
    ) as bench:
        _, handle = await bench.start(world.key_id, [Call("files-read")])
        await asyncio.wait_for(started.wait(), 10)
        report = await reconciler(temporal_client, sqlite_database, task_queue).reconcile(NOW)
        go_on.set()
        result = await handle.result()

    assert report == ReconcileReport()
    assert result.succeeded == 1


async def test_a_retry_that_nobody_started_is_started(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = SendsRunner([unknown, answered])
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        record, _ = await bench.run(world.key_id, [Call("files-read")])
        resolved = await resolve_only(database, record.row.id, ResolutionKind.RETRY)
        assert resolved.retry is not None
        report = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
        await temporal_client.get_workflow_handle(retry_workflow_id(resolved.retry.retry_key)).result()
        again = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
        record = await bench.record(record.row.id)

    assert (report, again) == (ReconcileReport(retried=1), ReconcileReport())
    assert record.statuses() == [InvocationStatus.SUCCEEDED.value]
    assert runner.keys == ["s0.c0", "s0.c0/r1"]


async def test_a_repair_that_fails_is_told_and_keeps_no_other_from_being_made(
    database: Database, temporal_client: Client, task_queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(TemporalEngine):
        async def standing(self, workflow_id: str) -> Standing:
            if workflow_id.endswith("/broken"):
                raise RuntimeError("what nobody expected")
            return await super().standing(workflow_id)

    world = await build_world(database)
    for name in ("broken", "whole"):
        await database.write(add_round, world.key_id, [Call("files-read")], f"round:{task_queue}/{name}")
    async with round_worker(temporal_client, database, ScriptedRunner(echo), task_queue=task_queue):
        report = await Reconciler(database, Faulty(temporal_client, task_queue, 5.0, 2.0)).reconcile(NOW)
        result: RoundResult = await temporal_client.get_workflow_handle(
            f"round:{task_queue}/whole", result_type=RoundResult
        ).result()

    assert report == ReconcileReport(started=1, failed=1)
    assert result.succeeded == 1
    assert "what nobody expected" in caplog.text


async def test_retries_that_stay_refused_hide_no_newer_one(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    asked: list[str] = []
    async with round_worker(
        temporal_client, database, SendsRunner([unknown]), task_queue=task_queue
    ) as bench:
        for _ in range(3):
            record, _result = await bench.run(world.key_id, [Call("files-read")])
            asked.append((await resolve_only(database, record.row.id, ResolutionKind.RETRY)).invocation_id)

    seen: list[str] = []
    while page := await database.read(load_open_retries, seen[-1] if seen else None, 1):
        seen += [retry.invocation_id for retry in page]

    assert seen == sorted(asked)


async def test_a_round_whose_end_was_not_written_is_ended(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = ScriptedRunner(echo)
    async with round_worker(
        temporal_client, database, runner, task_queue=task_queue, workflow=EndlessRound
    ) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read")])
        await handle.result()
        before = await bench.record(round_id)
        report = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
        again = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
        after = await bench.record(round_id)

    assert before.row.state is RoundState.RUNNING
    assert (report, again) == (ReconcileReport(finalized=1), ReconcileReport())
    assert (after.row.state, after.row.state_reason, after.statuses()) == (
        RoundState.COMPLETED,
        None,
        ["succeeded"],
    )


@pytest.mark.parametrize("was_sent", [True, False], ids=["sent", "not sent"])
async def test_a_retry_whose_workflow_is_gone_is_settled_truly(
    *, was_sent: bool, database: Database, temporal_client: Client, task_queue: str
) -> None:
    """An invocation that runs and whose round has ended has nobody who would end it."""
    world = await build_world(database)
    async with round_worker(
        temporal_client, database, SendsRunner([unknown]), task_queue=task_queue
    ) as bench:
        record, _ = await bench.run(world.key_id, [Call("files-read")])
        resolved = await resolve_only(database, record.row.id, ResolutionKind.RETRY)
        assert resolved.retry is not None
        place = CallPlace(record.row.id, 0, 0, resolved.retry.activity_id)
        opened = await database.write(open_call, place, Owner("dead", "token"), ToolCache())
        assert isinstance(opened, OpenCall)
        if was_sent:
            await database.write(mark_call_sent, opened, opened.send_id, None)
        report = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
        again = await reconciler(temporal_client, database, task_queue).reconcile(NOW)
        record = await bench.record(record.row.id)

    assert (report, again) == (ReconcileReport(settled=1), ReconcileReport())
    retried = record.invocations[opened.invocation_id]
    outcome = "unknown" if was_sent else "known"
    assert (retried.status, retried.outcome.value) == (InvocationStatus.FAILED, outcome)
    assert record.row.has_unknown is was_sent


async def test_a_round_that_was_reset_in_the_engine_goes_on_and_is_left_alone(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    started, go_on = asyncio.Event(), asyncio.Event()

    async def hang(call: OpenCall) -> JSON:
        started.set()
        await asyncio.wait_for(go_on.wait(), 20)
        return await echo(call)

    runner = ScriptedRunner(hang)
    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read"), Call("files-write")])
        await asyncio.wait_for(started.wait(), 10)
        await reset_workflow(temporal_client, handle.id)
        report = await reconciler(temporal_client, sqlite_database, task_queue).reconcile(NOW)
        go_on.set()
        await temporal_client.get_workflow_handle(handle.id).result()
        again = await reconciler(temporal_client, sqlite_database, task_queue).reconcile(NOW)
        record = await bench.record(round_id)

    assert (report, again) == (ReconcileReport(), ReconcileReport())
    assert (record.row.state, record.statuses()) == (RoundState.COMPLETED, ["succeeded", "succeeded"])
    assert runner.sent == ["call_0", "call_1"]


async def test_a_cancel_of_a_call_that_nobody_heard_is_told_again(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    started = asyncio.Event()

    async def hang(_call: OpenCall) -> JSON:
        started.set()
        await asyncio.Event().wait()

    async with round_worker(
        temporal_client, sqlite_database, ScriptedRunner(hang), task_queue=task_queue
    ) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read")])
        await asyncio.wait_for(started.wait(), 10)
        await sqlite_database.write(ask_to_cancel, round_id)
        report = await reconciler(temporal_client, sqlite_database, task_queue).reconcile(NOW)
        await asyncio.wait_for(handle.result(), 10)
        again = await reconciler(temporal_client, sqlite_database, task_queue).reconcile(NOW)
        record = await bench.record(round_id)

    assert (report, again) == (ReconcileReport(canceled=1), ReconcileReport())
    assert record.statuses() == ["canceled"]


def ask_to_cancel(session: WriteSession, round_id: str) -> None:
    [call] = load_round_calls(session, round_id)
    call.cancel_requested_at = utc_now()


async def test_an_end_that_was_written_meanwhile_and_a_repeat_stay_as_they_are(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    """The reconciler looks at a round, and by the time it acts its caller has had it repeated."""
    frozen = await freeze_world(database)
    looked_at = await round_of(database, frozen.round_id)
    await reconciler(temporal_client, database, task_queue).reconcile(NOW)
    repeated = await database.write(repeat_round, frozen.round_id, "request")

    stale = FinalizeRound(frozen.round_id, failure="engine_lost_the_round", workflow_id=looked_at.workflow_id)
    counts = await database.write(finalize, stale)

    assert repeated.workflow_id == f"{looked_at.workflow_id}/2"
    assert counts.state == RoundState.REQUESTED.value
    assert (await round_of(database, frozen.round_id)).state is RoundState.REQUESTED
