"""The sealed audit trail on both databases: nothing of it is changed unseen, and no writer waits for it."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.exc import DBAPIError

from activities.audit_sealer import seal, sealing
from api.audit_trail import Verification, prune_trail, seal_all, verify_trail
from governance.audit_chain import ChainFault, ChainHead
from models.audit import AuditEvent, AuditFact, AuditKind, append_audit
from models.audit_chain import AuditLink, load_head, seal_batch
from models.base import utc_now
from models.database import Database, WriteSession

pytestmark = pytest.mark.anyio


def fact(number: int) -> AuditFact:
    return AuditFact(AuditKind.CALL_SENT, actor="agent", tool_name="pay-send", data={"position": number})


async def append(database: Database, count: int) -> None:
    for number in range(count):
        await database.write(append_audit, fact(number))


async def tamper(database: Database, *statements: str) -> None:
    """Do what only somebody with the database's own rights can: put the triggers away first."""

    def change(session: WriteSession) -> None:
        if database.is_sqlite:
            for name in session.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
                session.execute(text(f"DROP TRIGGER {name}"))
        else:
            session.execute(text("SET session_replication_role = replica"))
        for statement in statements:
            session.execute(text(statement))
        if not database.is_sqlite:
            session.execute(text("SET session_replication_role = origin"))

    await database.write(change)


def faults(found: Verification) -> list[tuple[ChainFault, int]]:
    return [(problem.fault, problem.number) for problem in found.problems]


async def test_a_trail_is_sealed_whole_and_holds(database: Database) -> None:
    await append(database, 7)
    first = await verify_trail(database)
    await append(database, 3)

    second = await verify_trail(database, [first.head.end])
    end = await verify_trail(database, last=2)

    assert (first.checked, faults(first), second.checked, faults(second)) == (7, [], 10, [])
    assert (end.checked, faults(end)) == (2, [])


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        (["UPDATE audit_events SET actor = 'somebody' WHERE id = 3"], [(ChainFault.CHANGED, 3)]),
        (["UPDATE audit_events SET code = 'x' WHERE id = 3"], [(ChainFault.CHANGED, 3)]),
        (["DELETE FROM audit_events WHERE id = 3"], [(ChainFault.DELETED, 3)]),
        (
            ["DELETE FROM audit_events WHERE id = 3", "DELETE FROM audit_links WHERE event_id = 3"],
            [(ChainFault.REORDERED, 3)],
        ),
        (
            [
                "UPDATE audit_links SET event_id = 99 WHERE number = 3",
                "UPDATE audit_links SET event_id = 3 WHERE number = 4",
                "UPDATE audit_links SET event_id = 4 WHERE number = 3",
            ],
            [(ChainFault.CHANGED, 3), (ChainFault.CHANGED, 4)],
        ),
        (
            ["DELETE FROM audit_events WHERE id > 4", "DELETE FROM audit_links WHERE number > 4"],
            [(ChainFault.TRUNCATED, 5)],
        ),
    ],
    ids=["changed", "coded", "deleted", "unlinked", "reordered", "truncated"],
)
async def test_tampering_is_found(
    statements: list[str], found: list[tuple[ChainFault, int]], database: Database
) -> None:
    await append(database, 6)
    await seal_all(database)
    await tamper(database, *statements)

    assert faults(await verify_trail(database)) == found


async def test_a_trail_cut_off_with_its_head_is_found_by_the_exported_head(database: Database) -> None:
    await append(database, 6)
    kept = (await seal_all(database)).end
    await tamper(
        database,
        "DELETE FROM audit_events WHERE id > 4",
        "DELETE FROM audit_links WHERE number > 4",
        "UPDATE audit_head SET length = 4, low_event_id = 4,"
        " hash = (SELECT hash FROM audit_links WHERE number = 4)",
    )

    without, with_head = await verify_trail(database), await verify_trail(database, [kept])

    assert faults(without) == []
    assert faults(with_head) == [(ChainFault.TRUNCATED, 5)]
    await append(database, 3)
    assert (ChainFault.HEAD_MISMATCH, 6) in faults(await verify_trail(database, [kept], last=1))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_events SET actor = 'x'",
        "DELETE FROM audit_events",
        "UPDATE audit_links SET hash = 'x'",
        "DELETE FROM audit_links",
        "DELETE FROM audit_head",
        "UPDATE audit_head SET length = 0",
        "UPDATE audit_head SET pruned_length = 9",
    ],
)
async def test_the_database_itself_refuses_to_change_the_trail(statement: str, database: Database) -> None:
    await append(database, 2)
    await seal_all(database)

    with pytest.raises(DBAPIError, match="append-only"):
        await database.write(lambda session: session.execute(text(statement)))

    assert (await verify_trail(database)).checked == 2


@pytest.mark.postgres
async def test_the_trail_can_not_be_truncated_on_postgresql(database: Database) -> None:
    if database.is_sqlite:
        return
    with pytest.raises(DBAPIError, match="append-only"):
        await database.write(lambda session: session.execute(text("TRUNCATE audit_events")))


async def test_old_events_are_removed_after_they_are_sealed_and_the_rest_still_holds(
    database: Database,
) -> None:
    await append(database, 4)
    moment = utc_now() + timedelta(microseconds=1)
    old = (await seal_all(database)).end
    await append(database, 3)

    pruned = await prune_trail(database, moment, "admin", "request")
    again = await prune_trail(database, moment, "admin", "request")

    assert (pruned.removed, pruned.start) == (4, old)
    assert again.removed == 0
    found = await verify_trail(database, [old])
    assert (found.checked, faults(found)) == (4, [])
    kinds = await database.read(
        lambda session: session.scalars(select(AuditEvent.kind).order_by(AuditEvent.id)).all()
    )
    assert list(kinds) == [AuditKind.CALL_SENT] * 3 + [AuditKind.AUDIT_PRUNED]
    early = ChainHead(2, "0" * 64)
    assert faults(await verify_trail(database, [early])) == [(ChainFault.PRUNED, 2)]


async def test_what_comes_after_everything_was_removed_is_sealed_like_the_rest(database: Database) -> None:
    await append(database, 5)
    pruned = await prune_trail(database, utc_now() + timedelta(seconds=1), "admin", "request")
    await append(database, 2)

    assert pruned.removed == 5
    assert await seal(database) == 3
    found = await verify_trail(database, [pruned.start])
    assert (found.checked, faults(found)) == (3, [])


async def test_appending_is_one_statement_and_sealing_adds_none_to_it(database: Database) -> None:
    statements: list[str] = []

    def work(session: WriteSession) -> None:
        connection = session.connection()

        def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            statements.append(statement)

        event.listen(connection, "before_cursor_execute", count)
        append_audit(session, fact(1), fact(2), fact(3))
        event.remove(connection, "before_cursor_execute", count)

    await database.write(work)

    assert len(statements) == 1
    assert statements[0].startswith("INSERT INTO audit_events")


async def test_sealers_that_run_at_once_chain_every_event_once(database: Database, database_url: str) -> None:
    await append(database, 40)
    async with Database(database_url) as other:

        async def work(of: Database) -> int:
            done = 0
            while (count := await of.write(lambda session: seal_batch(session, most=5))) > 0:
                done += count
            return done

        done = await asyncio.gather(work(database), work(other), work(database), work(other))
        await append(other, 1)

    assert sum(done) <= 40
    found = await verify_trail(database)
    assert (found.checked, faults(found)) == (41, [])
    links = await database.read(
        lambda session: session.scalar(select(func.count(AuditLink.event_id.distinct())))
    )
    assert links == 41


async def test_an_event_that_commits_behind_a_later_one_is_chained_all_the_same(database: Database) -> None:
    """On PostgreSQL ids are given out before the commit; on SQLite there is one writer."""
    if database.is_sqlite:
        return
    begun, finish = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(session: WriteSession) -> None:
        append_audit(session, fact(1))
        session.flush()
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(finish.wait(), loop).result(5)

    waiting = asyncio.create_task(database.write(slow))
    await asyncio.wait_for(begun.wait(), 5)
    await append(database, 2)
    early = await seal(database)
    finish.set()
    await waiting

    late = await seal(database)

    assert (early, late) == (2, 1)
    assert faults(await verify_trail(database)) == []


async def test_a_running_sealer_seals_what_is_appended(database: Database) -> None:
    await append(database, 3)

    async def sealed() -> None:
        while (await database.read(load_head)).end.length < 3:  # noqa: ASYNC110 - another task.
            await asyncio.sleep(0.01)

    async with sealing(database, interval_s=0.01):
        await asyncio.wait_for(sealed(), 5)


async def test_a_batch_that_is_full_is_followed_by_the_next(database: Database) -> None:
    await database.write(append_audit, *(fact(number) for number in range(1203)))

    assert await seal(database) == 1203
    assert await seal(database) == 0
    assert faults(await verify_trail(database)) == []
