"""What the operating system tells about other processes: their age, their command, who listens on a port."""

import os
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LISTEN_STATE = "0A"
"""TCP_LISTEN as Linux writes it in /proc/net/tcp. Source: proc(5)."""

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ProcessId:
    """A process told apart from a later one that got the same number: its pid and when it started."""

    pid: int
    started: str

    def is_running(self) -> bool:
        """Say whether this very process still runs (a zombie does not)."""
        return started_at(self.pid) == self.started


class PortTaken(Exception):
    """A port that is needed has another listener; `pid` and `command` are None where they cannot be read."""

    def __init__(self, port: int, pid: int | None, command: str | None) -> None:
        self.port = port
        self.pid = pid
        self.command = command
        holder = f"process {pid} ({command or 'command not readable'})" if pid else "another process"
        remedy = "stop it or choose another port: --port, --temporal-port or --ui-port"
        super().__init__(f"port {port} is taken by {holder}: {remedy}")


def this_process() -> ProcessId:
    """Name the calling process."""
    return identify(os.getpid())


def identify(pid: int) -> ProcessId:
    """Name the process that has this pid now; `started` is empty when there is none."""
    return ProcessId(pid=pid, started=started_at(pid) or "")


def started_at(pid: int) -> str | None:
    """Tell when a process started, as text to compare; None when it does not run.

    Linux counts clock ticks since boot, so the boot is part of the text. Elsewhere `ps` tells, to the second.
    """
    if not Path("/proc/self/stat").exists():
        return _ask("ps", "-o", "lstart=", "-p", str(pid))
    try:
        # The command in parentheses may hold spaces and parentheses: fields are counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return None if state in {"Z", "X"} else f"{boot}/{started}"


def command_of(pid: int) -> str | None:
    """Tell the command line of a process, cut to 200 characters; None when it cannot be read."""
    if not Path("/proc/self/stat").exists():
        return _ask("ps", "-o", "command=", "-p", str(pid))
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:200] or None


def free_port() -> int:
    """Find a TCP port on loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def require_free(port: int, host: str = LOOPBACK) -> None:
    """Check that a server could listen on this port.

    Raises:
        PortTaken: it could not, with the pid and command of the listener where they can be read.
    """
    with socket.socket() as probe:
        # As servers do, so that a connection in TIME_WAIT does not count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            pid = listener_of(port)
            raise PortTaken(port, pid, command_of(pid) if pid else None) from exc


def listener_of(port: int) -> int | None:
    """Tell the pid of a process that listens on this TCP port; None when none can be seen."""
    if not Path("/proc/net/tcp").exists():
        answer = _ask("lsof", "-nP", "-t", f"-iTCP:{port}", "-sTCP:LISTEN")
        return int(answer.split()[0]) if answer else None
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for process in Path("/proc").glob("[0-9]*"):
        # Processes end while they are looked at, and those of other users cannot be looked at.
        with suppress(OSError):
            if any(str(fd.readlink()) in wanted for fd in (process / "fd").iterdir()):
                return int(process.name)
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[3] == LISTEN_STATE and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return inodes


def _ask(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None
