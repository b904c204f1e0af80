"""Processes die at random while agents go on asking; afterwards every answer must be what the log says.

`CRASH_KILLS` says how many kills there are in all, 40 by default; 200 and more make the full run. The last
lines tell how many calls stood in which phase of the ledger when something was killed.
"""

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from governance.codes import TERMINAL_ROUND_STATES, RoundState
from models.database import Database, DatabaseError, ReadSession
from models.invocation import load_invocations
from models.round import Round, load_round_calls
from models.send import load_sends
from tests.crash.cluster import Cluster, running_cluster
from tests.crash.load import AskedRound, ask, judge, left_open, repeated_in_vain, round_of

KILLS = int(os.environ.get("CRASH_KILLS", "40"))
AGENTS = 4
"""Each keeps a round of three calls on its way; with stragglers at least eight calls are always in flight."""

IN_FLIGHT = 8

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(3600)]

Kill = Callable[[], Awaitable[None]]


async def agent(cluster: Cluster, rolls: random.Random, asked: list[AskedRound], stop: asyncio.Event) -> None:
    while not stop.is_set():
        mine = round_of(per_class=1)
        asked.append(mine)
        await ask(cluster, mine, hold_s=rolls.uniform(0.1, 1.5))


def phases(session: ReadSession) -> list[tuple[str, str]]:
    """Return (phase, call id) of each call of a round that has not ended."""
    found: list[tuple[str, str]] = []
    for row in session.query(Round).where(Round.state.not_in(TERMINAL_ROUND_STATES)):
        invocations = load_invocations(session, row.id)
        for call in load_round_calls(session, row.id):
            invocation = invocations.get(call.invocation_id or "")
            if invocation is None:
                found.append(("requested" if row.state is RoundState.REQUESTED else "frozen", call.call_id))
            elif invocation.status.value != "running":
                found.append(("settled", call.call_id))
            else:
                sent = any(send.may_have_run for send in load_sends(session, invocation.id))
                found.append(("sent" if sent else "opened", call.call_id))
    return found


async def look(cluster: Cluster, database: Database) -> Counter[str]:
    """Count the calls in flight by phase; a call that was sent may also have arrived and have run."""
    try:
        seen = await database.read(phases)
    except DatabaseError:
        return Counter()
    log = {entry["nonce"]: entry for entry in (await cluster.upstream_log())["log"]}
    counted: Counter[str] = Counter()
    for phase, nonce in seen:
        entry = log.get(nonce)
        ran = entry is not None and entry["ran_at"] is not None
        counted["sent, and has run" if phase == "sent" and ran else phase] += 1
    return counted


async def busy(cluster: Cluster, database: Database) -> Counter[str]:
    """Wait until enough calls are in flight, and return how they stand."""
    counted: Counter[str] = Counter()
    async with asyncio.timeout(90):
        while sum(counted.values()) < IN_FLIGHT:
            await asyncio.sleep(0.02)
            counted = await look(cluster, database)
    return counted


def victims(cluster: Cluster, rolls: random.Random) -> Mapping[str, Kill]:
    """Return what can be killed; each is started again at once."""

    async def worker() -> None:
        process = rolls.choice(cluster.workers)
        await process.kill()
        await process.start()

    async def api() -> None:
        await cluster.api.kill()
        await cluster.api.start()

    async def temporal() -> None:
        await cluster.kill_temporal()
        await cluster.start_temporal()

    async def postgres() -> None:
        assert cluster.postgres is not None
        await asyncio.to_thread(cluster.postgres.kill)
        await asyncio.to_thread(cluster.postgres.start)

    found: dict[str, Kill] = {"worker": worker, "api": api, "temporal": temporal}
    if cluster.postgres is not None:
        found["postgres"] = postgres
    return found


async def campaign(
    cluster: Cluster, kills: int, seed: int
) -> tuple[list[AskedRound], Counter[str], Counter[str]]:
    """Kill so often at random moments, wait until every round has ended; return what was asked and seen."""
    rolls = random.Random(seed)
    asked: list[AskedRound] = []
    stop = asyncio.Event()
    killed: Counter[str] = Counter()
    stood: Counter[str] = Counter()
    ways = victims(cluster, rolls)
    # Workers hold the calls, so they die half of the time.
    weights = [3 if name == "worker" else 1 for name in ways]
    async with Database(cluster.database_url) as database, asyncio.TaskGroup() as group:
        for _ in range(AGENTS):
            group.create_task(agent(cluster, rolls, asked, stop))
        for _ in range(kills):
            stood += await busy(cluster, database)
            await asyncio.sleep(rolls.uniform(0, 0.4))
            [name] = rolls.choices(list(ways), weights)
            killed[name] += 1
            await ways[name]()
        stop.set()
        group.create_task(repair(cluster, asked))
    return asked, killed, stood


async def repair(cluster: Cluster, asked: list[AskedRound]) -> None:
    """Reconcile until every round has ended; the schedule does the same, less often."""
    while any(one.answer is None and one.refused is None for one in asked):
        await cluster.reconcile()
        await asyncio.sleep(1)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_whatever_dies_no_effect_is_doubled_and_no_answer_is_untrue(kind: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("CRASH_SEED", "20261130"))
    async with running_cluster(tmp_path, workers=2, with_postgres=kind == "postgres") as cluster:
        asked, killed, stood = await campaign(cluster, KILLS // 2, seed)
        faults = await judge(cluster, asked)
        async with Database(cluster.database_url) as database:
            faults += await database.read(left_open)
            in_vain = await database.read(repeated_in_vain)
    told = Counter(
        f"{result['status']}/{result['outcome']}"
        for one in asked
        if one.answer is not None
        for result in one.answer["results"]
    )
    refused = Counter(one.refused for one in asked if one.refused is not None)
    sys.stderr.write(
        f"\n{kind}: {sum(killed.values())} kills {dict(killed)}; calls in flight at them {dict(stood)};"
        f" {len(asked)} rounds asked, results {dict(told)}, refused {dict(refused)}\n"
    )

    assert faults == []
    assert in_vain == 0
    assert sum(killed.values()) == KILLS // 2
