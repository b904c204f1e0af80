"""Run one command and end it as soon as the process that asked for it is gone.

Started as a script of its own by `api.embedded`, never imported by it: standard library only. Standard
input is the lifeline: its other end is held by the asking process alone, so end-of-file means that this
process closed it or died, however it died. The command runs as a child of this one; its pid is the one line
written to standard output. Usage: `lifeline.py GRACE_S OWNER_PID COMMAND [ARGUMENT ...]`. The exit status is
the command's.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
"""Linux `prctl` option: the signal a process gets when its parent dies. Source: prctl(2)."""

POLL_S = 0.25
"""How often the command is looked at; the end of the owner needs no polling."""


class Owner:
    """The asking process: gone when it lets go of the lifeline, ends, or asks for the end by SIGTERM."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _signal: int, _frame: object) -> None:
        self._asked = True

    def is_gone(self) -> bool:
        """Wait up to `POLL_S` and say whether the command is to end."""
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], POLL_S)
        closed = bool(readable) and not os.read(sys.stdin.fileno(), 1)
        return closed or self._asked or os.getppid() != self._pid


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends; elsewhere do nothing.

    The signal fires when the *thread* that forked ends. This program has one thread, which is why it stands
    between the asking process and the command.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def stop(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Terminate the command, and kill it when it has not ended within `grace_s` seconds."""
    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main() -> int:
    """Run the command of the command line until it ends or its owner is gone."""
    grace_s, owner, command = float(sys.argv[1]), Owner(int(sys.argv[2])), sys.argv[3:]
    # The owner decides when the command ends: a Ctrl-C in the terminal is the owner's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - One thread, so no lock can be held at the fork.
    )
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.close()
    while child.poll() is None:
        if owner.is_gone():
            stop(child, grace_s)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main())
