"""The whole system as processes: Temporal, API with worker, an MCP server, and a key that may call it."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from api.embedded import EmbeddedOptions, EmbeddedTemporal

ADMIN_TOKEN = "sga_benchmark"
READY_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class System:
    """A running system; `http` speaks to the API with the key, `upstream_url` is the MCP server's base."""

    http: httpx.AsyncClient
    temporal_address: str
    upstream_url: str
    data_dir: Path

    async def upstream_counts(self) -> dict[str, int]:
        """Return what the MCP server has counted since its start."""
        async with httpx.AsyncClient(trust_env=False) as client:
            counts: dict[str, int] = (await client.get(f"{self.upstream_url}/counters")).json()
        return counts

    async def execute(self, tool: str, arguments: dict[str, Any]) -> httpx.Response:
        """Run one governed call and return the answer, which must be a success."""
        call = {"id": "c", "type": "function", "function": {"name": tool, "arguments": arguments}}
        answer = await self.http.post("/v1/mcp/tool/execute", json=call)
        answer.raise_for_status()
        return answer

    async def round(self, calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
        """Run a round, wait for it and return its answer."""
        body = {
            "tool_calls": [
                {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for number, (name, arguments) in enumerate(calls)
            ],
            "wait": 60,
        }
        answer = await self.http.post("/v1/rounds", json=body)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result


@asynccontextmanager
async def running_system(data_dir: Path, *, tuned: bool) -> AsyncIterator[System]:
    """Start everything and end it again."""
    options = EmbeddedOptions(tuned=tuned)
    async with EmbeddedTemporal(data_dir / "temporal", options) as temporal:
        environment = {
            **os.environ,
            "SLUICEGATE_DATA_DIR": str(data_dir),
            "SLUICEGATE_TEMPORAL_ADDRESS": temporal.address,
            "SLUICEGATE_ADMIN_TOKEN": ADMIN_TOKEN,
        }
        sluicegate = str(Path(sys.executable).with_name("sluicegate"))
        migrate = await asyncio.create_subprocess_exec(sluicegate, "migrate", env=environment)
        if await migrate.wait() != 0:
            raise RuntimeError("sluicegate migrate failed")
        async with (
            _process(sys.executable, "-m", "benchmarks.upstream") as (_, upstream_url),
            _process(sluicegate, "serve", "--with-worker", "--port", "0", env=environment) as (_, line),
        ):
            found = re.search(r"http://[\w.:]+", line)
            if found is None:
                raise RuntimeError(f"The API did not tell its address: {line!r}")
            async with _key(found.group(), upstream_url) as http:
                yield System(http, temporal.address, upstream_url, data_dir)


@asynccontextmanager
async def _process(
    *command: str, env: dict[str, str] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start a process, wait for its first line, and end it with the block."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=env)
    try:
        if process.stdout is None:
            raise RuntimeError("The process has no output.")
        line = await asyncio.wait_for(process.stdout.readline(), READY_TIMEOUT_S)
        yield process, line.decode().strip()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


@asynccontextmanager
async def _key(api_url: str, upstream_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Register the MCP server, make a key, and yield a client that uses it."""
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with httpx.AsyncClient(base_url=api_url, headers=headers, timeout=60, trust_env=False) as admin:
        connection = {
            "name": "bench",
            "url": f"{upstream_url}/mcp",
            "network": "loopback",
            "tools_to_execute": ["*"],
        }
        (await admin.post("/api/v1/mcp/clients", json=connection)).raise_for_status()
        overlays = [{"match": {"tool_name": "bench-pause"}, "execution_policy": {"parallel_safe": True}}]
        answer = await admin.put("/api/v1/policies/tool-overlays", json={"overlays": overlays})
        answer.raise_for_status()
        key = await admin.post("/api/v1/keys", json={"name": "bench"})
        key.raise_for_status()
    bearer = {"Authorization": f"Bearer {key.json()['secret']}"}
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    async with httpx.AsyncClient(
        base_url=api_url, headers=bearer, timeout=120, trust_env=False, limits=limits
    ) as client:
        yield client
