"""What crashes leave behind is repaired, once, and what goes on is left alone."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client, WorkflowFailureError

from activities.ledger import CallPlace, OpenCall, Owner, mark_call_sent
from activities.opening import open_call
from activities.reconciling import Reconciler, ReconcileReport, ReconcileRequest
from governance.canonical import JSON
from governance.codes import InvocationStatus, RoundState
from governance.resolutions import ResolutionKind
from models.audit import AuditEvent, AuditKind
from models.database import Database, ReadSession
from models.round import Round, abandon_round
from tests.models.frozen import freeze_world
from tests.support.rounds import RoundBench, round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.world import Call, add_round, build_world
from tests.workflows.unknowns import SendsRunner, answered, resolve_only, unknown
from workflows.engine import TemporalEngine, retry_workflow_id

pytestmark = pytest.mark.anyio

NOW = ReconcileRequest(0)


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


async def test_a_round_that_got_a_503_is_never_started(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    round_id = await database.write(add_round, world.key_id, [Call("files-read")], f"round:{task_queue}")
    await database.write(abandon_round, round_id, "engine_unavailable")

    report = await reconciler(temporal_client, database, task_queue).reconcile(NOW)

    assert report == ReconcileReport()


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
        record = await bench.record(round_id)
        go_on.set()

    assert report.finalized == 1
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
        record = await bench.record(record.row.id)

    assert (report.retried, report.repaired) == (1, 1)
    assert record.statuses() == [InvocationStatus.SUCCEEDED.value]
    assert runner.keys == ["s0.c0", "s0.c0/r1"]
