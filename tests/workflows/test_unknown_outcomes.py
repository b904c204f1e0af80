"""What follows when nobody knows whether a call ran: the round goes on or waits, an operator decides."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError

from activities.ledger import MAX_SENDS, CallOutcome, OpenCall
from activities.reconciling import Reconciler, ReconcileRequest
from activities.runner import SendGate
from governance.canonical import JSON
from governance.codes import IdempotencyClass, InvocationOutcome, RoundState
from governance.resolutions import OnUnknown, ResolutionKind
from models.database import Database, ReadSession, WriteSession
from models.payload import load_payload
from models.resolution import NotUnknownError, RoundStillRunsError, Verdict, resolve
from models.round import Round, RoundCall, load_events
from models.send import load_sends
from tests.support.rounds import RoundBench, round_worker
from tests.support.scripted_runner import ScriptedRunner, text_result
from tests.support.world import Call, ConnectionPlan, build_world
from tests.workflows.unknowns import (
    SendsRunner,
    answered,
    open_questions,
    refused,
    resolve_only,
    unanswered,
    unknown,
)
from workflows.engine import TemporalEngine, retry_workflow_id
from workflows.messages import CANCEL_CALL_SIGNAL, RESOLVE_UPDATE

pytestmark = pytest.mark.anyio

KEYED = ConnectionPlan(idempotency=IdempotencyClass.KEYED)
PARALLEL = ConnectionPlan(parallel_safe=("read",))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


def engine(bench: RoundBench) -> TemporalEngine:
    return TemporalEngine(bench.client, bench.task_queue, 5.0, 2.0)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look at the database until something holds there; nobody tells when it changes."""
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110 - The database calls nobody.
            await asyncio.sleep(0.02)


async def _is(found: Awaitable[RoundState], wanted: RoundState) -> bool:
    return await found is wanted


async def _asked_again(database: Database, round_id: str, runner: SendsRunner) -> bool:
    return await open_questions(database, round_id) > 0 or len(runner.keys) == 3


async def until_waiting(database: Database, round_id: str) -> None:
    def read(session: ReadSession) -> RoundState:
        return session.get_one(Round, round_id).state

    await until(lambda: _is(database.read(read), RoundState.WAITING_UNKNOWN))


async def kinds_of(database: Database, round_id: str) -> list[str]:
    return [event.kind for event in await database.read(load_events, round_id, 0)]


async def test_by_default_a_round_goes_on_after_an_unknown_outcome(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = SendsRunner([unknown, answered])
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        record, result = await bench.run(world.key_id, [Call("files-read"), Call("files-write")])

    assert record.statuses() == ["failed", "succeeded"]
    assert (result.unknown, record.row.has_unknown) == (1, True)
    assert runner.keys == ["s0.c0", "s1.c0"]


@pytest.mark.parametrize("kind", [ResolutionKind.SUCCEEDED, ResolutionKind.FAILED])
async def test_a_waiting_round_goes_on_when_an_operator_says_what_happened(
    kind: ResolutionKind, database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = SendsRunner([unknown, answered])
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        round_id, handle = await bench.start(
            world.key_id, [Call("files-read"), Call("files-write")], on_unknown=OnUnknown.WAIT
        )
        await until_waiting(database, round_id)
        assert runner.keys == ["s0.c0"]
        result_text = "found" if kind is ResolutionKind.SUCCEEDED else None
        resolved = await resolve_only(database, round_id, kind, result_text)
        assert await engine(bench).wake_round(resolved.workflow_id, resolved.invocation_id)
        result = await handle.result()
        record = await bench.record(round_id)

    assert runner.keys == ["s0.c0", "s1.c0"]
    # The first terminal status stands; what the operator said is counted.
    assert record.statuses() == ["failed", "succeeded"]
    assert (result.succeeded, result.unknown) == (2 if kind is ResolutionKind.SUCCEEDED else 1, 0)
    assert not record.row.has_unknown
    invocation = record.invocations[record.calls[0].invocation_id or ""]
    assert (invocation.outcome, invocation.resolution_kind) == (InvocationOutcome.UNKNOWN, kind)
    if kind is ResolutionKind.SUCCEEDED:
        assert invocation.resolution is not None
        stored = await database.read(load_payload, invocation.resolution["result_digest"])
        assert stored is not None
        assert b"found" in stored
    kinds = await kinds_of(database, round_id)
    assert kinds.index("round_waiting") < kinds.index("round_resumed") < kinds.index("round_completed")


async def test_a_waiting_round_makes_the_call_again_under_a_key_of_its_own(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = SendsRunner([unknown, unknown, answered])
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read")], on_unknown=OnUnknown.WAIT)
        for _ in range(2):
            await until_waiting(database, round_id)
            resolved = await resolve_only(database, round_id, ResolutionKind.RETRY)
            await engine(bench).wake_round(resolved.workflow_id, resolved.invocation_id)
            await until(lambda: _asked_again(database, round_id, runner))
        result = await handle.result()
        record = await bench.record(round_id)

    assert runner.keys == ["s0.c0", "s0.c0/r1", "s0.c0/r2"]
    assert record.statuses() == ["succeeded"]
    assert sorted(row.attempt_no for row in record.invocations.values()) == [1, 2, 3]
    assert (result.succeeded, result.unknown, record.row.has_unknown) == (1, 0, False)


async def test_a_forged_wake_has_no_effect(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    runner = SendsRunner([unknown])
    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read")], on_unknown=OnUnknown.WAIT)
        await until_waiting(sqlite_database, round_id)
        await handle.execute_update(RESOLVE_UPDATE, "nothing-was-written-down")
        await until_waiting(sqlite_database, round_id)
        assert await open_questions(sqlite_database, round_id) == 1
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        record = await bench.record(round_id)

    assert record.row.state is RoundState.CANCELED
    assert record.row.has_unknown


async def test_a_round_that_does_not_wait_refuses_to_be_woken(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    started = asyncio.Event()

    async def slow(_call: OpenCall) -> JSON:
        started.set()
        await asyncio.Event().wait()

    async with round_worker(
        temporal_client, sqlite_database, ScriptedRunner(slow), task_queue=task_queue
    ) as bench:
        _, handle = await bench.start(world.key_id, [Call("files-read")])
        await asyncio.wait_for(started.wait(), 10)
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(RESOLVE_UPDATE, "x")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()


async def test_an_operator_retries_a_call_of_an_ended_round(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = SendsRunner([unknown, answered])
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        record, _ = await bench.run(world.key_id, [Call("files-read")])
        round_id = record.row.id
        resolved = await resolve_only(database, round_id, ResolutionKind.RETRY)
        assert resolved.retry is not None
        assert await engine(bench).retry_call(resolved.retry)
        assert await engine(bench).retry_call(resolved.retry), "starting it twice starts it once"
        await temporal_client.get_workflow_handle(retry_workflow_id(resolved.retry.retry_key)).result()
        record = await bench.record(round_id)

    assert runner.keys == ["s0.c0", "s0.c0/r1"]
    assert record.statuses() == ["succeeded"]
    assert (record.row.state, record.row.has_unknown) == (RoundState.COMPLETED, False)


async def test_only_an_open_question_can_be_resolved_and_only_once(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    async with round_worker(
        temporal_client, database, SendsRunner([unknown]), task_queue=task_queue
    ) as bench:
        record, _ = await bench.run(world.key_id, [Call("files-read")])
    resolved = await resolve_only(database, record.row.id, ResolutionKind.FAILED)

    with pytest.raises(NotUnknownError) as again:
        await database.write(_resolve_again, resolved.invocation_id)

    assert again.value.resolved is ResolutionKind.FAILED


def _resolve_again(session: WriteSession, invocation_id: str) -> None:
    resolve(session, invocation_id, Verdict(ResolutionKind.SUCCEEDED, "admin"))


async def test_a_call_of_a_round_that_goes_on_cannot_be_retried_yet(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    second, go_on = asyncio.Event(), asyncio.Event()

    class HeldRunner:
        def __init__(self) -> None:
            self.inner = SendsRunner([unknown, answered])

        async def run(self, call: OpenCall, gate: SendGate) -> CallOutcome:
            if call.place.position == 1:
                second.set()
                await asyncio.wait_for(go_on.wait(), 10)
            return await self.inner.run(call, gate)

    async with round_worker(temporal_client, sqlite_database, HeldRunner(), task_queue=task_queue) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read"), Call("files-write")])
        await asyncio.wait_for(second.wait(), 10)
        with pytest.raises(RoundStillRunsError):
            await resolve_only(sqlite_database, round_id, ResolutionKind.RETRY)
        go_on.set()
        await handle.result()


async def test_a_refused_send_is_repeated_and_the_wait_is_the_servers(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = SendsRunner([refused(0.5), answered])
    loop = asyncio.get_running_loop()
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        began = loop.time()
        record, _ = await bench.run(world.key_id, [Call("files-read")])

    assert record.statuses() == ["succeeded"]
    assert loop.time() - began >= 0.5
    assert record.row.repeat_count == 1
    sends = await sends_of(database, record.calls[0])
    assert sends == ["refused", "answered"]


async def test_a_repeat_leaves_no_traceback_in_the_log(
    sqlite_database: Database, temporal_client: Client, task_queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = await build_world(sqlite_database)
    runner = SendsRunner([refused(), answered])
    with caplog.at_level(logging.DEBUG, "temporalio.activity"):
        async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
            record, _ = await bench.run(world.key_id, [Call("files-read")])

    assert record.statuses() == ["succeeded"]
    told = [entry.levelname for entry in caplog.records if "as failed" in entry.getMessage()]
    assert told == ["DEBUG"]
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING] == []


async def test_a_server_that_asks_for_a_long_wait_is_not_asked_again(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    runner = SendsRunner([refused(3600)])
    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
        record, result = await bench.run(world.key_id, [Call("files-read")])

    assert (record.statuses(), result.unknown) == (["failed"], 0)
    assert len(runner.keys) == 1


async def test_a_call_is_sent_three_times_at_most(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = SendsRunner([refused()])
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        record, result = await bench.run(world.key_id, [Call("files-read")])

    assert (record.statuses(), result.unknown) == (["failed"], 0)
    assert len(runner.keys) == MAX_SENDS


async def test_a_round_has_one_budget_of_repeats_for_all_its_calls(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PARALLEL)
    runner = SendsRunner([refused()])
    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
        record, _ = await bench.run(world.key_id, [Call("files-read") for _ in range(20)])

    assert set(record.statuses()) == {"failed"}
    # Each call is sent once, and the round repeats 24 times in all.
    assert len(runner.keys) == 20 + 24


async def test_a_keyed_call_without_an_answer_is_repeated_with_the_same_key(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, KEYED)
    runner = SendsRunner([unanswered, answered])
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        record, _ = await bench.run(world.key_id, [Call("files-read")])

    assert record.statuses() == ["succeeded"]
    assert runner.keys == ["s0.c0", "s0.c0"]
    assert await sends_of(database, record.calls[0]) == ["unknown", "answered"]


async def test_a_call_that_may_have_run_is_never_settled_as_not_run(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, KEYED)
    runner = SendsRunner([unanswered, refused(), refused()])
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        record, result = await bench.run(world.key_id, [Call("files-read")])

    assert await sends_of(database, record.calls[0]) == ["unknown", "refused", "refused"]
    assert (record.statuses(), result.unknown) == (["failed"], 1)


async def sends_of(database: Database, call: RoundCall) -> list[str]:
    def read(session: ReadSession) -> list[str]:
        return [str(send.outcome) for send in load_sends(session, call.invocation_id or "")]

    return await database.read(read)


async def test_one_call_is_canceled_and_the_others_go_on(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, PARALLEL)
    both = asyncio.Event()
    running: list[str] = []

    async def script(call: OpenCall) -> JSON:
        running.append(call.tool_call_id)
        if len(running) == 2:
            both.set()
        if call.tool_call_id == "call_0":
            await asyncio.Event().wait()
        return text_result("fine")

    async with round_worker(
        temporal_client, database, ScriptedRunner(script), task_queue=task_queue
    ) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read"), Call("files-read")])
        await asyncio.wait_for(both.wait(), 10)
        await handle.signal(CANCEL_CALL_SIGNAL, 0)
        result = await handle.result()
        record = await bench.record(round_id)

    assert record.statuses() == ["canceled", "succeeded"]
    assert (result.state, result.canceled, result.unknown) == ("completed", 1, 1)


async def test_a_call_that_is_canceled_before_its_turn_is_never_sent(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    first, go_on = asyncio.Event(), asyncio.Event()

    async def script(_call: OpenCall) -> JSON:
        first.set()
        await asyncio.wait_for(go_on.wait(), 10)
        return text_result("fine")

    runner = ScriptedRunner(script)
    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read"), Call("files-write")])
        await asyncio.wait_for(first.wait(), 10)

        def request(session: WriteSession) -> None:
            row = session.get_one(Round, round_id)
            session.get_one(RoundCall, (round_id, 1)).cancel_requested_at = row.created_at

        await sqlite_database.write(request)
        go_on.set()
        result = await handle.result()
        record = await bench.record(round_id)

    assert record.statuses() == ["succeeded", "canceled"]
    assert (result.unknown, runner.sent) == (0, ["call_0"])


async def test_the_reconciler_tells_a_waiting_round_what_it_has_not_heard(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    runner = SendsRunner([unknown])
    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read")], on_unknown=OnUnknown.WAIT)
        await until_waiting(sqlite_database, round_id)
        await resolve_only(sqlite_database, round_id, ResolutionKind.FAILED)

        report = await Reconciler(sqlite_database, engine(bench)).reconcile(ReconcileRequest(0))
        result = await handle.result()

    assert (report.woken, report.repaired) == (1, 1)
    assert (result.state, result.unknown) == ("completed", 0)
