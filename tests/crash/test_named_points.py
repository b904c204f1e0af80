"""Something dies at each named point of a call's way, with eight and more calls on theirs."""

import asyncio
import os
import re

import pytest

from tests.crash.cluster import Cluster
from tests.crash.load import ask, judge, round_of
from tests.crash.tally import Tally

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

on_sqlite = pytest.mark.parametrize("cluster", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("cluster", ["postgres"], indirect=True)


async def die_at(cluster: Cluster, tally: Tally, victim: str, point: str, wait_s: float = 5) -> None:
    """Have something die at a point of a round of nine calls, start it again, and judge the round."""
    for _ in range(REPEATS):
        cluster.arm(point, victim if victim in {"temporal", "postgres"} else "itself")
        asked = round_of(per_class=3)
        asking = asyncio.create_task(ask(cluster, asked, hold_s=0.4, wait_s=wait_s))
        await cluster.start_again(victim)
        await asking
        tally.named[cluster.kind, victim, point] += 1

        assert await judge(cluster, [asked]) == []


@on_sqlite
@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_that_dies_at_a_named_point_loses_and_repeats_nothing(
    point: str, cluster: Cluster, tally: Tally
) -> None:
    await die_at(cluster, tally, "worker", point)


@on_sqlite
@pytest.mark.parametrize("point", ["api_after_store", "api_before_answer"])
async def test_an_api_that_dies_between_row_start_and_answer_loses_and_repeats_nothing(
    point: str, cluster: Cluster, tally: Tally
) -> None:
    # Without a wait the answer follows the start at once, so the round runs on while the API is dead.
    await die_at(cluster, tally, "api", point, wait_s=0)


@on_sqlite
async def test_a_round_that_an_api_left_unstarted_is_started_by_sluicegate_reconcile_which_says_so(
    cluster: Cluster,
) -> None:
    asked = round_of(per_class=3)
    async with cluster.without_schedule():
        cluster.arm("api_after_store")
        asking = asyncio.create_task(ask(cluster, asked, hold_s=0.4, tries=1))
        await asyncio.gather(cluster.start_again("api"), asking)
        first = await cluster.command("reconcile", "--grace", "0")
        second = await cluster.command("reconcile", "--grace", "0")
    await ask(cluster, asked, hold_s=0.4)

    counts = [re.findall(r"^Rounds started +(\d+)$", said, re.MULTILINE) for said in (first, second)]
    assert counts == [["1"], ["0"]]
    assert await judge(cluster, [asked]) == []


@on_sqlite
@pytest.mark.parametrize("point", ["after_freeze", "after_send", "before_finalize"])
async def test_an_engine_that_dies_at_a_named_point_loses_and_repeats_nothing(
    point: str, cluster: Cluster, tally: Tally
) -> None:
    await die_at(cluster, tally, "temporal", point)


@on_postgres
@pytest.mark.parametrize("point", ["after_send", "before_settle"])
async def test_a_database_that_dies_at_a_named_point_loses_and_repeats_nothing(
    point: str, cluster: Cluster, tally: Tally
) -> None:
    await die_at(cluster, tally, "postgres", point)


@on_sqlite
async def test_a_worker_killed_after_the_tools_ran_leaves_unsafe_calls_unknown(
    cluster: Cluster, tally: Tally
) -> None:
    for _ in range(REPEATS):
        asked = round_of(per_class=3)
        asking = asyncio.create_task(ask(cluster, asked, hold_s=3))
        await all_ran(cluster, {nonce for _, nonce in asked.nonces})
        await cluster.kill_workers()
        await asking
        tally.named[cluster.kind, "worker", "after_the_upstream_ran"] += 1

        assert await judge(cluster, [asked]) == []
        assert asked.answer is not None
        ended = {result["tool_call_id"]: result for result in asked.answer["results"]}
        told = {
            name: {ended[nonce]["status"] for of, nonce in asked.nonces if of == name}
            for name, _ in asked.nonces
        }
        assert told == {"unsafe": {"failed"}, "safe": {"succeeded"}, "keyed": {"succeeded"}}
        assert asked.answer["has_unknown"] is True


@on_sqlite
async def test_an_answer_is_fetched_by_its_event_id_after_the_worker_died(cluster: Cluster) -> None:
    asked = round_of(per_class=9, tool="stream", classes=("unsafe",))
    asking = asyncio.create_task(ask(cluster, asked, hold_s=6))
    await all_ran(cluster, {nonce for _, nonce in asked.nonces})
    await cluster.kill_workers()
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


@on_sqlite
async def test_the_judge_notices_a_worker_that_forgets_what_was_sent(cluster: Cluster) -> None:
    cluster.fault.touch()
    try:
        asked = round_of(per_class=3)
        asking = asyncio.create_task(ask(cluster, asked, hold_s=3))
        await all_ran(cluster, {nonce for _, nonce in asked.nonces})
        await cluster.kill_workers()
        await asking
    finally:
        cluster.fault.unlink()

    faults = await judge(cluster, [asked])
    assert [fault for fault in faults if fault.startswith("ran more than once: unsafe")]
