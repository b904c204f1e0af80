"""Our own command, `up` and the example MCP servers as real processes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import api

ROOT = Path(api.__file__).resolve().parents[1]

COMMAND_S = 120
"""Importing everything takes seconds on a machine whose cores are shared."""

FREE_PORTS = ("--port", "0", "--temporal-port", "0", "--ui-port", "0")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the JSON that it printed."""
        assert self.status == 0, self.err
        return json.loads(self.out)


def environment(data_dir: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which nothing of the tester's own installation is seen."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
    return {
        **kept,
        "SLUICEGATE_DATA_DIR": str(data_dir),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "200",
        **(extra or {}),
    }


async def sluicegate(
    *arguments: str, data_dir: Path, extra: Mapping[str, str] | None = None, given: str = ""
) -> Done:
    """Run our command to its end, with `given` as its standard input."""
    return await run([sys.executable, "-m", "api.cli", *arguments], environment(data_dir, extra), given)


async def run(command: list[str], env: Mapping[str, str], given: str = "") -> Done:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(COMMAND_S):
            out, err = await process.communicate(given.encode())
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return Done(process.returncode or 0, out.decode(), err.decode())


@dataclass
class Up:
    """A running `sluicegate up`."""

    process: asyncio.subprocess.Process
    data_dir: Path
    banner: list[str] = field(default_factory=list)
    place: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where its API is."""
        return str(self.place["url"])

    @property
    def secrets(self) -> dict[str, str]:
        """What its banner showed: admin token and first key."""
        shown = {"Admin token": "admin", "First key": "key"}
        lines = [line.strip() for line in self.banner]
        return {
            name: line.removeprefix(label).split()[0]
            for label, name in shown.items()
            for line in lines
            if line.startswith(label)
        }

    async def line(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        async with asyncio.timeout(COMMAND_S):
            return (await self.process.stdout.readline()).decode()

    async def end(self, signal_: int = signal.SIGTERM) -> str:
        """Ask it to stop, and return what it printed until it had."""
        self.process.send_signal(signal_)
        return await self.rest()

    async def rest(self) -> str:
        """Return what it prints until its end."""
        assert self.process.stdout is not None
        async with asyncio.timeout(COMMAND_S):
            rest = await self.process.stdout.read()
            await self.process.wait()
        return rest.decode()


@asynccontextmanager
async def running_up(
    data_dir: Path, *options: str, extra: Mapping[str, str] | None = None
) -> AsyncIterator[Up]:
    """Run `up` on free ports; it is killed if it still runs at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "api.cli", "up", *FREE_PORTS, *options),
        cwd=ROOT,
        env=environment(data_dir, extra),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    up = Up(process, data_dir)
    try:
        while not up.banner or not up.banner[-1].startswith("Ctrl-C"):
            up.banner.append(await up.line())
            assert up.banner[-1], up.banner
        up.place = json.loads((data_dir / "server.json").read_text())
        yield up
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def example_server(name: str) -> AsyncIterator[str]:
    """Run one of the example MCP servers; gives its base URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"examples.demo_servers.{name}"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(COMMAND_S):
            url = (await process.stdout.readline()).decode().strip()
        yield url
    finally:
        process.kill()
        await process.wait()
