"""Processes die at random while agents go on asking; afterwards every answer must be what the log says.

`CRASH_KILLS` says how many kills there are in all, 40 by default; 200 and more make the full run. The last
lines tell how many calls stood in which phase of the ledger when something was killed.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterable

import pytest

from governance.codes import TERMINAL_ROUND_STATES, RoundState
from models.database import Database, DatabaseError, ReadSession
from models.invocation import load_invocations
from models.round import Round, load_round_calls
from models.send import load_sends
from tests.crash.cluster import Cluster
from tests.crash.load import AskedRound, ask, judge, round_of
from tests.crash.tally import Tally

KILLS = int(os.environ.get("CRASH_KILLS", "40"))
AGENTS = 5
"""Each keeps a round of three calls on its way, so that eight are soon in flight again."""

IN_FLIGHT = 8

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(3600)]


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
        if phase == "settled":
            continue
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


class Reaper:
    """Kills what it is told to, and starts it again."""

    def __init__(self, cluster: Cluster, rolls: random.Random) -> None:
        self._cluster = cluster
        self._rolls = rolls
        self._starting: dict[str, asyncio.Task[None]] = {}

    async def kill(self, victim: str) -> None:
        cluster = self._cluster
        match victim:
            case "worker":
                await self._kill_worker()
            case "api":
                await cluster.api.kill()
                await cluster.api.start()
            case "temporal":
                await cluster.kill_temporal()
                await cluster.start_temporal()
            case _:
                assert cluster.postgres is not None
                await asyncio.to_thread(cluster.postgres.kill)
                await asyncio.to_thread(cluster.postgres.start)

    async def _kill_worker(self) -> None:
        """Kill a worker; the others go on, so nobody waits until it runs again."""
        process = self._rolls.choice(self._cluster.workers)
        before = self._starting.pop(process.name, None)
        if before is not None:
            await before
        await process.kill()
        self._starting[process.name] = asyncio.create_task(process.start())

    async def rest(self) -> None:
        """Wait until everything runs."""
        await asyncio.gather(*self._starting.values())


def draw(kind: str, kills: int, rolls: random.Random) -> list[str]:
    """Say what dies, in which order: each victim has its share of the kills, only the order is chance.

    Workers hold the calls, so they die half of the time.
    """
    others = ["api", "temporal", *(["postgres"] if kind == "postgres" else [])]
    drawn = [others[number % len(others)] for number in range(kills // 2)]
    drawn += ["worker"] * (kills - len(drawn))
    rolls.shuffle(drawn)
    return drawn


async def campaign(cluster: Cluster, tally: Tally, kills: int, rolls: random.Random) -> list[AskedRound]:
    """Kill so often at random moments, wait until every round has ended; return what was asked."""
    asked: list[AskedRound] = []
    stop = asyncio.Event()
    reaper = Reaper(cluster, rolls)
    async with Database(cluster.database_url) as database, asyncio.TaskGroup() as group:
        agents = [group.create_task(agent(cluster, rolls, asked, stop)) for _ in range(AGENTS)]
        for victim in draw(cluster.kind, kills, rolls):
            stood = await busy(cluster, database)
            await asyncio.sleep(rolls.uniform(0, 0.4))
            tally.add_random(cluster.kind, victim, stood)
            await reaper.kill(victim)
        stop.set()
        await reaper.rest()
        await repair(cluster, agents)
    return asked


async def repair(cluster: Cluster, agents: Iterable[asyncio.Task[None]]) -> None:
    """Reconcile until every agent has seen its last round end; the schedule does the same, less often."""
    waiting = set(agents)
    while waiting:
        await cluster.reconcile()
        _, waiting = await asyncio.wait(waiting, timeout=1)


def tell(kind: str, asked: list[AskedRound], tally: Tally) -> None:
    """Count what the callers were told."""
    for one in asked:
        if one.refused is not None:
            tally.told[f"{kind}: rounds refused as {one.refused}"] += 1
        for result in [] if one.answer is None else one.answer["results"]:
            tally.told[f"{kind}: calls {result['status']}/{result['outcome']}"] += 1


async def test_whatever_dies_no_effect_is_doubled_and_no_answer_is_untrue(
    cluster: Cluster, tally: Tally
) -> None:
    rolls = random.Random(int(os.environ.get("CRASH_SEED", "20261130")))

    asked = await campaign(cluster, tally, KILLS // 2, rolls)

    tell(cluster.kind, asked, tally)
    assert await judge(cluster, asked) == []
    killed = {victim: count for (kind, victim), count in tally.random.items() if kind == cluster.kind}
    assert sum(killed.values()) == KILLS // 2
    assert cluster.postgres is None or killed["postgres"] >= 1
