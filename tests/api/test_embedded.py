"""The embedded server for real: it serves, it never outlives its owner, and it names who is in its way."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.testing import TimeSkipper
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from api.embedded import (
    EmbeddedOptions,
    EmbeddedTemporal,
    ServerAlreadyRunning,
    ServerDidNotStart,
    read_record,
    server_arguments,
    server_environment,
    write_record,
)
from api.processes import PortTaken, ProcessId, identify
from api.search_attributes import SEARCH_ATTRIBUTES
from tests.support.temporal_server import TEST_OPTIONS

pytestmark = pytest.mark.anyio

DEADLINE_S = 5


@dataclass
class Owner:
    """A process that owns an embedded server."""

    process: asyncio.subprocess.Process
    server: ProcessId
    address: str


@asynccontextmanager
async def owner_of_a_server(folder: Path) -> AsyncIterator[Owner]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.embedded_owner", str(folder)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            pid, address = (await process.stdout.readline()).split()
        yield Owner(process, identify(int(pid)), address.decode())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_gone(process: ProcessId) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while process.is_running():  # noqa: ASYNC110 - A process of nobody here: nothing to wait on.
            await asyncio.sleep(0)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@workflow.defn(name="DayLong", sandboxed=False)
class DayLong:
    @workflow.run
    async def run(self) -> str:
        await workflow.sleep(timedelta(days=1))
        return "a day has passed"


async def test_the_server_runs_a_workflow_and_skips_its_time(
    temporal_client: Client, time_skipper: TimeSkipper, task_queue: str
) -> None:
    async with Worker(
        temporal_client,
        task_queue=task_queue,
        workflows=[DayLong],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        async with asyncio.timeout(20):
            result = await time_skipper.client.execute_workflow(
                DayLong.run, id=task_queue, task_queue=task_queue
            )
    assert result == "a day has passed"


async def test_rounds_can_be_listed_by_every_search_attribute(temporal_client: Client) -> None:
    queries = {
        "SluicegateKey": "SluicegateKey = 'k'",
        "RoundState": "RoundState = 'running'",
        "ToolNames": "ToolNames IN ('a', 'b')",
        "HasUnknown": "HasUnknown = true",
    }
    found = {
        name: [row async for row in temporal_client.list_workflows(query)] for name, query in queries.items()
    }
    assert found == {name: [] for name in SEARCH_ATTRIBUTES}


async def test_workflows_are_still_there_when_the_server_starts_again(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path) as first:
        client = await Client.connect(first.address)
        await client.start_workflow("Waits", id="kept", task_queue="nobody-listens")
        assert first.log_path.exists()
    assert read_record(tmp_path / "temporal.json") is None
    async with EmbeddedTemporal(tmp_path, EmbeddedOptions(ui=True)) as second:
        client = await Client.connect(second.address)
        assert (await client.get_workflow_handle("kept").describe()).id == "kept"
        assert second.ui_url is not None
        host, port = second.ui_url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()


async def test_leaving_the_context_ends_the_server(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, TEST_OPTIONS) as server:
        process = identify(server.pid)
        assert process.is_running()
    assert not process.is_running()


async def test_the_end_of_the_server_itself_is_noticed(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, TEST_OPTIONS) as server:
        os.kill(server.pid, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            assert await server.wait() == 128 + signal.SIGKILL


async def test_a_killed_owner_takes_its_server_with_it(tmp_path: Path) -> None:
    async with owner_of_a_server(tmp_path) as owner:
        owner.process.kill()
        await until_gone(owner.server)


async def test_a_killed_shim_takes_the_server_with_it(tmp_path: Path) -> None:
    async with owner_of_a_server(tmp_path) as owner:
        os.kill(parent_of(owner.server.pid), signal.SIGKILL)
        await until_gone(owner.server)


async def test_a_server_left_behind_is_stopped_at_the_next_start(tmp_path: Path) -> None:
    orphan = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    record_path = tmp_path / "temporal.json"
    dead_owner = ProcessId(pid=1, started="long ago")
    record = read_record(record_path)
    assert record is None
    async with EmbeddedTemporal(tmp_path, TEST_OPTIONS):
        record = read_record(record_path)
    assert record is not None
    write_record(record_path, replace(record, server=identify(orphan.pid), owner=dead_owner))
    async with EmbeddedTemporal(tmp_path, TEST_OPTIONS):
        assert await orphan.wait() == -signal.SIGTERM


async def test_a_record_of_another_folder_or_of_an_earlier_process_stops_nothing(tmp_path: Path) -> None:
    bystander = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    async with EmbeddedTemporal(tmp_path, TEST_OPTIONS):
        record = read_record(tmp_path / "temporal.json")
    assert record is not None
    dead_owner = ProcessId(pid=1, started="long ago")
    for stale in (
        replace(record, server=identify(bystander.pid), owner=dead_owner, data_dir="elsewhere"),
        replace(record, server=ProcessId(bystander.pid, "earlier"), owner=dead_owner),
    ):
        write_record(tmp_path / "temporal.json", stale)
        async with EmbeddedTemporal(tmp_path, TEST_OPTIONS):
            assert bystander.returncode is None
    await bystander.communicate(b"\n")
    assert bystander.returncode == 0


async def test_a_second_server_on_one_folder_is_refused_and_names_the_owner(tmp_path: Path) -> None:
    async with owner_of_a_server(tmp_path) as owner:
        with pytest.raises(
            ServerAlreadyRunning, match=f"process {owner.process.pid} already runs"
        ) as refused:
            async with EmbeddedTemporal(tmp_path, TEST_OPTIONS):
                pass
        assert refused.value.owner_pid == owner.process.pid
        assert owner.server.is_running()


async def test_a_foreign_listener_on_the_port_is_named(tmp_path: Path) -> None:
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1]); input()"
    foreign = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-c", listen, "the-foreign-one"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert foreign.stdout is not None
    port = int(await foreign.stdout.readline())
    with pytest.raises(PortTaken, match="the-foreign-one") as taken:
        async with EmbeddedTemporal(tmp_path, replace(TEST_OPTIONS, port=port)):
            pass
    await foreign.communicate(b"\n")
    assert (taken.value.port, taken.value.pid) == (port, foreign.pid)


async def test_a_server_that_ends_at_once_shows_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "temporal.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(ServerDidNotStart, match="not a database") as failed:
        async with EmbeddedTemporal(tmp_path):
            pass
    assert "temporal.log" in str(failed.value)


def test_an_untuned_server_gets_neither_dynamic_configuration_nor_pragmas() -> None:
    database = Path("temporal.db")
    tuned = server_arguments(EmbeddedOptions(), 1, None, database)
    untuned = server_arguments(EmbeddedOptions(tuned=False), 1, None, database)
    assert {argument.partition("=")[0] for argument in set(tuned) - set(untuned)} == {
        "--dynamic-config-value",
        "--sqlite-pragma",
    }
    assert set(untuned) < set(tuned)


def test_the_server_does_not_see_our_settings() -> None:
    environ = {"PATH": "bin", "SLUICEGATE_ADMIN_TOKEN": "secret", "sluicegate_database_url": "secret"}
    assert server_environment(environ) == {"PATH": "bin", "TEMPORAL_VERSION_CHECK_DISABLED": "1"}
