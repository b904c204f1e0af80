"""Bindings, snapshots, frozen sets and program versions stay as they were written, whoever writes SQL."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from models.binding import ToolBinding, load_bindings, load_task_bindings
from models.database import Database, ReadSession, WriteSession
from models.round import Round
from models.task import Task
from tests.models.consistent import load
from tests.models.frozen import freeze_world

pytestmark = pytest.mark.anyio

CHANGES = {
    "tool_bindings": "UPDATE tool_bindings SET tool_name = 'renamed'",
    "tool_bindings (moved)": "UPDATE tool_bindings SET snapshot_digest = snapshot_digest",
    "tool_bindings (deleted)": "DELETE FROM tool_bindings",
    "tool_snapshots": "UPDATE tool_snapshots SET content = content",
    "frozen_sets": "UPDATE frozen_sets SET tool_count = tool_count + 1",
    "program_versions": "UPDATE program_versions SET fingerprint = 'other'",
}


@pytest.mark.parametrize("statement", CHANGES.values(), ids=CHANGES)
async def test_what_was_frozen_is_not_changed_by_hand(statement: str, database: Database) -> None:
    await load(database)

    def change(session: WriteSession) -> None:
        session.execute(text(statement))

    with pytest.raises(DBAPIError, match="immutable"):
        await database.write(change)


@pytest.mark.parametrize("table", ["tool_bindings", "tool_snapshots", "frozen_sets", "program_versions"])
async def test_nothing_that_was_frozen_is_truncated(table: str, database: Database) -> None:
    await load(database)
    # SQLite has no TRUNCATE: there it is a DELETE of every row, which references or a trigger refuse.
    statement = f"DELETE FROM {table}" if database.is_sqlite else f"TRUNCATE {table} CASCADE"

    def empty(session: WriteSession) -> None:
        session.execute(text(statement))

    with pytest.raises(DBAPIError, match=r"immutable|FOREIGN KEY"):
        await database.write(empty)


async def test_a_task_takes_its_bindings_along_when_it_is_deleted(database: Database) -> None:
    _, task, _ = await load(database)

    def delete(session: WriteSession) -> None:
        session.delete(session.get_one(Task, task.id))

    await database.write(delete)
    assert await database.read(load_task_bindings, task.id) == {}


async def test_a_round_takes_its_bindings_along_when_it_is_deleted(database: Database) -> None:
    frozen = await freeze_world(database)

    def delete(session: WriteSession) -> None:
        frozen.provision(session, None)
        session.flush()
        session.delete(session.get_one(Round, frozen.round_id))

    def bindings(session: ReadSession) -> dict[str, ToolBinding]:
        return load_bindings(session, frozen.round_id)

    assert set(await database.read(bindings)) == {"files-read", "files-write"}
    await database.write(delete)
    assert await database.read(bindings) == {}


@pytest.mark.parametrize("table", ["tool_snapshots", "frozen_sets"])
async def test_what_nothing_refers_to_may_be_swept(table: str, database: Database) -> None:
    def sweep(session: WriteSession) -> int:
        column, value = ("content", b"{}") if table == "tool_snapshots" else ("members", b"{}")
        counted = ("", "") if table == "tool_snapshots" else (", tool_count", ", 0")
        session.execute(
            text(
                f"INSERT INTO {table} (digest, {column}{counted[0]}, created_at)"
                f" VALUES (:digest, :value{counted[1]}, '2026-01-01 00:00:00+00')"
            ),
            {"digest": "0" * 64, "value": value},
        )
        removed = session.execute(text(f"DELETE FROM {table} WHERE digest = :digest"), {"digest": "0" * 64})
        return removed.rowcount  # type: ignore[attr-defined, no-any-return]

    assert await database.write(sweep) == 1
