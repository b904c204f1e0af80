"""Everything that can be killed: Temporal server, API, workers, PostgreSQL, each a process of its own."""

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client

from api.embedded import EmbeddedOptions, EmbeddedTemporal
from api.processes import LOOPBACK, free_port
from governance.codes import IdempotencyClass
from models.database import Database, WriteSession
from models.key import add_secret
from models.migration import migrate
from tests.crash.dying import arm
from tests.crash.postgres import MortalPostgres
from tests.support.world import ConnectionPlan, add_connection, add_key
from workflows.messages import TASK_QUEUE

START_S = 180.0
"""How long a process may take to be ready on a busy machine."""

DEATH_S = 200.0
"""How long it may take until something has come to its point, has died and runs again."""

OBJECT: dict[str, Any] = {"type": "object"}


@dataclass
class Process:
    """A child with one line of output that says that it is ready, or of its log, and a log."""

    name: str
    arguments: list[str]
    environment: dict[str, str]
    log: Path
    logs_when_ready: str = ""
    child: asyncio.subprocess.Process | None = None
    line: str = ""

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.child = await asyncio.create_subprocess_exec(
                *(sys.executable, *self.arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        try:
            async with asyncio.timeout(START_S):
                self.line = await self._ready_line()
        except TimeoutError as error:
            raise TimeoutError(f"{self.name} is not ready: {self.log.read_text()[-3000:]}") from error
        assert self.line, f"{self.name} ended at once: {self.log.read_text()[-3000:]}"

    async def _ready_line(self) -> str:
        assert self.child is not None
        assert self.child.stdout is not None
        while self.logs_when_ready:
            if self.child.returncode is not None:
                return ""
            said = [line for line in self.log.read_text().splitlines() if self.logs_when_ready in line]
            if said:
                return said[0]
            await asyncio.sleep(0.05)
        return (await self.child.stdout.readline()).decode().strip()

    async def kill(self) -> None:
        """End it as a power cut would: it learns nothing of it."""
        if self.child is not None:
            with suppress(ProcessLookupError):
                self.child.kill()
            await self.child.wait()

    async def ended(self) -> int:
        """Wait until it has ended by itself, and return its exit status."""
        assert self.child is not None
        return await self.child.wait()

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    def ask_to_stop(self) -> None:
        """Send SIGTERM, as whoever deploys does."""
        assert self.child is not None
        self.child.terminate()


@dataclass
class Cluster:
    """A running installation, and the names and secrets to use it with."""

    folder: Path
    database_url: str
    admin_token: str
    secret: str
    upstream_url: str
    api: Process
    workers: list[Process]
    temporal_port: int
    postgres: MortalPostgres | None
    temporal: EmbeddedTemporal = field(init=False)

    def arm(self, point: str, victim: str = "itself") -> None:
        """Have what is named die when a process comes to a point; `itself` is that process."""
        pids = {"itself": 0, "temporal": self.temporal.pid if victim == "temporal" else 0}
        if self.postgres is not None:
            pids["postgres"] = self.postgres.pid
        arm(self.folder / "arm", point, pids[victim])

    @property
    def fault(self) -> Path:
        """While this file exists, workers forget what they sent."""
        return self.folder / "fault"

    @property
    def kind(self) -> str:
        """Which kind of database the ledger is on."""
        return "sqlite" if self.postgres is None else "postgres"

    @property
    def api_url(self) -> str:
        return f"http://{LOOPBACK}:{self.api.environment['SLUICEGATE_PORT']}"

    async def start_temporal(self) -> None:
        options = EmbeddedOptions(port=self.temporal_port, grace_s=0.0)
        self.temporal = EmbeddedTemporal(self.folder / "temporal", options)
        await self.temporal.__aenter__()

    async def kill_temporal(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.temporal.pid, 9)
        await self.temporal.__aexit__(None, None, None)

    async def start_again(self, victim: str) -> None:
        """Wait until what was armed has died, and start it again."""
        async with asyncio.timeout(DEATH_S):
            match victim:
                case "worker":
                    await (await self.dead_worker()).start()
                case "api":
                    await self.api.ended()
                    await self.api.start()
                case "temporal":
                    await self.temporal.wait()
                    await self.kill_temporal()
                    await self.start_temporal()
                case _:
                    await self.start_postgres_again()

    async def dead_worker(self) -> Process:
        """Wait until one of the workers has ended, and return it."""
        ends = {asyncio.create_task(worker.ended()): worker for worker in self.workers}
        done, rest = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        return ends[done.pop()]

    async def start_postgres_again(self) -> None:
        assert self.postgres is not None
        await asyncio.to_thread(self.postgres.wait, DEATH_S)
        await asyncio.to_thread(self.postgres.start)

    async def kill_workers(self) -> None:
        """Kill every worker and start them again."""
        await asyncio.gather(*(worker.kill() for worker in self.workers))
        await asyncio.gather(*(worker.start() for worker in self.workers))

    async def upstream_log(self) -> dict[str, Any]:
        async with httpx.AsyncClient(trust_env=False) as http:
            shown: dict[str, Any] = (await http.get(f"{self.upstream_url}/log")).json()
            return shown

    async def command(self, *arguments: str) -> str:
        """Run `sluicegate` as the operator, and return what it prints."""
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "api.cli", *arguments),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "SLUICEGATE_URL": self.api_url, "SLUICEGATE_ADMIN_TOKEN": self.admin_token},
        )
        said, _ = await child.communicate()
        assert child.returncode == 0, said
        return said.decode()

    @asynccontextmanager
    async def without_schedule(self) -> AsyncIterator[None]:
        """Let nothing be reconciled but by hand."""
        client = await Client.connect(self.temporal.address)
        schedule = client.get_schedule_handle(f"sluicegate-reconcile-{TASK_QUEUE}")
        await schedule.pause()
        try:
            yield
        finally:
            await schedule.unpause()

    async def reconcile(self) -> dict[str, Any]:
        """Have everything repaired that is older than a moment."""
        async with httpx.AsyncClient(base_url=self.api_url, trust_env=False, timeout=40) as http:
            response = await http.post(
                "/api/v1/reconcile",
                params={"grace_s": 2},
                headers={"authorization": f"Bearer {self.admin_token}"},
            )
            repaired: dict[str, Any] = response.json()
            return repaired


def build_world(url: str, upstream_url: str) -> str:
    """Migrate the database, add one connection for each idempotency class, and a key; return its secret."""
    database = Database(url)
    migrate(database)

    def build(session: WriteSession) -> str:
        for idempotency in IdempotencyClass:
            path = "/mcp/keyed" if idempotency is IdempotencyClass.KEYED else "/mcp"
            add_connection(
                session,
                ConnectionPlan(
                    name=idempotency.value,
                    url=upstream_url + path,
                    tools={"work": OBJECT, "stream": OBJECT},
                    parallel_safe=("work", "stream"),
                    idempotency=idempotency,
                    tool_timeout_s=30.0,
                ),
            )
        return add_secret(session, add_key(session, "crash").id, "sgk_").text

    async def write() -> str:
        async with database:
            return await database.write(build)

    return asyncio.run(write())


@asynccontextmanager
async def running_cluster(
    folder: Path, *, workers: int, with_postgres: bool = False
) -> AsyncIterator[Cluster]:
    """Start everything, and end every process however the block is left."""
    async with AsyncExitStack() as stack:
        postgres = await _postgres(stack) if with_postgres else None
        url = f"sqlite:///{folder / 'crash.db'}" if postgres is None else postgres.url
        upstream = Process("upstream", ["-m", "tests.crash.upstream"], {}, folder / "upstream.log")
        stack.push_async_callback(upstream.kill)
        await upstream.start()
        upstream_url = f"http://{LOOPBACK}:{upstream.line}"
        secret = await asyncio.to_thread(build_world, url, upstream_url)
        token = f"sga_{secrets.token_urlsafe(24)}"
        temporal_port = free_port()
        environment = environment_of(folder, url, token, temporal_port)
        api = Process("api", ["-m", "tests.crash.api_entry"], environment, folder / "api.log")
        crew = [
            Process(f"worker {n}", ["-m", "tests.crash.worker_entry"], environment, folder / f"worker{n}.log")
            for n in range(workers)
        ]
        cluster = Cluster(folder, url, token, secret, upstream_url, api, crew, temporal_port, postgres)
        await cluster.start_temporal()
        stack.push_async_callback(cluster.kill_temporal)
        for process in (api, *crew):
            stack.push_async_callback(process.kill)
        await asyncio.gather(*(process.start() for process in (api, *crew)))
        yield cluster


async def _postgres(stack: AsyncExitStack) -> MortalPostgres:
    # Not inside pytest's folder, which PostgreSQL's own user may not enter.
    place = stack.enter_context(tempfile.TemporaryDirectory(prefix="sluicegate-crash-"))
    postgres = MortalPostgres(Path(place))
    await asyncio.to_thread(postgres.make)
    stack.callback(postgres.kill)
    await asyncio.to_thread(postgres.start)
    return postgres


def environment_of(folder: Path, url: str, token: str, temporal_port: int) -> dict[str, str]:
    """Return what every process of a cluster is told: its liveness limits are short, its drain is not."""
    return {
        "SLUICEGATE_DATABASE_URL": url,
        "SLUICEGATE_DATA_DIR": str(folder),
        "SLUICEGATE_TEMPORAL_ADDRESS": f"{LOOPBACK}:{temporal_port}",
        "SLUICEGATE_ADMIN_TOKEN": token,
        "SLUICEGATE_PORT": str(free_port()),
        "SLUICEGATE_HEARTBEAT_TIMEOUT_S": "2",
        "SLUICEGATE_HEARTBEAT_THROTTLE_S": "0.2",
        "SLUICEGATE_TASK_TIMEOUT_S": "2",
        "SLUICEGATE_STICKY_TIMEOUT_S": "1",
        "CRASH_ARM": str(folder / "arm"),
        "CRASH_FAULT": str(folder / "fault"),
    }
