"""A connection's limit of calls at once: held over all workers, first come first served, and never stuck."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError

from activities.ledger import CallOutcome, OpenCall
from activities.runner import SendGate
from activities.slots import SLOT_FREE
from api.embedded import EmbeddedTemporal
from governance.canonical import JSON
from models.base import utc_now
from models.connection import Connection
from models.database import Database, WriteSession
from models.round import RoundCall
from models.slot import ConnectionSlot, load_slots
from tests.support.live_server import live_server
from tests.support.rounds import RoundBench, RoundRecord, round_worker
from tests.support.scripted_runner import ScriptedRunner, echo, text_result
from tests.support.statements import statements_of
from tests.support.world import Call, ConnectionPlan, World, add_connection, build_world
from tests.workflows.unknowns import answered, refused
from workflows.messages import CANCEL_CALL_SIGNAL

pytestmark = pytest.mark.anyio

EVENTS_OF_A_LOOK = 10
"""History events of one look for a slot at most: timer or signal, activity, workflow tasks."""


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


@dataclass
class Upstream:
    """A server that counts the calls it works on, and holds each until it is let go."""

    now: int = 0
    most: int = 0
    order: list[int] = field(default_factory=list[int])
    may_go: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def answer(self, request: Request) -> PlainTextResponse:
        body = await request.json()
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(body["n"])
        async with self.arrived:
            self.arrived.notify_all()
        try:
            await self.may_go.wait()
        finally:
            self.now -= 1
        return PlainTextResponse(str(body["n"]))

    async def has_received(self, count: int) -> None:
        async with asyncio.timeout(20), self.arrived:
            await self.arrived.wait_for(lambda: len(self.order) >= count)


@asynccontextmanager
async def upstream() -> AsyncIterator[tuple[Upstream, str]]:
    served = Upstream()
    async with live_server(Starlette(routes=[Route("/", served.answer, methods=["POST"])])) as url:
        yield served, url
        served.may_go.set()


@dataclass
class Child:
    """A worker process."""

    process: asyncio.subprocess.Process

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def worker_process(*arguments: str, lease_s: float = 20.0) -> AsyncIterator[Child]:
    child = Child(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.workflows.capped_worker", *arguments, str(lease_s)),
            stdout=asyncio.subprocess.PIPE,
        )
    )
    try:
        assert child.process.stdout is not None
        async with asyncio.timeout(60):
            assert await child.process.stdout.readline() == b"ready\n"
        yield child
    finally:
        await child.kill()


async def tickets(database: Database, connection_id: str) -> tuple[ConnectionSlot, ...]:
    return await database.read(load_slots, connection_id)


async def until(look: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not await look():  # noqa: ASYNC110 - the database has no event to wait for.
            await asyncio.sleep(0.01)


def capped(cap: int | None = 1, timeout_s: float = 30.0) -> ConnectionPlan:
    return ConnectionPlan(parallel_safe=("read",), max_concurrency=cap, queue_timeout_s=timeout_s)


async def test_two_workers_hold_one_cap_and_serve_calls_in_the_order_of_their_arrival(
    database_url: str, temporal_client: Client, temporal_server: EmbeddedTemporal, task_queue: str
) -> None:
    async with Database(database_url) as database, upstream() as (served, url):
        world = await build_world(database, capped(2))
        bench = RoundBench(temporal_client, database, task_queue, heartbeat_timeout_s=20.0)
        to_worker = (database_url, temporal_server.address, task_queue, url)
        async with worker_process(*to_worker), worker_process(*to_worker):
            started = []
            for number in range(12):
                started.append(await bench.start(world.key_id, [Call("files-read", {"n": number})]))

                async def has_come(count: int = number + 1) -> bool:
                    return len(await tickets(database, world.connection_id)) == count

                await until(has_come)
            held = served.now
            served.may_go.set()
            async with asyncio.timeout(20):
                results = [await handle.result() for _, handle in started]

    assert held == 2
    assert served.most == 2
    assert [result.succeeded for result in results] == [1] * 12
    # Two are served at once, and of those either may be there first.
    assert all(abs(place - number) <= 1 for place, number in enumerate(served.order)), served.order


async def test_the_slot_of_a_killed_worker_comes_back(
    database_url: str, temporal_client: Client, temporal_server: EmbeddedTemporal, task_queue: str
) -> None:
    async with Database(database_url) as database, upstream() as (served, url):
        world = await build_world(database, capped(1))
        bench = RoundBench(temporal_client, database, task_queue, heartbeat_timeout_s=1.0)
        to_worker = (database_url, temporal_server.address, task_queue, url)
        async with worker_process(*to_worker, lease_s=1.0) as first:
            lost, lost_handle = await bench.start(world.key_id, [Call("files-read", {"n": 0})])
            await served.has_received(1)
            next_, next_handle = await bench.start(world.key_id, [Call("files-read", {"n": 1})])
            await first.kill()
            served.may_go.set()
            async with worker_process(*to_worker, lease_s=1.0), asyncio.timeout(30):
                await lost_handle.result()
                await next_handle.result()
        records = [await bench.record(lost), await bench.record(next_)]

    assert [record.statuses() for record in records] == [["failed"], ["succeeded"]]
    assert outcomes(records[0]) == ["unknown"]
    assert served.order == [0, 1]


async def test_a_hung_call_fills_no_slot_of_another_connection(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, capped(1))

    def add_other(session: WriteSession) -> None:
        add_connection(session, ConnectionPlan(name="mail", max_concurrency=1, parallel_safe=("read",)))

    await database.write(add_other)
    hold = asyncio.Event()

    async def hang(call: OpenCall) -> JSON:
        if call.snapshot.connection_name == "files":
            await hold.wait()
        return text_result("done")

    runner = ScriptedRunner(hang)
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        _, hung = await bench.start(world.key_id, [Call("files-read", id="hung")])
        await until(lambda: sent(runner, 1))
        _, waits = await bench.start(world.key_id, [Call("files-read", id="waits")])
        async with asyncio.timeout(5):
            other, _ = await bench.run(world.key_id, [Call("mail-read", id=f"other_{n}") for n in range(3)])
        sent_meanwhile = list(runner.sent)
        hold.set()
        async with asyncio.timeout(10):
            results = [await hung.result(), await waits.result()]

    assert other.statuses() == ["succeeded"] * 3
    assert sorted(sent_meanwhile) == ["hung", "other_0", "other_1", "other_2"]
    assert [result.succeeded for result in results] == [1, 1]


async def sent(runner: ScriptedRunner, count: int) -> bool:
    return len(runner.sent) >= count


async def test_a_call_that_waits_too_long_fails_as_busy_and_is_not_sent(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, capped(1, timeout_s=0.4))
    hold = asyncio.Event()

    async def hang(_call: OpenCall) -> JSON:
        await hold.wait()
        return text_result("done")

    runner = ScriptedRunner(hang)
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        _, hung = await bench.start(world.key_id, [Call("files-read", id="hung")])
        await until(lambda: sent(runner, 1))
        async with asyncio.timeout(5):
            record, _ = await bench.run(world.key_id, [Call("files-read", id="late")])
        hold.set()
        await hung.result()

    [invocation] = record.invocations.values()
    assert invocation.error is not None
    shown = {name: invocation.error[name] for name in ("code", "retryable", "classification")}
    assert shown == {"code": "busy", "retryable": True, "classification": "transport"}
    assert invocation.error["details"]["outcome"] == "not_sent"
    assert (record.statuses(), outcomes(record)) == (["failed"], ["known"])
    assert runner.sent == ["hung"]
    assert await tickets(database, world.connection_id) == ()


async def test_a_connection_without_a_cap_costs_no_statement(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, capped(None))
    async with round_worker(temporal_client, database, ScriptedRunner(echo), task_queue=task_queue) as bench:
        with statements_of(database, "connection_slots", "key_quotas", "chat_leases") as seen:
            record, _ = await bench.run(world.key_id, [Call("files-read"), Call("files-write")])

    assert record.statuses() == ["succeeded", "succeeded"]
    assert seen == []


async def test_a_queue_costs_a_bounded_history_and_is_woken_rather_than_looking(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, capped(1))
    most = now = 0

    async def work(call: OpenCall) -> JSON:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return text_result(call.tool_call_id)

    async with round_worker(temporal_client, database, ScriptedRunner(work), task_queue=task_queue) as bench:
        round_id, handle = await bench.start(world.key_id, [Call("files-read") for _ in range(20)])
        async with asyncio.timeout(30):
            result = await handle.result()
        history = await bench.history(handle)

    assert (result.succeeded, most) == (20, 1)
    # A call looks when it comes, when it is woken, and now and then between.
    assert len(history) <= 20 * 5 * EVENTS_OF_A_LOOK
    assert (await bench.record(round_id)).statuses() == ["succeeded"] * 20


async def test_a_call_that_is_to_be_repeated_wakes_who_has_its_slot_meanwhile(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, capped(1))
    holds = asyncio.Event()

    @dataclass
    class RefusedOnce:
        """Refuses the first send, once it is let go, and answers every other."""

        sends: int = 0

        async def run(self, call: OpenCall, gate: SendGate) -> CallOutcome:
            await gate.before_send(None)
            self.sends += 1
            if self.sends > 1:
                return answered(call)
            await holds.wait()
            return refused(after_s=60)(call)

    async with round_worker(temporal_client, database, RefusedOnce(), task_queue=task_queue) as bench:
        _, first = await bench.start(world.key_id, [Call("files-read")])

        async def queued(count: int) -> bool:
            return len(await tickets(database, world.connection_id)) == count

        await until(lambda: queued(1))
        _, second = await bench.start(world.key_id, [Call("files-read")])
        await until(lambda: queued(2))
        holds.set()
        async with asyncio.timeout(30):
            result = await second.result()
        history = await bench.history(second)
        await first.cancel()

    signals = [
        event.workflow_execution_signaled_event_attributes.signal_name
        for event in history
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]
    assert (result.succeeded, signals) == (1, [SLOT_FREE])


async def test_a_canceled_call_leaves_the_queue_and_the_next_one_goes_on(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, capped(1))
    hold = asyncio.Event()

    async def hang(call: OpenCall) -> JSON:
        if call.tool_call_id == "hung":
            await hold.wait()
        return text_result("done")

    runner = ScriptedRunner(hang)
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        _, hung = await bench.start(world.key_id, [Call("files-read", id="hung")])
        await until(lambda: sent(runner, 1))
        one, canceled_call = await bench.start(world.key_id, [Call("files-read", id="canceled")])
        await until(lambda: queued(database, world, 2))
        _, canceled_round = await bench.start(world.key_id, [Call("files-read", id="given_up")])
        await until(lambda: queued(database, world, 3))
        _, last = await bench.start(world.key_id, [Call("files-read", id="last")])
        await until(lambda: queued(database, world, 4))
        await database.write(request_cancel, one)
        await canceled_call.signal(CANCEL_CALL_SIGNAL, 0)
        await canceled_round.cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await canceled_round.result()
        await canceled_call.result()
        hold.set()
        async with asyncio.timeout(5):
            results = [await hung.result(), await last.result()]

    assert isinstance(ended.value.cause, CancelledError)
    assert (await bench.record(one)).statuses() == ["canceled"]
    assert [result.succeeded for result in results] == [1, 1]
    assert runner.sent == ["hung", "last"]


async def queued(database: Database, world: World, count: int) -> bool:
    return len(await tickets(database, world.connection_id)) == count


def request_cancel(session: WriteSession, round_id: str) -> None:
    session.get_one(RoundCall, (round_id, 0)).cancel_requested_at = utc_now()


async def test_a_cap_that_is_taken_away_lets_everybody_through(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, capped(1))
    hold = asyncio.Event()

    async def hang(call: OpenCall) -> JSON:
        if call.tool_call_id == "hung":
            await hold.wait()
        return text_result("done")

    def uncap(session: WriteSession) -> None:
        session.get_one(Connection, world.connection_id).max_concurrency = None

    runner = ScriptedRunner(hang)
    async with round_worker(temporal_client, database, runner, task_queue=task_queue) as bench:
        _, hung = await bench.start(world.key_id, [Call("files-read", id="hung")])
        await until(lambda: sent(runner, 1))
        _, waits = await bench.start(world.key_id, [Call("files-read", id="waits")])
        await until(lambda: queued(database, world, 2))
        await database.write(uncap)
        async with asyncio.timeout(5):
            freed = await waits.result()
        hold.set()
        await hung.result()

    assert freed.succeeded == 1


def outcomes(record: RoundRecord) -> list[str]:
    return [invocation.outcome.value for invocation in record.invocations.values()]
