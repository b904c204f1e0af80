"""A worker dies at each named point of a call's way, with eight and more calls on theirs."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.database import Database
from tests.crash.cluster import Cluster, running_cluster
from tests.crash.load import ask, judge, left_open, repeated_in_vain, round_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

REPEATS = 10 if int(os.environ.get("CRASH_KILLS", "40")) >= 200 else 1

POINTS = (
    "before_freeze",
    "after_freeze",
    "after_open",
    "before_send",
    "after_send",
    "before_settle",
    "after_settle",
    "during_finalize",
)


@pytest.fixture(scope="module")
async def cluster(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path_factory.mktemp("points"), workers=1) as running:
        yield running


async def faults_in_ledger(cluster: Cluster) -> list[str]:
    async with Database(cluster.database_url) as database:
        assert await database.read(repeated_in_vain) == 0
        return await database.read(left_open)


@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_that_dies_at_a_named_point_loses_and_repeats_nothing(
    point: str, cluster: Cluster
) -> None:
    for _ in range(REPEATS):
        cluster.arm.write_text(point)
        asked = round_of(per_class=3)
        asking = asyncio.create_task(ask(cluster, asked, hold_s=0.4))
        await cluster.workers[0].died(60)
        await cluster.workers[0].start()
        await asking

        assert await judge(cluster, [asked]) == []
    assert await faults_in_ledger(cluster) == []


async def test_a_worker_killed_after_the_tools_ran_leaves_unsafe_calls_unknown(cluster: Cluster) -> None:
    for _ in range(REPEATS):
        asked = round_of(per_class=3)
        asking = asyncio.create_task(ask(cluster, asked, hold_s=4))
        await all_ran(cluster, {nonce for _, nonce in asked.nonces})
        await cluster.workers[0].kill()
        await cluster.workers[0].start()
        await asking

        assert await judge(cluster, [asked]) == []
        assert asked.answer is not None
        ended = {result["tool_call_id"]: result for result in asked.answer["results"]}
        told = {
            name: {ended[nonce]["status"] for of, nonce in asked.nonces if of == name}
            for name, _ in asked.nonces
        }
        assert told == {"unsafe": {"failed"}, "safe": {"succeeded"}, "keyed": {"succeeded"}}
        assert asked.answer["has_unknown"] is True
    assert await faults_in_ledger(cluster) == []


async def test_an_answer_is_fetched_by_its_event_id_after_the_worker_died(cluster: Cluster) -> None:
    asked = round_of(per_class=9, tool="stream", classes=("unsafe",))
    asking = asyncio.create_task(ask(cluster, asked, hold_s=6))
    await all_ran(cluster, {nonce for _, nonce in asked.nonces})
    await cluster.workers[0].kill()
    await cluster.workers[0].start()
    await asking

    assert await judge(cluster, [asked]) == []
    assert asked.answer is not None
    assert {result["status"] for result in asked.answer["results"]} == {"succeeded"}


async def all_ran(cluster: Cluster, nonces: set[str]) -> None:
    async with asyncio.timeout(30):
        while True:
            log = (await cluster.upstream_log())["log"]
            if nonces <= {entry["nonce"] for entry in log if entry["ran_at"] is not None}:
                return
            await asyncio.sleep(0.05)


async def test_the_judge_notices_a_worker_that_forgets_what_was_sent(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, workers=1, faulty=True) as cluster:
        asked = round_of(per_class=3)
        asking = asyncio.create_task(ask(cluster, asked, hold_s=4))
        await all_ran(cluster, {nonce for _, nonce in asked.nonces})
        await cluster.workers[0].kill()
        await cluster.workers[0].start()
        await asking

        faults = await judge(cluster, [asked])

    assert [fault for fault in faults if fault.startswith("ran more than once: unsafe")]
