"""Try the transport on real servers and print their table: ``python -m tests.interop.run [NAME ...]``.

The table is kept in docs/mcp.md.

Installs pinned servers below this folder on first use. Exit status 1 when a row has a failure.
"""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from activities.mcp_http.client import MCPClient, build_http_client
from activities.mcp_http.errors import MCPError, SessionLost
from activities.mcp_http.types import CallHooks, Cursor, Endpoint, OpenSession, Timeouts, ToolAnswer, ToolCall
from tests.interop.servers import Call, Server, all_servers

ROOT: Final = Path(__file__).parents[2]
START_S: Final = 40.0
COLUMNS: Final = ("list", "call", "progress", "cancel", "session loss", "resume")
NOT_OFFERED: Final = "-"


class Failed(Exception):
    """A check did not come out as it should."""


class Trial:
    """One server with an open session; each check returns what goes into its column."""

    def __init__(self, server: Server, client: MCPClient, session: OpenSession) -> None:
        self._server = server
        self._client = client
        self._session = session

    async def check_list(self) -> str:
        listing = await self._client.list_tools(self._session)
        _require(bool(listing.tools) and listing.stopped is None, f"stopped: {listing.stopped}")
        dropped = f", {len(listing.dropped)} dropped" if listing.dropped else ""
        return f"{len(listing.tools)} tools{dropped}"

    async def check_call(self) -> str:
        answer = await self._call(self._server.call)
        _require(not answer.is_error, str(answer.content)[:200])
        return "yes"

    async def check_progress(self) -> str:
        if self._server.long is None:
            return NOT_OFFERED
        seen: list[float] = []

        async def on_progress(progress: Any) -> None:
            seen.append(progress.progress)

        answer = await self._call(self._server.long, CallHooks(on_progress=on_progress))
        _require(not answer.is_error, str(answer.content)[:200])
        return f"{len(seen)} steps" if seen else "none sent"

    async def check_cancel(self) -> str:
        if self._server.endless is None:
            return NOT_OFFERED
        running = asyncio.create_task(self._call(self._server.endless))
        await asyncio.wait({running}, timeout=1.0)
        _require(not running.done(), "the call ended by itself")
        running.cancel()
        await asyncio.wait({running}, timeout=6.0)
        _require(running.cancelled(), "the call did not end")
        await self._call(self._server.call)
        return "yes"

    async def check_loss(self) -> str:
        if self._session.session_id is None:
            return NOT_OFFERED
        await self._client.close_session(self._session)
        try:
            await self._call(self._server.call)
        except SessionLost as exc:
            status = exc.http_status
        else:
            return "not noticed by the server"
        self._session = await self._client.open_session()
        await self._call(self._server.call)
        return f"yes ({status})"

    async def check_resume(self) -> str:
        if self._server.long is None:
            return NOT_OFFERED
        cursors: list[Cursor] = []
        reached = asyncio.Event()

        async def on_cursor(cursor: Cursor) -> None:
            cursors.append(cursor)
            reached.set()

        call = _tool_call(self._server.long)
        hooks = CallHooks(on_cursor=on_cursor, tell_upstream_on_cancel=lambda: False)
        running = asyncio.create_task(self._client.call_tool(self._session, call, hooks, timeout_s=20))
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        if not cursors:
            return NOT_OFFERED
        try:
            answer = await self._client.resume_call(self._session, cursors[-1], call, timeout_s=20)
        except MCPError as exc:
            return f"ids, but {exc.code}"
        _require(not answer.is_error, str(answer.content)[:200])
        return "yes"

    async def _call(self, call: Call, hooks: CallHooks | None = None) -> ToolAnswer:
        return await self._client.call_tool(
            self._session, _tool_call(call), hooks or CallHooks(), timeout_s=30
        )


def _tool_call(call: Call) -> ToolCall:
    return ToolCall(call[0], call[1], str(uuid4()))


def _require(condition: bool, why: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise Failed(why)


@asynccontextmanager
async def running(server: Server) -> AsyncGenerator[str, None]:
    """Start a server with a clean environment on a free port; give its URL once it accepts connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= server.environment(port)
    process = await asyncio.create_subprocess_exec(
        *server.command(port),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await _accepts(port, process)
        yield f"http://127.0.0.1:{port}{server.path}"
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _accepts(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_S):
        while True:
            _require(process.returncode is None, f"the server ended with status {process.returncode}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


async def try_server(server: Server) -> list[str]:
    """Return the row of one server: name, version spoken, then the columns; failures in capitals."""
    try:
        async with running(server) as url:
            endpoint = Endpoint(
                url,
                network="loopback",
                protocol_version=server.version,
                transport="http_sse" if server.transport == "http_sse" else "streamable_http",
                timeouts=Timeouts(negotiation_s=20),
            )
            async with build_http_client(endpoint, ssl.create_default_context()) as http:
                client = MCPClient(http, endpoint)
                session = await client.open_session()
                trial = Trial(server, client, session)
                checks = (
                    trial.check_list,
                    trial.check_call,
                    trial.check_progress,
                    trial.check_cancel,
                    trial.check_loss,
                    trial.check_resume,
                )
                return [server.name, session.protocol_version, *[await _cell(check) for check in checks]]
    except (MCPError, Failed, TimeoutError) as exc:
        return [server.name, f"FAILED: {exc!r}", *[""] * len(COLUMNS)]


async def _cell(check: Callable[[], Awaitable[str]]) -> str:
    try:
        return await check()
    except (MCPError, Failed) as exc:
        return f"FAILED: {exc!r}"


async def main(names: list[str]) -> int:
    """Try all servers, or those whose name holds one of `names`; print the table."""
    failed = False
    _say(f"| server | version | {' | '.join(COLUMNS)} |")
    _say(f"|{'---|' * (len(COLUMNS) + 2)}")
    with tempfile.TemporaryDirectory() as scratch:
        for server in all_servers(Path(scratch)):
            if names and not any(name in server.name for name in names):
                continue
            row = await try_server(server)
            failed = failed or any("FAILED" in cell for cell in row)
            _say(f"| {' | '.join(row)} |")
    return 1 if failed else 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this is a command


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
