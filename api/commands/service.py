"""Serve the API until the process is told to stop, then let what runs finish."""

import asyncio
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from api.app import create_app
from api.commands.data_files import ADMIN_PREFIX, keep_token
from api.commands.draining import Drain
from api.commands.failures import CommandFailed, UsageFailed
from api.commands.process_edge import end_now
from api.commands.serving import APIServer, Stopping
from api.deps import APIDeps
from settings import Settings

LAST_S = 10.0
"""How long closing may take once draining is over; a server that is stuck is ended then."""

REQUESTS_S = 1.0
"""What requests get to be answered in, when the rounds that they wait for have ended or were given up."""


@dataclass(frozen=True)
class Service:
    """The API on a bound socket; `drain` is what it waits for when it ends, beside the requests in flight."""

    deps: APIDeps
    listener: socket.socket
    stopping: Stopping
    drain: Drain | None

    async def run(self, announce: Callable[[], None], engine_end: Coroutine[Any, Any, str] | None) -> None:
        """Serve until a signal comes; `announce` is called as soon as requests are answered.

        Raises:
            CommandFailed: the engine ended by itself; says what `engine_end` returned.
        """
        server = APIServer(create_app(self.deps), self.deps.settings.drain_s)
        serving = asyncio.create_task(server.serve([self.listener]))
        engine = None if engine_end is None else asyncio.create_task(engine_end)
        await first_of(serving, server.serves.wait())
        if server.serves.is_set():
            announce()
            watched = [serving] if engine is None else [serving, engine]
            await first_of(*watched, self.stopping.asked.wait())
        if not serving.done():
            await self._stop(server, serving, drains=engine is None or not engine.done())
        await serving
        await self.deps.aclose()
        if engine is not None and engine.done():
            raise CommandFailed(engine.result())
        if engine is not None:
            engine.cancel()

    async def _stop(self, server: APIServer, serving: "asyncio.Task[None]", *, drains: bool) -> None:
        """Stop taking requests, let what runs finish, then give up the rest."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.deps.settings.drain_s
        self.deps.stopping.set()
        server.stop()
        if drains and self.drain is not None:
            await self.drain.wait(self.stopping, self.deps.settings.drain_s)
            until = loop.time() + REQUESTS_S
        await first_of(serving, self.stopping.urgent.wait(), timeout_s=max(0.0, until - loop.time()))
        loop.call_later(LAST_S, _give_up)
        server.stop(at_once=True)
        # From Python 3.12 on, closing waits for connections that clients keep open.
        if not await first_of(serving, timeout_s=REQUESTS_S):
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def _give_up() -> None:
    say(f"Closing took longer than {LAST_S:g} s. What is open is settled by the next start.")
    end_now(1)


async def first_of(
    task: "asyncio.Task[Any]",
    *others: "Coroutine[Any, Any, Any] | asyncio.Task[Any]",
    timeout_s: float | None = None,
) -> bool:
    """Wait until one of them has ended, for so long at most; coroutines are ended with it, tasks go on."""
    made = [asyncio.create_task(other) for other in others if not isinstance(other, asyncio.Task)]
    given = [other for other in others if isinstance(other, asyncio.Task)]
    done, _ = await asyncio.wait(
        [task, *given, *made], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
    )
    for one in made:
        one.cancel()
    await asyncio.gather(*made, return_exceptions=True)
    return bool(done)


def admin_token_of(settings: Settings) -> str:
    """Return the control plane's token: the settings', or the one of the data folder, made if need be.

    Raises:
        UsageFailed: the settings' token does not begin as admin tokens do.
    """
    if settings.admin_token is None:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return keep_token(settings.data_dir)
    token = settings.admin_token.get_secret_value()
    if not token.startswith(ADMIN_PREFIX):
        raise UsageFailed(f"SLUICEGATE_ADMIN_TOKEN must begin with {ADMIN_PREFIX!r}")
    return token


def say(line: str) -> None:
    """Tell whoever looks at the process; at once, for its output may be a file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
