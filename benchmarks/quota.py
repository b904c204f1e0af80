"""What quotas, metering and caps add to a call: statements, and milliseconds of a transaction."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import event

from activities.freezing import FreezeRound, freeze
from activities.ledger import CallOutcome, CallPlace, OpenCall, Owner, settle_call
from activities.opening import open_call
from benchmarks.row import Row, percentile
from governance.canonical import canonical_bytes
from governance.codes import InvocationStatus, SendOutcome
from governance.quotas import Limits
from governance.tool_cache import ToolCache
from models.base import new_id
from models.connection import Connection, Network
from models.database import Database, WriteSession
from models.invocation import Settlement
from models.key import ApiKey
from models.migration import migrate
from models.payload import store_payload
from models.projection import DeclaredTool, project_connection
from models.quota import set_quota
from models.round import RequestedCall, RequestedRound, insert_round
from models.usage import UsageFilter, UsageGroup, UsageKind, UsageStatus, Used, append_usage, sum_usage

CALLS = 60
"""Calls of each kind that are timed, after as many that are not."""

RECORDED = 20_000
"""Usage rows that are summed."""


@dataclass(frozen=True)
class Setup:
    """What is configured of the key and the connection."""

    limits: Limits | None = None
    cap: int | None = None


PLAIN = Setup()
LIMITED = Setup(Limits(requests_per_minute=10**9, tool_calls_per_day=10**9, budget_per_month=10**15))
CONCURRENT = replace(LIMITED, limits=replace(LIMITED.limits or Limits(), concurrent_calls=10**6))
CAPPED = Setup(cap=100)


def rows() -> list[tuple[str, float, str, float | None]]:
    """Measure each and return (name, value, unit, the most that is wanted)."""
    return asyncio.run(_measure())


def measure() -> list[Row]:
    """Return the same figures as lines of the table."""
    return [Row(name, value, unit, bound) for name, value, unit, bound in rows()]


async def _measure() -> list[tuple[str, float, str, float | None]]:
    plain, limited, concurrent, capped = [
        await _calls(setup) for setup in (PLAIN, LIMITED, CONCURRENT, CAPPED)
    ]
    summing = await _summing()
    return [
        ("statements that a quota adds to a call", limited.statements - plain.statements, "statements", 2),
        (
            "statements that a quota with calls at once adds",
            concurrent.statements - plain.statements,
            "statements",
            2,
        ),
        ("statements on quotas without one", plain.on_quotas, "statements", 0),
        ("statements on slots without a cap", plain.on_slots, "statements", 0),
        ("statements that a cap adds to a call", capped.statements - plain.statements, "statements", None),
        ("open and settle a call, p50", plain.p50_ms, "ms", None),
        ("added by a quota, p50", limited.p50_ms - plain.p50_ms, "ms", 1),
        ("added by a cap, p50", capped.p50_ms - plain.p50_ms, "ms", 3),
        (f"sum {RECORDED} usage rows by key and tool", summing, "ms", 250),
    ]


@dataclass(frozen=True)
class Measured:
    """What a call of one kind took."""

    statements: float
    on_quotas: float
    on_slots: float
    p50_ms: float


@asynccontextmanager
async def _database() -> AsyncIterator[Database]:
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as folder:
        async with Database(f"sqlite:///{Path(folder) / 'bench.db'}") as database:
            migrate(database)
            yield database


def _build(session: WriteSession, setup: Setup) -> str:
    connection = Connection(
        id=new_id(),
        name="bench",
        url="http://127.0.0.1:9/mcp",
        network=Network.LOOPBACK,
        tools_to_execute=["*"],
        max_concurrency=setup.cap,
        tool_prices={"*": "0.001"},
    )
    key = ApiKey(id=new_id(), name="bench", enabled=True, has_tool_config=False, core_tools=False)
    session.add_all([connection, key])
    session.flush()
    project_connection(session, connection, [DeclaredTool("read", {"input_schema": {"type": "object"}})])
    if setup.limits is not None:
        set_quota(session, key, setup.limits)
    return key.id


def _ask(session: WriteSession, key_id: str, workflow_id: str) -> str:
    arguments = store_payload(session, canonical_bytes({"arguments": "{}"}))
    calls = [RequestedCall(f"call_{number}", "bench-read", arguments) for number in range(2 * CALLS)]
    round_id = new_id()
    requested = RequestedRound(workflow_id, key_id, round_id, "0" * 64, "bench", {}, calls)
    insert_round(session, requested, round_id)
    return round_id


async def _calls(setup: Setup) -> Measured:
    """Open and settle calls one after another, as the wrapper does, without anything between."""
    async with _database() as database:
        key_id, tools, workflow_id = await database.write(_build, setup), ToolCache(), uuid4().hex
        round_id = await database.write(_ask, key_id, workflow_id)
        await database.write(freeze, FreezeRound(workflow_id, key_id, round_id, round_id, ""), tools)
        seen: list[str] = []
        spent: list[float] = []
        stop = _listen(database, seen)
        for number in range(2 * CALLS):
            if number == CALLS:
                seen.clear()
                spent.clear()
            begun = time.perf_counter()
            await _one(database, CallPlace(round_id, number, 0, f"s0.c{number}"), tools)
            spent.append((time.perf_counter() - begun) * 1000)
        stop()
    return Measured(
        statements=len(seen) / CALLS,
        on_quotas=sum("key_quotas" in one or "chat_leases" in one for one in seen) / CALLS,
        on_slots=sum("connection_slots" in one for one in seen) / CALLS,
        p50_ms=percentile(spent, 0.5),
    )


async def _one(database: Database, place: CallPlace, tools: ToolCache) -> None:
    opened = await database.write(open_call, place, Owner("bench", new_id(), "workflow"), tools)
    assert isinstance(opened, OpenCall), opened
    done = CallOutcome(Settlement(InvocationStatus.SUCCEEDED), SendOutcome.ANSWERED, b"{}")
    await database.write(settle_call, opened, opened.send_id, done)


def _listen(database: Database, seen: list[str]) -> Callable[[], None]:
    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not statement.startswith(("BEGIN", "COMMIT", "PRAGMA")):
            seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    return lambda: event.remove(database.engine, "before_cursor_execute", note)


async def _summing() -> float:
    keys = [new_id() for _ in range(20)]

    def record(session: WriteSession) -> None:
        append_usage(
            session,
            *(
                Used(
                    keys[number % len(keys)],
                    UsageKind.TOOL_CALL,
                    UsageStatus.SUCCEEDED,
                    tool=f"bench-tool_{number % 50}",
                    cost=1_000_000,
                )
                for number in range(RECORDED)
            ),
        )

    async with _database() as database:
        await database.write(record)
        begun = time.perf_counter()
        sums = await database.read(sum_usage, UsageFilter(), (UsageGroup.KEY, UsageGroup.TOOL))
        took = (time.perf_counter() - begun) * 1000
    assert sum(one.requests for one in sums) == RECORDED
    return took
