"""Runs the core document's test server as a process of its own, and asks it what it saw."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.mcp_servers import core_matrix_server

START_S = 5.0


@dataclass(frozen=True)
class CoreMatrixServer:
    """A running server."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def arm(self, switch: str, times: int = 1) -> None:
        """Let the next calls fail in one way."""
        async with httpx.AsyncClient(trust_env=False) as http:
            (await http.post(self._control, json={"arm": switch, "times": times})).raise_for_status()

    async def sessions(self) -> list[str]:
        """Return the ids of the sessions that were opened, in order."""
        return list((await self._shown())["sessions"])

    async def log(self) -> list[tuple[str, str, int]]:
        """Return the requests that came, as (verb, method, status)."""
        return [(line["verb"], line["what"], line["status"]) for line in (await self._shown())["log"]]

    async def requests(self) -> list[tuple[tuple[str, str, int], str | None]]:
        """Return the same with the session that each request named; None for one that named none."""
        lines = (await self._shown())["log"]
        return [((line["verb"], line["what"], line["status"]), line["session"]) for line in lines]

    @property
    def _control(self) -> str:
        return f"http://127.0.0.1:{self.port}/control"

    async def _shown(self) -> Any:
        async with httpx.AsyncClient(trust_env=False) as http:
            return (await http.get(self._control)).raise_for_status().json()


@asynccontextmanager
async def core_matrix_server_process() -> AsyncIterator[CoreMatrixServer]:
    """Run a server until the block is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        core_matrix_server.__file__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_S)
        yield CoreMatrixServer(int(line))
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), START_S)
