"""What pass-through chat costs, against direct calls to the same provider: ``python -m benchmarks.chat``.

The provider answers at once and every call is made in turns with a direct one, so that the load of the
machine hits both alike.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.row import Row, percentile
from models.database import Database, WriteSession
from models.key import add_secret
from models.migration import migrate
from tests.support.world import ConnectionPlan, add_connection, add_key

ADMIN_TOKEN = "sga_benchmark"
MODEL = "bench-model"
TOOLS = 500
CALLS = 100
WARM_UP = 10
READY_TIMEOUT_S = 120.0
NO_TOOLS = {"x-mcp-include-tools": "none"}

Attempt = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Side:
    """One way to the provider: through the gateway, or directly."""

    http: httpx.AsyncClient
    url: str

    async def whole(self, headers: dict[str, str] | None = None) -> None:
        """Ask for a whole answer."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "?"}]}
        (await self.http.post(self.url, json=body, headers=headers)).raise_for_status()

    async def first_token(self, headers: dict[str, str] | None = None) -> float:
        """Ask for a stream; the milliseconds to its first token. It is read to its end."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "?"}], "stream": True}
        started, first = time.perf_counter(), 0.0
        async with self.http.stream("POST", self.url, json=body, headers=headers) as response:
            response.raise_for_status()
            async for _ in response.aiter_bytes():
                first = first or time.perf_counter()
        return (first - started) * 1000


async def rows() -> list[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-chat-") as folder:
        async with _sides(Path(folder)) as (direct, gateway):
            return await _measured(direct, gateway)


async def _measured(direct: Side, gateway: Side) -> list[Row]:
    plain: list[float] = []
    bare: list[float] = []
    full: list[float] = []
    first: dict[str, list[float]] = {"direct": [], "gateway": [], "tools": []}
    for number in range(WARM_UP + CALLS):
        taken = (
            await _time(direct.whole),
            await _time(lambda: gateway.whole(NO_TOOLS)),
            await _time(gateway.whole),
        )
        tokens = (
            await direct.first_token(),
            await gateway.first_token(NO_TOOLS),
            await gateway.first_token(),
        )
        if number >= WARM_UP:
            for series, value in zip((plain, bare, full), taken, strict=True):
                series.append(value)
            for series, value in zip(first.values(), tokens, strict=True):
                series.append(value)
    middle = {name: percentile(series, 0.5) for name, series in first.items()}
    passed, injected = percentile(bare, 0.5), percentile(full, 0.5)
    return [
        Row("chat asked directly, p50", percentile(plain, 0.5), "ms"),
        Row("chat through the gateway, p50", passed, "ms"),
        Row("added by pass-through, p50", passed - percentile(plain, 0.5), "ms"),
        Row(f"added by {TOOLS} tools, p50", injected - passed, "ms"),
        Row("first token, asked directly, p50", middle["direct"], "ms"),
        Row("added to the first token, p50", middle["gateway"] - middle["direct"], "ms"),
        Row(f"added to it by {TOOLS} tools, p50", middle["tools"] - middle["gateway"], "ms"),
    ]


async def _time(attempt: Attempt) -> float:
    started = time.perf_counter()
    await attempt()
    return (time.perf_counter() - started) * 1000


@asynccontextmanager
async def _sides(folder: Path) -> AsyncIterator[tuple[Side, Side]]:
    secret = await _prepared_database(folder)
    environment = {
        **os.environ,
        "SLUICEGATE_DATA_DIR": str(folder),
        "SLUICEGATE_ADMIN_TOKEN": ADMIN_TOKEN,
        # Chat needs no workflow engine, so none is started.
        "SLUICEGATE_TEMPORAL_ADDRESS": "127.0.0.1:9",
    }
    sluicegate = str(Path(sys.executable).with_name("sluicegate"))
    async with (
        _process(sys.executable, "-m", "benchmarks.provider") as provider,
        _process(sluicegate, "serve", "--port", "0", env=environment) as line,
    ):
        found = re.search(r"http://[\w.:]+", line)
        if found is None:
            raise RuntimeError(f"The API did not tell its address: {line!r}")
        await _register(found.group(), provider)
        async with _http() as direct, _http({"Authorization": f"Bearer {secret}"}) as gateway:
            yield (
                Side(direct, f"{provider}/chat/completions"),
                Side(gateway, f"{found.group()}/v1/chat/completions"),
            )


async def _prepared_database(folder: Path) -> str:
    """Make a database with a key and a connection of many tools; the key's secret."""
    properties = {f"field_{number}": {"type": "string", "description": "A field."} for number in range(5)}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}

    def build(session: WriteSession) -> str:
        tools = {f"tool_{number:03}": schema for number in range(TOOLS)}
        add_connection(session, ConnectionPlan(name="bench", tools=tools))
        return add_secret(session, add_key(session, "bench").id, "sgk_").text

    async with Database(f"sqlite:///{folder / 'sluicegate.db'}") as database:
        await asyncio.to_thread(migrate, database)
        return await database.write(build)


async def _register(url: str, base_url: str) -> None:
    body = {
        "slug": "bench",
        "base_url": base_url,
        "network": "loopback",
        "credential": "benchmark-credential",
        "model_aliases": {MODEL: {"upstream_model": "m"}},
    }
    async with _http({"Authorization": f"Bearer {ADMIN_TOKEN}"}) as admin:
        (await admin.post(f"{url}/api/v1/providers", json=body)).raise_for_status()


def _http(headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(headers=headers, timeout=60, trust_env=False)


@asynccontextmanager
async def _process(*command: str, env: dict[str, str] | None = None) -> AsyncIterator[str]:
    """Start a process, and end it with the block; the value is its first line."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=env)
    try:
        if process.stdout is None:
            raise RuntimeError("The process has no output.")
        line = await asyncio.wait_for(process.stdout.readline(), READY_TIMEOUT_S)
        yield line.decode().strip()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _show() -> None:
    for row in await rows():
        sys.stdout.write(f"{row.name:45} {row.value:8.2f} {row.unit}\n")


if __name__ == "__main__":
    asyncio.run(_show())
