"""Serve the API from a command: a socket bound beforehand, and a server whose signals the command keeps."""

import asyncio
import errno
import math
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from api.processes import PortTaken, command_of, listener_of

BACKLOG = 2048


class Stopping:
    """What signals have asked of a process: to drain, to end without draining, and last to end at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.urgent = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._ask)

    def _ask(self) -> None:
        if not self.asked.is_set():
            self.asked.set()
        elif not self.urgent.is_set():
            self.urgent.set()
        else:
            os._exit(1)


class APIServer(uvicorn.Server):
    """A uvicorn server that tells when it serves and leaves signals to its process."""

    def __init__(self, app: ASGIApp, drain_s: float) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=math.ceil(drain_s) + 1,
        )
        super().__init__(config)
        self.serves = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell."""
        await super().startup(sockets)
        self.serves.set()

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more requests; `at_once` also gives up those that run."""
        self.should_exit = True
        self.force_exit = at_once


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 means any free one.

    Raises:
        PortTaken: the port has another listener, who is named where that can be seen.
        OSError: the host is not one of this machine, or the port needs privileges.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # With the protocol named, asyncio turns Nagle's algorithm off; without, small answers wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        if exc.errno != errno.EADDRINUSE:
            raise
        pid = listener_of(port)
        raise PortTaken(port, pid, command_of(pid) if pid else None) from exc
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a bound socket, as a browser on this machine reaches it."""
    host: str = listener.getsockname()[0]
    port: int = listener.getsockname()[1]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
