"""The processes that the demo starts: each ends with the demo, however that ends."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import api
from api import lifeline
from api.commands.failures import CommandFailed

ROOT = Path(api.__file__).resolve().parents[1]
"""The checkout, where the demo's MCP servers are."""

GRACE_S = 15.0
"""How long a process may take to end when asked; `up` takes about 2 s."""

START_S = 30.0
"""How long a process may take to say where it is."""

LOOK_EVERY_S = 0.02


class Child:
    """A process that writes into a log, ended when the context is left or its owner dies."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command = command
        self._log = log
        self._environment = dict(environment)
        self._shim: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._shim = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", lifeline.__file__),
                    *(str(GRACE_S), str(os.getpid()), *self._command),
                ],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                # A Ctrl-C in the terminal is the demo's to handle.
                start_new_session=True,
            )
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._shim is not None and self._shim.stdin is not None:
            self._shim.stdin.close()
            self._shim.wait()

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._shim is None or self._shim.poll() is not None

    def first_line(self) -> str:
        """Wait for the first line that the process writes, and return it.

        Raises:
            CommandFailed: it ended, or wrote nothing in time; with what it wrote instead.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and not self.has_ended:
            line, newline, _ = self.output().partition("\n")
            if newline:
                return line
            time.sleep(LOOK_EVERY_S)
        raise CommandFailed(f"{' '.join(self._command)} did not start:\n{self.output()}")

    def output(self) -> str:
        """Return everything that the process has written."""
        return self._log.read_text("utf-8", "replace")


def clean_environment(data_dir: Path) -> dict[str, str]:
    """Return the environment without settings of ours that would lead the demo to another server."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("SLUICEGATE_")}
    return {**kept, "SLUICEGATE_DATA_DIR": str(data_dir), "PYTHONUNBUFFERED": "1"}


def sluicegate() -> list[str]:
    """Return the command that starts ours."""
    script = Path(sys.executable).with_name("sluicegate")
    return [str(script)] if script.exists() else [sys.executable, "-m", "api.cli"]
