"""The test's side of `tests.crash.nursery`: asks it for processes, and holds each by a descriptor."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

STATUS_UNKNOWN = -1
"""Only its parent learns the exit status of a process, and that is the nursery."""


class Forked:
    """A process that the nursery forked; as much of `asyncio.subprocess.Process` as the crash tests use."""

    def __init__(self, pid: int, handle: int, stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._handle = handle
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self.returncode = STATUS_UNKNOWN
        self._ended.set()

    async def wait(self) -> int:
        """Wait until it has ended."""
        await self._ended.wait()
        return STATUS_UNKNOWN

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def _send(self, signal_: signal.Signals) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        signal.pidfd_send_signal(self._handle, signal_)


class Nursery:
    """A process that has imported what workers and APIs need, and forks them when asked."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._requests: socket.socket | None = None
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs, self._log.open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.crash.nursery", str(theirs.fileno())),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
                pass_fds=(theirs.fileno(),),
            )

    async def bear(self, module: str, environment: Mapping[str, str], log: Path) -> Forked:
        """Have an entry module run in a new process, its standard output readable here."""
        reading, writing = os.pipe()
        reader = asyncio.StreamReader()
        try:
            with log.open("ab") as kept:
                request = json.dumps({"module": module, "environment": dict(environment)}).encode()
                pid, handle = await asyncio.to_thread(self._ask, request, writing, kept.fileno())
        finally:
            os.close(writing)
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb"))
        return Forked(pid, handle, reader)

    def _ask(self, request: bytes, *descriptors: int) -> tuple[int, int]:
        assert self._requests is not None
        socket.send_fds(self._requests, [request], list(descriptors))
        answer, handles, _, _ = socket.recv_fds(self._requests, 64, 1)
        assert answer, f"the nursery has ended: {self._log.read_text()[-3000:]}"
        return int(answer), handles[0]

    async def kill(self) -> None:
        """End it; it ends what it forked."""
        if self._requests is not None:
            self._requests.close()
        if self._child is not None:
            try:
                async with asyncio.timeout(10):
                    await self._child.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    self._child.kill()
                await self._child.wait()
