"""A PostgreSQL server that can be killed and started again on its data: commits survive the process."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psycopg

from api.processes import LOOPBACK, free_port
from tests.support.postgres_server import as_user, find_binary, unprivileged_user

START_TIMEOUT_S = 30.0

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    # The process is killed and the machine is not: what was written is there, synced or not. A commit must
    # still be written before it is reported, so synchronous_commit stays on.
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "max_connections": "100",
}


class MortalPostgres:
    """One server on loopback, with its data in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql://sluicegate@{LOOPBACK}:{self.port}/postgres"
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        user = unprivileged_user()
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        command = [str(find_binary("initdb")), "-D", str(self._data), "-U", "sluicegate", "--auth=trust"]
        command += ["--no-sync", "--encoding=UTF8", "--locale=C"]
        subprocess.run(as_user(user, command), cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        settings = [f"--{key}={value}" for key, value in (SETTINGS | {"port": str(self.port)}).items()]
        command = [str(find_binary("postgres")), "-D", str(self._data), *settings]
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with (self.folder / "server.log").open("ab") as log:
                self._process = subprocess.Popen(
                    as_user(unprivileged_user(), command),
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    cwd=self.folder,
                )
            if self._is_up(deadline):
                return
            # The killed server's children may still hold its memory for a moment.
            time.sleep(0.2)
        raise TimeoutError(f"PostgreSQL did not start: {(self.folder / 'server.log').read_text()[-1000:]}")

    @property
    def pid(self) -> int:
        """The process whose end is the server's."""
        return 0 if self._process is None else self._process.pid

    def wait(self, timeout_s: float) -> None:
        """Wait until the server has ended by itself."""
        if self._process is not None:
            self._process.wait(timeout_s)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _is_up(self, deadline: float) -> bool:
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(self.url, connect_timeout=1).close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return True
        return False
