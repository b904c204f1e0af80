"""Run a command with a real PostgreSQL server that exists only for it.

    python -m tests.support.postgres_server COMMAND [ARGUMENT ...]

The server listens on loopback, keeps its data in a temporary folder without syncing it, and ends with this
process, however that ends. The command gets its URL in SLUICEGATE_TEST_POSTGRES_URL. PostgreSQL refuses to
run as root, so root starts it as `postgres` or `nobody`.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from api import lifeline
from api.processes import LOOPBACK, free_port
from tests.support.database_kinds import POSTGRES_URL_VARIABLE

START_TIMEOUT_S = 30.0

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    # The data are thrown away: nothing needs to survive a crash.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_connections": "300",
}


class PostgresUnavailable(Exception):
    """No PostgreSQL server can be run here; the message says what to do."""


def find_binary(name: str) -> Path:
    """Find a program of the PostgreSQL server: the newest of Debian's folders first, then PATH.

    Raises:
        PostgresUnavailable: it is not installed.
    """
    # Debian keeps the server's programs out of PATH, one folder for each major version.
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    for folder in reversed(folders):
        if (folder / name).exists():
            return folder / name
    found = shutil.which(name)
    if found is None:
        raise PostgresUnavailable(
            f"no PostgreSQL server here (`{name}` is missing): install it, on Debian and Ubuntu with"
            " `apt-get install postgresql`, elsewhere so that its programs are on PATH"
        )
    return Path(found)


def unprivileged_user() -> pwd.struct_passwd | None:
    """Return the user to run the server as; None when we are not root and run it ourselves."""
    if os.geteuid() != 0:
        return None
    users = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in users:
            return users[name]
    raise PostgresUnavailable("PostgreSQL refuses to run as root and there is no user `postgres` or `nobody`")


def as_user(user: pwd.struct_passwd | None, command: Sequence[str]) -> list[str]:
    """Put what drops root's rights before the command."""
    if user is None:
        return list(command)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server and yield the URL of its administrative database.

    Raises:
        PostgresUnavailable: it is not installed, or did not start.
    """
    user, initdb, postgres = unprivileged_user(), find_binary("initdb"), find_binary("postgres")
    with tempfile.TemporaryDirectory(prefix="sluicegate-postgres-") as name:
        folder = Path(name)
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = str(folder / "data")
        make_cluster = [str(initdb), "-D", data, "-U", "sluicegate", "--auth=trust", "--no-sync"]
        make_cluster += ["--encoding=UTF8", "--locale=C"]
        subprocess.run(as_user(user, make_cluster), cwd=folder, check=True, stdout=subprocess.DEVNULL)
        port = free_port()
        settings = [f"--{key}={value}" for key, value in (SETTINGS | {"port": str(port)}).items()]
        command = as_user(user, [str(postgres), "-D", data, *settings])
        url = f"postgresql://sluicegate@{LOOPBACK}:{port}/postgres"
        with kept_alive(command, folder, folder / "server.log") as server:
            wait_until_ready(url, server, folder / "server.log")
            yield url


@contextmanager
def kept_alive(command: Sequence[str], folder: Path, log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server behind the lifeline, so that it ends with this process."""
    with log_path.open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-I", "-S", lifeline.__file__, "3", str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    with server:
        yield server


def wait_until_ready(url: str, server: "subprocess.Popen[bytes]", log_path: Path) -> None:
    """Wait until the server takes connections.

    Raises:
        PostgresUnavailable: it ended, or took too long.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(url, connect_timeout=1).close()
        except psycopg.OperationalError:
            time.sleep(0.02)
        else:
            return
    log = log_path.read_text(errors="replace")[-2000:]
    raise PostgresUnavailable(f"the PostgreSQL server did not start; its log ends:\n{log}")


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command with a server and return its exit status."""
    try:
        with postgres_server() as url:
            return subprocess.run(
                command, env={**environ, POSTGRES_URL_VARIABLE: url}, check=False
            ).returncode
    except PostgresUnavailable as exc:
        sys.stderr.write(f"{exc}\n")
        return 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], os.environ))
