"""What a governed durable call costs, against a direct call to the same server in the same run."""

import asyncio
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.mcp_http.client import MCPClient, build_http_client
from activities.mcp_http.types import Endpoint, ToolCall
from benchmarks.noop_round import NoopRound, do_nothing
from benchmarks.row import Row, percentile
from benchmarks.system import System, running_system
from benchmarks.timeline import timeline_rows
from workflows.payloads import data_converter

CALLS = 150
CONCURRENT_CALLS = 320
WARM_UP = 10

NOOP = "bench-noop"
PAUSE = "bench-pause"
Attempt = Callable[[], Awaitable[object]]


async def measure() -> list[Row]:
    """Measure on the tuned server, then the latency once more on an untuned one."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as folder:
        async with running_system(Path(folder) / "tuned", tuned=True) as system:
            rows = await _tuned_rows(system)
        async with running_system(Path(folder) / "untuned", tuned=False) as system:
            await _times(lambda: system.execute(NOOP, {}), WARM_UP)
            untuned = await _times(lambda: system.execute(NOOP, {}), CALLS // 3)
            rows.append(Row("governed call, untuned server, p50", percentile(untuned, 0.5), "ms"))
    return rows


async def _tuned_rows(system: System) -> list[Row]:
    direct = await _direct(system)
    engine = await _engine(system.temporal_address)
    await _times(lambda: system.execute(NOOP, {}), WARM_UP)
    health = await _times(lambda: system.http.get("/healthz"), CALLS)
    before = await system.upstream_counts()
    governed = await _times(lambda: system.execute(NOOP, {}), CALLS)
    after = await system.upstream_counts()
    p50, direct_p50 = percentile(governed, 0.5), percentile(direct, 0.5)
    return [
        Row("direct call, p50", direct_p50, "ms"),
        Row("HTTP request that does nothing, p50", percentile(health, 0.5), "ms"),
        Row("engine's no-op round, p50", percentile(engine, 0.5), "ms"),
        Row("governed call, p50", p50, "ms"),
        Row("governed call, p95", percentile(governed, 0.95), "ms"),
        Row("added by governance and durability, p50", p50 - direct_p50, "ms", 25.0),
        Row("governed over the engine's no-op round", p50 / percentile(engine, 0.5), "x"),
        Row("HTTP requests to the server for each call", (after["http"] - before["http"]) / CALLS, "", 1.0),
        *timeline_rows(system.data_dir / "sluicegate.db", CALLS),
        *await _throughput(system),
        *await _stages(system),
    ]


async def _throughput(system: System) -> list[Row]:
    rows = [
        Row(
            f"governed calls at {callers} callers",
            await _rate(lambda: system.execute(NOOP, {}), callers),
            "calls/s",
            75.0 if callers == 8 else None,
            at_least=True,
        )
        for callers in (1, 8, 16)
    ]
    calls: list[tuple[str, dict[str, object]]] = [(PAUSE, {"milliseconds": 0})] * 10
    rounds = await _rate(lambda: system.round(calls), 4, CONCURRENT_CALLS // 10)
    rows.append(Row("calls in rounds of ten at 4 callers", rounds * 10, "calls/s", 200.0, at_least=True))
    return rows


async def _stages(system: System) -> list[Row]:
    pause: dict[str, object] = {"milliseconds": 100}
    parallel = await _times(lambda: system.round([(PAUSE, pause)] * 10), 10)
    # Two parallel-safe neighbours would share a stage, so a serial tool without work stands between them.
    noop: dict[str, object] = {}
    serial = await _times(lambda: system.round([(NOOP, noop)] * 5), 20)
    alone = await _times(lambda: system.round([(NOOP, noop)]), 20)
    added = (percentile(serial, 0.5) - percentile(alone, 0.5)) / 4
    return [
        Row("10 parallel-safe calls of 100 ms, p50", percentile(parallel, 0.5), "ms", 160.0),
        Row("5 serial calls, p50", percentile(serial, 0.5), "ms"),
        Row("each further serial stage, p50", added, "ms", 18.0),
    ]


async def _times(attempt: Attempt, count: int) -> list[float]:
    """Return the milliseconds of each of `count` attempts, one after another."""
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        await attempt()
        times.append((time.perf_counter() - started) * 1000)
    return times


async def _rate(attempt: Attempt, callers: int, count: int = CONCURRENT_CALLS) -> float:
    """Return attempts a second with `callers` of them under way at once."""
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            await attempt()

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return count / (time.perf_counter() - started)


async def _direct(system: System) -> list[float]:
    endpoint = Endpoint(url=f"{system.upstream_url}/mcp", network="loopback")
    async with build_http_client(endpoint, ssl.create_default_context()) as http:
        client = MCPClient(http, endpoint)
        session = await client.open_session()

        async def call() -> None:
            await client.call_tool(session, ToolCall("noop", {}, str(uuid4())))

        await _times(call, WARM_UP)
        times = await _times(call, CALLS)
        await client.close_session(session)
    return times


async def _engine(address: str) -> list[float]:
    client = await Client.connect(address, data_converter=data_converter)
    worker = Worker(
        client,
        task_queue="noop",
        workflows=[NoopRound],
        activities=[do_nothing],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )

    async def noop_round() -> None:
        await client.execute_workflow(
            NoopRound.run, id=f"noop-{uuid4()}", task_queue="noop", request_eager_start=True
        )

    async with worker:
        await _times(noop_round, WARM_UP)
        return await _times(noop_round, CALLS)
