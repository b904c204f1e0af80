"""Transactions: whole or nothing, readers that never write, and several processes on one file."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from models.base import new_id
from models.database import (
    Database,
    DatabaseBusyError,
    DatabaseError,
    DatabaseUnavailableError,
    ReadSession,
    WriteSession,
)
from models.key import ApiKey

pytestmark = pytest.mark.anyio


def add_key(session: WriteSession, name: str) -> None:
    session.add(ApiKey(id=new_id(), name=name, enabled=True, has_tool_config=False))
    session.flush()


def count_keys(session: ReadSession) -> int:
    return session.scalar(select(func.count()).select_from(ApiKey)) or 0


async def test_a_read_session_never_writes(database: Database) -> None:
    def write_anyway(session: ReadSession) -> None:
        add_key(WriteSession(session), "smuggled")

    with pytest.raises((DatabaseError, DBAPIError)):
        await database.read(write_anyway)

    assert await database.read(count_keys) == 0


async def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    def add_and_fail(session: WriteSession) -> None:
        add_key(session, "lost")
        raise RuntimeError("late")

    with pytest.raises(RuntimeError, match="late"):
        await database.write(add_and_fail)

    assert await database.read(count_keys) == 0


async def test_a_reader_sees_one_moment_while_others_write(database: Database) -> None:
    loop = asyncio.get_running_loop()

    def look_twice(session: ReadSession) -> tuple[int, int]:
        first = count_keys(session)
        asyncio.run_coroutine_threadsafe(database.write(add_key, "between"), loop).result(5)
        return first, count_keys(session)

    first, second = await database.read(look_twice)

    # PostgreSQL reads what is committed when each statement begins; SQLite keeps the snapshot.
    assert first == 0
    assert second == (0 if database.is_sqlite else 1)
    assert await database.read(count_keys) == 1


async def test_a_caller_that_is_canceled_leaves_a_transaction_whole(database: Database) -> None:
    loop = asyncio.get_running_loop()
    begun = asyncio.Event()

    def add_two(session: WriteSession) -> None:
        add_key(session, "one")
        loop.call_soon_threadsafe(begun.set)
        add_key(session, "two")

    writing = asyncio.create_task(database.write(add_two))
    await asyncio.wait_for(begun.wait(), 5)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)

    # Closing waits for what runs; what is stored then is both or neither.
    await asyncio.to_thread(database.close)
    async with Database(str(database.url.render_as_string(hide_password=False))) as again:
        assert await again.read(count_keys) in {0, 2}


@contextmanager
def inserting_processes(url: str, folder: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.models.check_then_insert", url, "key", str(folder / "go")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


async def test_six_processes_that_look_and_then_insert_insert_each_key_once(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    if not database.is_sqlite:
        # PostgreSQL lets all of them look before the first one commits: there the unique constraint decides,
        # and the ledger's own looks are made under a lock.
        with pytest.raises(DBAPIError):
            await asyncio.gather(*(database.write(add_key, "same") for _ in range(2)))
        assert await database.read(count_keys) == 1
        return
    with inserting_processes(database_url, tmp_path, 6) as processes:
        for process in processes:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        (tmp_path / "go").touch()
        said = await asyncio.gather(
            *(asyncio.to_thread(process.communicate, timeout=30) for process in processes)
        )

    assert sum(int(output) for output, _ in said) == 10
    assert await database.read(count_keys) == 10


@pytest.fixture
async def impatient(sqlite_template_path: Path, tmp_path: Path) -> AsyncIterator[Database]:
    del sqlite_template_path
    async with Database(f"sqlite:///{tmp_path / 'sluicegate.db'}", busy_timeout_ms=50) as opened:
        yield opened


async def test_a_database_that_another_process_keeps_locked_is_busy(
    sqlite_database: Database, impatient: Database, tmp_path: Path
) -> None:
    await sqlite_database.write(add_key, "before")
    with closing(sqlite3.connect(tmp_path / "sluicegate.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusyError):
            await impatient.write(add_key, "shut out")
        assert await impatient.read(count_keys) == 1
        holder.execute("ROLLBACK")

    await impatient.write(add_key, "after")
    assert await impatient.read(count_keys) == 2


@pytest.mark.parametrize(
    "url", ["sqlite:////nonexistent/folder/file.db", "postgresql://nobody@127.0.0.1:1/none"]
)
async def test_a_database_that_is_not_there_is_unavailable(url: str) -> None:
    async with Database(url) as database:
        with pytest.raises(DatabaseUnavailableError):
            await database.read(count_keys)


async def test_parameters_stay_out_of_error_messages(database: Database) -> None:
    await database.write(add_key, "MARKED")

    with pytest.raises(IntegrityError) as failed:
        await database.write(add_key, "MARKED")

    assert "MARKED" not in str(failed.value.statement)
    assert "hide" in str(failed.value)
