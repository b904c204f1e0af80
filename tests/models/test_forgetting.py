"""Deleting arguments that nobody has any more, while another transaction stores the same ones."""

import asyncio
import threading

import pytest
from sqlalchemy import text

from governance.canonical import canonical_bytes, digest
from models.base import new_id
from models.database import Database, ReadSession, WriteSession
from models.forgetting import forget_payloads
from models.payload import load_payload, store_payload
from models.round import RequestedCall, RequestedRound, insert_round
from tests.support.world import World, build_world

pytestmark = pytest.mark.anyio

CONTENT = canonical_bytes({"arguments": "{}"})
DIGEST = digest(CONTENT)


def insert_naming(session: WriteSession, world: World) -> None:
    """Insert a round whose call names the content."""
    round_id = new_id()
    calls = [RequestedCall("call_0", "files-read", DIGEST)]
    asked = RequestedRound(f"round:{round_id}", world.key_id, round_id, "0" * 64, "test", {}, calls)
    insert_round(session, asked, round_id)


async def until_done_or_waiting_for_a_lock(database: Database, task: "asyncio.Task[None]") -> None:
    def waiting(session: ReadSession) -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        return bool(session.scalar(text(f"{query} AND wait_event_type = 'Lock'")))

    async with asyncio.timeout(5):
        # SQLite has one writer, so there the second has not begun.
        while not (task.done() or database.is_sqlite or await database.read(waiting)):
            pass


@pytest.mark.parametrize("held_after", ["storing", "naming"])
async def test_content_that_is_being_stored_again_is_not_deleted(database: Database, held_after: str) -> None:
    world = await build_world(database)
    await database.write(store_payload, CONTENT)
    held, go_on = threading.Event(), threading.Event()

    def store_and_name(session: WriteSession) -> None:
        assert store_payload(session, CONTENT) == DIGEST
        if held_after == "naming":
            insert_naming(session, world)
        held.set()
        assert go_on.wait(5)
        if held_after == "storing":
            insert_naming(session, world)

    storing = asyncio.create_task(database.write(store_and_name))
    assert await asyncio.to_thread(held.wait, 5)
    forgetting = asyncio.create_task(database.write(forget_payloads, [DIGEST]))
    await until_done_or_waiting_for_a_lock(database, forgetting)
    go_on.set()
    await asyncio.gather(storing, forgetting)

    assert await database.read(load_payload, DIGEST) == CONTENT


async def test_content_that_is_being_deleted_is_stored_anew(database: Database) -> None:
    world = await build_world(database)
    await database.write(store_payload, CONTENT)
    held, go_on = threading.Event(), threading.Event()

    def forget_and_hold(session: WriteSession) -> None:
        forget_payloads(session, [DIGEST])
        held.set()
        assert go_on.wait(5)

    def store_and_name(session: WriteSession) -> None:
        store_payload(session, CONTENT)
        insert_naming(session, world)

    forgetting = asyncio.create_task(database.write(forget_and_hold))
    assert await asyncio.to_thread(held.wait, 5)
    storing = asyncio.create_task(database.write(store_and_name))
    await until_done_or_waiting_for_a_lock(database, storing)
    go_on.set()
    await asyncio.gather(storing, forgetting)

    assert await database.read(load_payload, DIGEST) == CONTENT


async def test_content_that_nobody_names_is_deleted(database: Database) -> None:
    await database.write(store_payload, CONTENT)
    await database.write(forget_payloads, [DIGEST])

    assert await database.read(load_payload, DIGEST) is None
