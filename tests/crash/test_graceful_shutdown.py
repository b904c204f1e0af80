"""A worker that is told to stop finishes its calls or hands them over; another real worker goes on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest

from models.database import Database, ReadSession
from models.send import load_sends
from tests.crash.cluster import Cluster, Process
from tests.crash.load import AskedRound, ask, invocations_of, judge, round_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("cluster", ["sqlite"], indirect=True),
]

EXIT_S = 20.0
"""How long a process may take to end once it has nothing left to wait for; it takes about one second."""

NUMBERS = count()

StartWorker = Callable[[float], Awaitable[Process]]


@pytest.fixture
async def start_worker(cluster: Cluster) -> AsyncIterator[StartWorker]:
    """Start `python -m worker` with a drain time, in place of the cluster's own workers."""
    started: list[Process] = []

    async def start(drain_s: float) -> Process:
        log = cluster.folder / f"real-worker{next(NUMBERS)}.log"
        environment = cluster.workers[0].environment | {"SLUICEGATE_DRAIN_S": str(drain_s)}
        process = Process("worker", ["-m", "worker"], environment, log, "polls task queue")
        started.append(process)
        await process.start()
        return process

    await asyncio.gather(*(worker.kill() for worker in cluster.workers))
    yield start
    await asyncio.gather(*(process.kill() for process in started))
    await asyncio.gather(*(worker.start() for worker in cluster.workers))


async def all_arrived(cluster: Cluster, asked: AskedRound) -> None:
    nonces = {nonce for _, nonce in asked.nonces}
    async with asyncio.timeout(60):
        while True:
            log = (await cluster.upstream_log())["log"]
            if nonces <= {entry["nonce"] for entry in log}:
                return
            await asyncio.sleep(0.02)


async def told_to_stop(process: Process, signals: int = 1) -> int:
    """Send so many signals, one by one, and return the exit status."""
    for _ in range(signals - 1):
        process.ask_to_stop()
        async with asyncio.timeout(EXIT_S):
            while "The worker stops" not in process.log.read_text():  # noqa: ASYNC110 - A file calls nobody.
                await asyncio.sleep(0.02)
    process.ask_to_stop()
    async with asyncio.timeout(EXIT_S):
        return await process.ended()


async def senders(cluster: Cluster, asked: AskedRound) -> dict[str, list[int]]:
    """Return the processes that sent each call, by its nonce, in the order of the sends."""

    def read(session: ReadSession) -> dict[str, list[int]]:
        names = {invocation.id: invocation for invocation in invocations_of(session, [asked])}
        return {
            key: [int(send.worker.rpartition("/")[2]) for send in load_sends(session, key)] for key in names
        }

    assert asked.answer is not None
    by_id = {result["invocation_id"]: result["tool_call_id"] for result in asked.answer["results"]}
    async with Database(cluster.database_url) as database:
        return {by_id[key]: pids for key, pids in (await database.read(read)).items()}


def told(asked: AskedRound) -> dict[str, set[str]]:
    """Return what the calls of each class ended as."""
    assert asked.answer is not None
    ended = {result["tool_call_id"]: result for result in asked.answer["results"]}
    return {
        name: {
            f"{ended[nonce]['status']}/{ended[nonce]['outcome']}" for of, nonce in asked.nonces if of == name
        }
        for name, _ in asked.nonces
    }


async def test_a_worker_told_to_stop_finishes_the_calls_that_end_within_its_drain(
    cluster: Cluster, start_worker: StartWorker
) -> None:
    leaving = await start_worker(30)
    asked = round_of(per_class=3)
    asking = asyncio.create_task(ask(cluster, asked, hold_s=3))
    await all_arrived(cluster, asked)
    pid = leaving.pid

    status, _ = await asyncio.gather(told_to_stop(leaving), start_worker(30))
    await asking

    assert status == 0
    assert told(asked) == {name: {"succeeded/known"} for name in ("unsafe", "safe", "keyed")}
    assert set(map(tuple, (await senders(cluster, asked)).values())) == {(pid,)}
    assert await judge(cluster, [asked]) == []


async def test_a_worker_whose_drain_is_over_hands_on_what_may_be_done_again_and_settles_the_rest(
    cluster: Cluster, start_worker: StartWorker
) -> None:
    leaving = await start_worker(0.5)
    asked = round_of(per_class=3)
    streamed = round_of(per_class=3, tool="stream", classes=("unsafe",))
    asking = [asyncio.create_task(ask(cluster, one, hold_s=5)) for one in (asked, streamed)]
    await asyncio.gather(all_arrived(cluster, asked), all_arrived(cluster, streamed))
    pid = leaving.pid

    status, staying = await asyncio.gather(told_to_stop(leaving), start_worker(30))
    await asyncio.gather(*asking)

    assert status == 0
    assert told(asked) == {
        "unsafe": {"failed/unknown"},
        "safe": {"succeeded/known"},
        "keyed": {"succeeded/known"},
    }
    # Its answer is fetched by the other worker under the one send that there was.
    assert told(streamed) == {"unsafe": {"succeeded/known"}}
    by_call, by_stream = await senders(cluster, asked), await senders(cluster, streamed)
    assert {
        name: {tuple(by_call[nonce]) for of, nonce in asked.nonces if of == name} for name in told(asked)
    } == {
        "unsafe": {(pid,)},
        "safe": {(pid, staying.pid)},
        "keyed": {(pid, staying.pid)},
    }
    assert set(map(tuple, by_stream.values())) == {(pid,)}
    assert await judge(cluster, [asked, streamed]) == []


async def test_a_second_signal_settles_running_calls_as_unknown_and_ends_the_worker(
    cluster: Cluster, start_worker: StartWorker
) -> None:
    leaving = await start_worker(200)
    asked = round_of(per_class=9, classes=("unsafe",))
    asking = asyncio.create_task(ask(cluster, asked, hold_s=25))
    await all_arrived(cluster, asked)

    # The calls go on for 25 s and the drain for 200, so it is the second signal that ends it sooner.
    status, _ = await asyncio.gather(told_to_stop(leaving, signals=2), start_worker(30))
    async with asyncio.timeout(EXIT_S):
        await asking

    assert status == 0
    assert told(asked) == {"unsafe": {"failed/unknown"}}
    assert asked.answer is not None
    reasons = {result["error"]["details"]["reason"] for result in asked.answer["results"]}
    assert reasons == {"worker_shutdown"}
    assert await judge(cluster, [asked]) == []
