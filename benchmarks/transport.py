"""The bare transport against the official Python client: ``python -m benchmarks.transport [--memory]``.

Both call the same server process from this process, in turns, so that the load of the machine hits both
alike; a row is the ratio of our time to theirs, the median over the turns. With ``--memory`` 20 000 calls are
made and the growth of this process is shown instead.
"""

import asyncio
import ssl
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from mcp import Client

from activities.mcp_http.client import MCPClient, build_http_client
from activities.mcp_http.types import Endpoint, OpenSession, ToolCall
from benchmarks.row import Row

TURNS = 5
SEQUENTIAL = 60
CONCURRENT = 32
LARGE_CALLS = 5
LARGE_BYTES = 1_000_000
MEMORY_CALLS = 20_000
SERVER = "tests.support.mcp_servers.sdk_server"

Call = Callable[[str, dict[str, object]], Awaitable[object]]
Work = Callable[[Call], Awaitable[None]]


@asynccontextmanager
async def upstream(*options: str) -> AsyncGenerator[str, None]:
    """Run the server of the tests as a process and give its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", SERVER, *options, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}/mcp"
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def ours(url: str, version: str) -> AsyncGenerator[Call, None]:
    """Give a function that calls a tool through the transport of this project."""
    endpoint = Endpoint(url, network="loopback", protocol_version=version)
    async with build_http_client(endpoint, ssl.create_default_context()) as http:
        client = MCPClient(http, endpoint)
        session: OpenSession = await client.open_session()

        async def call(name: str, arguments: dict[str, object]) -> object:
            return await client.call_tool(session, ToolCall(name, arguments, str(uuid4())))

        yield call
        await client.close_session(session)


@asynccontextmanager
async def theirs(url: str, version: str) -> AsyncGenerator[Call, None]:
    """Give a function that calls a tool through the official client."""
    async with Client(url, mode="auto" if version == "auto" else "legacy") as client:
        # Without the listing it would ask for it at each call, to check results.
        cursor = None
        while (listing := await client.list_tools(cursor=cursor)).next_cursor is not None:
            cursor = listing.next_cursor

        async def call(name: str, arguments: dict[str, object]) -> object:
            return await client.call_tool(name, arguments)

        yield call


async def one_by_one(call: Call) -> None:
    """Make small calls, each after the other."""
    for _ in range(SEQUENTIAL):
        await call("echo", {"text": "x"})


async def all_at_once(call: Call) -> None:
    """Make small calls on one session at the same time."""
    await asyncio.gather(*(call("echo", {"text": "x"}) for _ in range(CONCURRENT)))


async def large_results(call: Call) -> None:
    """Make calls with results of 1 MB."""
    for _ in range(LARGE_CALLS):
        await call("big", {"bytes": LARGE_BYTES})


WORKS: dict[str, tuple[Work, int]] = {
    "one by one": (one_by_one, SEQUENTIAL),
    f"{CONCURRENT} at once": (all_at_once, CONCURRENT),
    "1 MB results": (large_results, LARGE_CALLS),
}
MODES = {
    "handshake, streams": ("2025-11-25", ()),
    "handshake, JSON": ("2025-11-25", ("--json",)),
    "2026-07-28": ("auto", ()),
}


async def timed(work: Work, call: Call) -> float:
    """Return the seconds one turn of `work` takes."""
    started = time.perf_counter()
    await work(call)
    return time.perf_counter() - started


async def measure() -> list[Row]:
    """Measure every kind of work in every mode; bounds say: not slower than the official client."""
    rows: list[Row] = []
    for mode, (version, options) in MODES.items():
        async with (
            upstream(*options) as url,
            ours(url, version) as our_call,
            theirs(url, version) as their_call,
        ):
            for name, (work, calls) in WORKS.items():
                await work(our_call)
                await work(their_call)
                turns = [(await timed(work, our_call), await timed(work, their_call)) for _ in range(TURNS)]
                ratio = statistics.median(mine / other for mine, other in turns)
                each_ms = statistics.median(mine for mine, _ in turns) / calls * 1000
                rows.append(Row(f"transport {mode}, {name}: per call", each_ms, "ms"))
                rows.append(Row(f"transport {mode}, {name}: ours / official", ratio, "ratio", 1.0))
    return rows


def resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def measure_memory() -> list[Row]:
    """Make 20 000 calls, 16 at a time, and show how much the process grew after the first 2 000."""
    async with upstream("--json") as url, ours(url, "2025-11-25") as call:

        async def some(count: int) -> None:
            for _ in range(count // 16):
                await asyncio.gather(*(call("echo", {"text": "x"}) for _ in range(16)))

        await some(2_000)
        before = resident_mb()
        await some(MEMORY_CALLS)
        return [Row(f"transport growth over {MEMORY_CALLS} calls", resident_mb() - before, "MB", 5.0)]


def main() -> None:
    """Print one line a row."""
    rows = asyncio.run(measure_memory() if "--memory" in sys.argv else measure())
    for row in rows:
        verdict = "" if row.holds is None else ("yes" if row.holds else "NO")
        print(f"{row.name:60} {row.value:8.2f} {row.unit:6} {verdict}")


if __name__ == "__main__":
    main()
