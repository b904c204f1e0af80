"""A round through the real workflow, the real activities and a real database; only the tools are scripted."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from activities.freezing import ROUND_ABANDONED
from activities.ledger import OpenCall
from governance.canonical import JSON, canonical_bytes
from governance.codes import InvocationOutcome, RoundState
from models.database import Database
from models.payload import load_payload
from models.round import abandon_round
from tests.support.rounds import barrier_holds, round_worker, stage_spans
from tests.support.scripted_runner import ScriptedRunner, echo, text_result
from tests.support.world import Call, ConnectionPlan, add_round, build_world
from workflows.messages import PROVIDER_ROUND, InlineCall, RoundInput, RoundResult
from workflows.provider_round import ProviderRound

pytestmark = pytest.mark.anyio

PARALLEL = ConnectionPlan(parallel_safe=("read",))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


async def test_a_round_runs_its_calls_and_completes(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = ScriptedRunner(echo)

    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        record, result = await bench.run(
            world.key_id, [Call("files-read", {"path": "a"}), Call("files-write", {"path": "b"})]
        )

    assert record.statuses() == ["succeeded", "succeeded"]
    assert (result.state, result.succeeded, result.failed) == ("completed", 2, 0)
    assert runner.sent == ["call_0", "call_1"]


async def test_refused_calls_become_errors_and_stop_no_other_call(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    plan = ConnectionPlan(tools={"add": schema, "drop": {"type": "object"}}, tools_to_execute=("add",))
    world = await build_world(database, plan)
    runner = ScriptedRunner(echo)

    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        record, result = await bench.run(
            world.key_id,
            [
                Call("files-add", {"n": 1}, "a"),
                Call("files-drop", {}, "b"),
                Call("files-add", {"n": "one"}, "c"),
                Call("files-nothing", {}, "d"),
                Call("files-add", {"n": 2}, "a"),
                Call("files-add", {"n": 3}, "e"),
            ],
        )

    assert record.statuses() == [
        "succeeded",
        "tool_not_allowed",
        "invalid_arguments",
        "tool_not_found",
        "duplicate_call_id",
        "succeeded",
    ]
    assert (result.succeeded, result.refused) == (2, 4)
    assert runner.sent == ["a", "e"]


async def test_a_stage_starts_only_after_every_call_of_the_stage_before_it(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, PARALLEL)
    rolls = random.Random(7)

    async def lasting(call: OpenCall) -> JSON:
        await asyncio.sleep(rolls.uniform(0, 0.05))
        return text_result(call.tool_call_id)

    names = ["files-read"] * 3 + ["files-write"] * 2 + ["files-read"] * 2 + ["files-write"]
    async with round_worker(
        temporal_client, database, ScriptedRunner(lasting), task_queue=task_queue
    ) as bench:
        _, handle = await bench.start(world.key_id, [Call(name) for name in names])
        await handle.result()
        history = await bench.history(handle)

    sizes = [len(scheduled) for scheduled, _ in stage_spans(history).values()]
    assert sizes == [3, 1, 1, 2, 1]
    assert barrier_holds(history)


@workflow.defn(name=PROVIDER_ROUND)
class ImpatientRound(ProviderRound):
    """The mutant that the barrier test must catch: the next stage starts after the first completion."""

    @workflow.init
    def __init__(self, request: RoundInput) -> None:
        super().__init__(request)

    @workflow.run
    async def run(self, request: RoundInput) -> RoundResult:
        return await super().run(request)

    async def _run_stage(self, round_id: str, number: int, calls: Sequence[object]) -> None:
        handles = [self._start(round_id, number, index, call) for index, call in enumerate(calls)]  # type: ignore[arg-type]
        await workflow.wait(handles, return_when=asyncio.FIRST_COMPLETED)


async def test_the_barrier_check_catches_a_round_that_starts_early(
    tmp_path: Path, sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    del tmp_path
    world = await build_world(sqlite_database, PARALLEL)
    last = asyncio.Event()

    async def first_is_quick(call: OpenCall) -> JSON:
        if call.tool_call_id == "call_1":
            await asyncio.wait_for(last.wait(), 5)
        if call.tool_call_id == "call_2":
            last.set()
        return text_result(call.tool_call_id)

    async with round_worker(
        temporal_client,
        sqlite_database,
        ScriptedRunner(first_is_quick),
        task_queue=task_queue,
        workflow=ImpatientRound,
    ) as bench:
        calls = [Call("files-read"), Call("files-read"), Call("files-write")]
        _, handle = await bench.start(world.key_id, calls)
        await handle.result()
        history = await bench.history(handle)

    assert not barrier_holds(history)


async def test_sixty_calls_of_one_round_all_run_once(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, PARALLEL)
    runner = ScriptedRunner(echo)

    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        record, result = await bench.run(
            world.key_id, [Call("files-read", {"n": number}) for number in range(60)]
        )

    assert record.statuses() == ["succeeded"] * 60
    assert result.succeeded == 60
    assert sorted(runner.sent) == sorted(f"call_{number}" for number in range(60))


async def test_a_call_that_hangs_holds_up_no_other_call_of_its_stage(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PARALLEL)
    others = asyncio.Event()
    answered: set[str] = set()

    async def first_waits_for_all_others(call: OpenCall) -> JSON:
        if call.tool_call_id == "call_0":
            await asyncio.wait_for(others.wait(), 60)
        answered.add(call.tool_call_id)
        if len(answered) == 109:
            others.set()
        return text_result(call.tool_call_id)

    runner = ScriptedRunner(first_waits_for_all_others)
    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue) as bench:
        calls = [Call("files-read", {"n": number}) for number in range(110)]
        record, result = await bench.run(world.key_id, calls)

    assert result.succeeded == 110
    assert record.statuses() == ["succeeded"] * 110


async def test_a_cancel_between_two_chunks_starts_no_more_and_ends_every_call(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PARALLEL)
    started = asyncio.Event()

    async def endless(_call: OpenCall) -> JSON:
        started.set()
        await asyncio.Event().wait()
        return None

    async with round_worker(
        temporal_client, sqlite_database, ScriptedRunner(endless), task_queue=task_queue
    ) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read") for _ in range(110)])
        await started.wait()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        record = await bench.record(round_id)

    assert record.row.state is RoundState.CANCELED
    assert set(record.statuses()) <= {"canceled", "not_started", "failed"}


async def test_arguments_and_results_never_enter_the_history(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)

    async def secret_answer(call: OpenCall) -> JSON:
        return text_result(f"answer-to-{call.arguments['path']}-RESULTMARK")

    async with round_worker(
        temporal_client, sqlite_database, ScriptedRunner(secret_answer), task_queue=task_queue
    ) as bench:
        _, handle = await bench.start(world.key_id, [Call("files-read", {"path": "ARGUMENTMARK"})])
        await handle.result()
        history = str(await bench.history(handle))

    assert "files-read" in history
    assert "ARGUMENTMARK" not in history
    assert "RESULTMARK" not in history


async def test_a_three_mebibyte_result_is_stored_whole(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    text = "x" * (3 * 1024 * 1024)

    async def big(_call: OpenCall) -> JSON:
        return text_result(text)

    async with round_worker(temporal_client, database, ScriptedRunner(big), task_queue=task_queue) as bench:
        record, _ = await bench.run(world.key_id, [Call("files-read")])

    [invocation] = record.invocations.values()
    assert invocation.response_digest is not None
    stored = await database.read(load_payload, invocation.response_digest)
    assert stored == canonical_bytes(text_result(text))


async def test_a_round_costs_three_transactions_and_three_for_each_call(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)

    async with round_worker(
        temporal_client, sqlite_database, ScriptedRunner(echo), task_queue=task_queue
    ) as bench:
        before = sqlite_database.counts.writes, sqlite_database.counts.reads
        _, handle = await bench.start(world.key_id, [Call("files-read"), Call("files-write")])
        await handle.result()
        writes, reads = sqlite_database.counts.writes - before[0], sqlite_database.counts.reads - before[1]

    # The round's three are the request's, the freeze's and the finalize's.
    assert (writes, reads) == (3 + 3 * 2, 0)


@pytest.mark.parametrize(
    ("names", "stages"),
    [
        (["files-write"], 1),
        (["files-read"] * 4, 1),
        (["files-write"] * 3, 3),
        (["files-read", "files-read", "files-write", "files-read"], 3),
    ],
    ids=["one", "one stage of four", "three serial", "mixed"],
)
async def test_a_round_costs_a_bounded_number_of_history_events(
    names: list[str], stages: int, sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PARALLEL)

    async with round_worker(
        temporal_client, sqlite_database, ScriptedRunner(echo), task_queue=task_queue
    ) as bench:
        _, handle = await bench.start(world.key_id, [Call(name) for name in names])
        await handle.result()
        history = await bench.history(handle)

    assert len(history) <= 5 + 6 * len(names) + 3 * stages + 6


async def test_canceling_a_round_tells_its_call_and_starts_nothing_more(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    started, told = asyncio.Event(), asyncio.Event()

    async def endless(_call: OpenCall) -> JSON:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            raise

    runner = ScriptedRunner(endless)
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-write"), Call("files-write")])
        await asyncio.wait_for(started.wait(), 5)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        record = await bench.record(round_id)

    assert isinstance(failure.value.cause, CancelledError)
    assert told.is_set()
    assert runner.sent == ["call_0"]
    assert record.statuses() == ["canceled", "not_started"]
    assert record.row.state is RoundState.CANCELED
    [invocation] = record.invocations.values()
    assert invocation.outcome is InvocationOutcome.UNKNOWN
    assert record.row.has_unknown


async def test_an_abandoned_round_is_never_run(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)
    runner = ScriptedRunner(echo)

    async with round_worker(temporal_client, sqlite_database, runner, task_queue=task_queue):
        workflow_id = f"round:{task_queue}"
        round_id = await sqlite_database.write(add_round, world.key_id, [Call("files-read")], workflow_id)
        await sqlite_database.write(abandon_round, round_id, "engine unavailable")
        with pytest.raises(WorkflowFailureError) as failure:
            await temporal_client.execute_workflow(
                ProviderRound.run,
                RoundInput(world.key_id, round_id, round_id, search_attributes=False),
                id=workflow_id,
                task_queue=task_queue,
            )

    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == ROUND_ABANDONED
    assert runner.sent == []


async def test_a_round_started_through_temporal_alone_is_stored_and_run(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database)
    runner = ScriptedRunner(echo)

    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        result = await temporal_client.execute_workflow(
            ProviderRound.run,
            RoundInput(
                world.key_id,
                "direct",
                calls=[InlineCall("c1", "files-read", '{"path":"a"}'), InlineCall("c2", "files-nothing")],
                search_attributes=False,
            ),
            id=f"round:{world.key_id}:{task_queue}",
            task_queue=task_queue,
        )
        record = await bench.record(result.round_id)

    assert record.statuses() == ["succeeded", "tool_not_found"]
    assert runner.sent == ["c1"]
