"""The stream beside the calls: one for each session, held by one worker while the session is used."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select, update

from activities.catalog_refresh import CatalogWatch
from activities.client_pool import ClientPool
from activities.mcp_http.types import CallHooks, ToolCall
from activities.mcp_sessions import McpSessions, SessionScope
from activities.mcp_streams import StreamKeeper, StreamTimes
from activities.session_sweep import SessionSweeper
from governance.connection_auth import auth_purpose
from models.base import utc_now
from models.connection import Connection, ConnectionTarget, Elicitation, EventStream, target_of
from models.database import Database, ReadSession, WriteSession
from models.key import ApiKey
from models.mcp_session import (
    LAST_EVENT_MAX_BYTES,
    McpSession,
    SessionState,
    StoredSession,
    clear_session,
    end_unused,
    load_session,
    load_unused,
    use_again,
)
from models.vault import Vault
from tests.activities.listening_server import CHANGED, ListeningServer, listening_server
from tests.support.raw_server import http
from tests.support.statements import statements_of
from tests.support.world import ConnectionPlan, World, build_world

pytestmark = pytest.mark.anyio

QUICK = StreamTimes(
    lease=timedelta(seconds=0.6),
    keep_s=0.1,
    store_s=0.01,
    first_event_s=0.5,
    touch_s=0.05,
    not_offered=timedelta(hours=1),
)
VAULT = Vault(bytes(32))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url, busy_timeout_ms=15_000) as opened:
        yield opened


@dataclass
class Engine:
    """Counts the refreshes that are asked for."""

    asked: list[str] = field(default_factory=list[str])
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def refresh_catalog(self, connection_id: str, delay: timedelta) -> bool:
        assert delay > timedelta(0)
        self.asked.append(connection_id)
        self.heard.set()
        return True


@dataclass
class Fellow:
    """One worker, as far as sessions and streams go."""

    database: Database
    clients: ClientPool
    keeper: StreamKeeper
    sessions: McpSessions
    scope: str

    async def call(self, target: ConnectionTarget, stored: StoredSession | None = None) -> None:
        client = self.clients.client(target)
        wanted = SessionScope(target.id, target.version, self.scope)
        held = await self.sessions.obtain(wanted, stored, self.keeper.opener(client, target))

        async def on_notification(method: str, _params: Any) -> None:
            self.keeper.heard_in_call(target, method)

        hooks = CallHooks(on_notification=on_notification)
        async with self.keeper.using(client, target, held):
            await client.call_tool(held.session, ToolCall("read", {}, str(uuid4())), hooks, 20)


@asynccontextmanager
async def fellow(
    database: Database, world: World, engine: Engine | None = None, times: StreamTimes = QUICK
) -> AsyncIterator[Fellow]:
    catalogs = CatalogWatch(database, engine or Engine())
    async with (
        ClientPool(1024 * 1024, Vault(bytes(32))) as clients,
        StreamKeeper(database, catalogs, times) as keeper,
    ):
        yield Fellow(database, clients, keeper, McpSessions(database, VAULT), f"key:{world.key_id}")


async def connect(
    database: Database, server: ListeningServer, stream: EventStream = EventStream.AUTO
) -> tuple[World, ConnectionTarget]:
    world = await build_world(database, ConnectionPlan(url=server.url))

    def change(session: WriteSession) -> ConnectionTarget:
        connection = session.get_one(Connection, world.connection_id)
        connection.event_stream = stream
        session.flush()
        return target_of(connection)

    return world, await database.write(change)


def row_of(session: ReadSession) -> McpSession:
    return session.scalars(select(McpSession)).one()


def connection_of(session: ReadSession) -> Connection:
    return session.scalars(select(Connection)).one()


async def until(database: Database, holds: Callable[[McpSession], bool]) -> McpSession:
    """Return the session's row once `holds` says so."""
    async with asyncio.timeout(5):
        while not holds(row := await database.read(row_of)):  # noqa: ASYNC110 - A database calls nobody.
            await asyncio.sleep(0.01)
    return row


@pytest.mark.parametrize(
    ("stream", "announces", "elicitation", "wanted"),
    [
        (EventStream.ALWAYS, False, Elicitation.NONE, True),
        (EventStream.AUTO, True, Elicitation.NONE, True),
        (EventStream.AUTO, False, Elicitation.DECLINE, True),
        (EventStream.AUTO, False, Elicitation.NONE, False),
        (EventStream.NEVER, True, Elicitation.DECLINE, False),
    ],
    ids=["always", "auto, announced", "auto, questions", "auto, nothing can come", "never"],
)
async def test_a_stream_is_opened_as_the_connection_says(
    database: Database, *, stream: EventStream, announces: bool, elicitation: Elicitation, wanted: bool
) -> None:
    async with listening_server(announces=announces) as server:
        world, target = await connect(database, server, stream)
        async with fellow(database, world) as worker:
            await worker.call(replace(target, elicitation=elicitation))
            if wanted:
                await server.raw.wait_until(lambda _: "s1" in server.streams)
        assert len(server.opened) == int(wanted)


async def test_with_always_the_stream_is_heard_before_the_first_call_and_stays_open(
    database: Database,
) -> None:
    async with listening_server(
        first_event=b'id: e1\ndata: {"jsonrpc":"2.0","method":"x/ready"}\n\n'
    ) as server:
        world, target = await connect(database, server, EventStream.ALWAYS)
        async with fellow(database, world) as worker:
            await worker.call(target)
            methods = [request.rpc_method or request.method for request in server.raw.requests]
            await worker.call(target)
            assert list(server.streams) == ["s1"]
            row = await until(database, lambda row: row.last_event is not None)
    assert methods == ["server/discover", "initialize", "notifications/initialized", "GET", "tools/call"]
    assert server.opened == [("s1", None)]
    assert row.last_event is not None
    assert (row.last_event["id"], row.last_event["message"]["method"]) == ("e1", "x/ready")


async def test_a_call_in_which_something_may_be_asked_waits_until_it_can_be_heard(database: Database) -> None:
    async with listening_server(announces=False) as server:
        world, target = await connect(database, server)
        async with fellow(database, world) as worker:
            await worker.call(replace(target, elicitation=Elicitation.DECLINE))
            methods = [request.rpc_method or request.method for request in server.raw.requests]
    assert methods[-2:] == ["GET", "tools/call"]


async def test_two_workers_hold_one_stream_between_them_and_one_follows_the_other(database: Database) -> None:
    async with listening_server() as server:
        world, target = await connect(database, server)
        async with fellow(database, world) as second:
            async with fellow(database, world) as first:
                await first.call(target)
                await server.raw.wait_until(lambda _: "s1" in server.streams)
                await second.call(target)
                await server.tell("s1", {"jsonrpc": "2.0", "method": "x/one"}, "e1")
                await until(database, lambda row: row.last_event is not None)
                assert server.opened == [("s1", None)]
            await server.raw.wait_until(lambda _: len(server.opened) == 2 and "s1" in server.streams)
    assert server.sessions == ["s1"]
    # The second worker goes on where the first one stood, and at no time were there two streams.
    assert (server.opened, server.conflicts) == ([("s1", None), ("s1", "e1")], 0)


async def test_a_lease_that_its_holder_lets_expire_is_taken_over(database: Database) -> None:
    def dies(session: WriteSession) -> None:
        row = session.scalars(select(McpSession)).one()
        row.stream_token = "of a worker that was killed"  # The lease stays until it expires.

    async with listening_server() as server:
        world, target = await connect(database, server)
        async with fellow(database, world) as killed, fellow(database, world) as other:
            await killed.call(target)
            await server.raw.wait_until(lambda _: "s1" in server.streams)
            await database.write(dies)
            # It finds that the lease is not its own any more, and lets the stream go.
            await server.raw.wait_until(lambda _: not server.streams)
            await other.call(target)
            await server.raw.wait_until(lambda _: len(server.opened) == 2)
    assert server.conflicts == 0


def ends_of(session: ReadSession) -> set[datetime | None]:
    """Return when the leases on streams end, each time once."""
    return set(session.scalars(select(McpSession.stream_expires_at)))


async def test_all_streams_of_a_worker_are_kept_by_one_transaction(database: Database) -> None:
    async with listening_server() as server:
        world, target = await connect(database, server)
        times = replace(QUICK, lease=timedelta(seconds=60), touch_s=60)
        async with fellow(database, world, times=times) as worker:
            for number in range(6):
                await replace(worker, scope=f"{worker.scope}@{number}").call(target)
            await server.raw.wait_until(lambda _: len(server.streams) == 6)
            with statements_of(database) as statements:
                begun = database.counts.writes
                async with asyncio.timeout(5):
                    while len(statements) < 5:  # noqa: ASYNC110 - A database calls nobody.
                        await asyncio.sleep(0.01)
                transactions = database.counts.writes - begun
                kept = len(statements)
            ends = await database.read(ends_of)
    # One statement gave all six leases the same end, and each transaction was one such statement; at either
    # end of the count one may be between its begin and its statement.
    assert len(ends) == 1
    assert abs(transactions - kept) <= 1


async def test_a_stream_whose_session_was_replaced_ends_and_the_others_stay(database: Database) -> None:
    async with listening_server() as server:
        world, target = await connect(database, server)
        async with fellow(database, world) as worker:
            for name in ("one", "two"):
                await replace(worker, scope=name).call(target)
            await server.raw.wait_until(lambda _: set(server.streams) == {"s1", "s2"})
            first = await database.read(load_session, target.id, "one")
            assert first is not None
            assert await database.write(clear_session, first.id, first.row_version)
            await server.raw.wait_until(lambda _: "s1" not in server.streams)
            second = await database.read(ends_of)
            await until_changed(database, second)
            assert set(server.streams) == {"s2"}
    assert server.opened == [("s1", None), ("s2", None)]


async def until_changed(database: Database, ends: set[datetime | None]) -> None:
    async with asyncio.timeout(5):
        while await database.read(ends_of) == ends:  # noqa: ASYNC110 - A database calls nobody.
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "page",
    [http(405), http(404, b"<h1>Not Found</h1>", "text/html"), http(200, b"{}")],
    ids=["405", "404", "200 JSON"],
)
async def test_a_server_without_a_stream_is_asked_once_by_all_workers_together(
    database: Database, page: bytes
) -> None:
    async with listening_server(instead_of_stream=page) as server:
        world, target = await connect(database, server, EventStream.ALWAYS)
        async with fellow(database, world) as first, fellow(database, world) as second:
            await first.call(target)
            await until(database, lambda row: row.stream_token is None and row.stream_expires_at is not None)
            await second.call(target)
            await first.call(target)
        assert (server.calls, len(server.opened), server.sessions) == (3, 1, ["s1"])


async def test_a_server_that_never_answers_a_get_holds_up_no_call(database: Database) -> None:
    async with listening_server(instead_of_stream=b"") as server:
        world, target = await connect(database, server, EventStream.ALWAYS)
        async with fellow(database, world) as worker, asyncio.timeout(5):
            await worker.call(target)
            await worker.call(target)
        assert (server.calls, len(server.opened)) == (2, 1)


async def test_a_stream_that_is_not_used_any_more_ends(database: Database) -> None:
    async with listening_server() as server:
        world, target = await connect(database, server)
        async with fellow(database, world, times=replace(QUICK, unused_s=0.2)) as worker:
            await worker.call(target)
            await server.raw.wait_until(lambda _: bool(server.opened) and not server.streams)
            row = await until(database, lambda row: row.stream_token is None)
    assert (row.state, row.stream_expires_at) == (SessionState.OPEN, None)


async def test_only_the_beginning_of_a_large_event_is_stored(database: Database) -> None:
    async with listening_server() as server:
        world, target = await connect(database, server)
        async with fellow(database, world) as worker:
            await worker.call(target)
            await server.raw.wait_until(lambda _: "s1" in server.streams)
            large = {"jsonrpc": "2.0", "method": "x/large", "params": {"text": "é" * 5000}}
            await server.tell("s1", large, "e9")
            row = await until(database, lambda row: row.last_event is not None)
    assert row.last_event is not None
    assert (row.last_event["id"], row.last_event["message"]["method"]) == ("e9", "x/large")
    assert len(json.dumps(row.last_event).encode()) <= LAST_EVENT_MAX_BYTES


async def test_a_session_that_is_gone_on_its_stream_is_opened_anew(database: Database) -> None:
    async with listening_server() as server:
        world, target = await connect(database, server)
        async with fellow(database, world) as worker:
            await worker.call(target)
            await server.raw.wait_until(lambda _: "s1" in server.streams)
            server.lost.add("s1")
            server.streams["s1"].close()
            await until(database, lambda row: row.state is SessionState.CLOSED)
            await worker.call(target)
    assert server.sessions == ["s1", "s2"]


@pytest.mark.parametrize("way", ["stream", "answer", "subscription"])
async def test_many_notices_of_a_changed_list_ask_for_one_refresh(database: Database, way: str) -> None:
    engine = Engine()
    async with listening_server(modern=way == "subscription") as server:
        world, target = await connect(database, server)
        key = "" if server.modern else "s1"
        async with fellow(database, world, engine) as first, fellow(database, world, engine) as second:
            if way == "answer":
                server.told_in_calls = [CHANGED] * 5
            for worker in (first, second, first, second):
                await worker.call(target)
            if way != "answer":
                await server.raw.wait_until(lambda _: key in server.streams)
                await server.streams[key].send(
                    b"".join([b"data: " + json.dumps(CHANGED).encode() + b"\n\n"] * 50)
                )
            await asyncio.wait_for(engine.heard.wait(), 5)
        stale = await database.read(connection_of)
    assert engine.asked == [world.connection_id]
    assert stale.stale_at is not None


async def swept(database: Database, idle: timedelta = timedelta(0)) -> int:
    async with ClientPool(1024, Vault(bytes(32))) as clients:
        report = await SessionSweeper(database, VAULT, clients, Engine(), idle).sweep_sessions()
        return report.ended


async def test_the_sweep_ends_an_unused_session_with_its_stream_and_tells_the_server(
    database: Database,
) -> None:
    async with listening_server() as server:
        world, target = await connect(database, server)
        async with fellow(database, world, times=replace(QUICK, touch_s=60)) as worker:
            await worker.call(target)
            await server.raw.wait_until(lambda _: "s1" in server.streams)
            ended = [await swept(database), await swept(database)]
            await server.raw.wait_until(lambda _: not server.streams)
            await worker.call(target)
    assert ended == [1, 0]
    assert (server.deleted, server.sessions) == (["s1"], ["s1", "s2"])


async def test_a_session_in_use_is_not_idle_however_long_its_call_takes(database: Database) -> None:
    async with listening_server(gate=asyncio.Event()) as server:
        world, target = await connect(database, server)
        async with fellow(database, world) as worker:
            call = asyncio.create_task(worker.call(target))
            await server.raw.wait_until(lambda _: server.calls == 1)
            opened = (await database.read(row_of)).last_used_at
            row = await until(database, lambda row: row.last_used_at > opened + timedelta(seconds=0.2))
            assert await swept(database, timedelta(seconds=5)) == 0
            assert server.gate is not None
            server.gate.set()
            await call
    assert (row.state, server.deleted) == (SessionState.OPEN, [])


def rest(session: WriteSession) -> None:
    session.execute(update(McpSession).values(last_used_at=utc_now() - timedelta(minutes=14, seconds=59)))


async def test_a_call_on_a_session_that_rested_keeps_the_sweep_from_ending_it(database: Database) -> None:
    async with listening_server(gate=asyncio.Event()) as server:
        assert server.gate is not None
        server.gate.set()
        world, target = await connect(database, server)
        async with fellow(database, world, times=replace(QUICK, touch_s=60)) as worker:
            await worker.call(target)
            await database.write(rest)
            server.gate.clear()
            call = asyncio.create_task(worker.call(target))
            await server.raw.wait_until(lambda _: server.calls == 2)
            assert await swept(database, timedelta(minutes=14)) == 0
            server.gate.set()
            await call
    assert (server.deleted, server.sessions) == ([], ["s1"])


async def test_of_a_sweep_and_a_call_on_a_session_that_rested_one_wins(database: Database) -> None:
    async with listening_server() as server:
        world, target = await connect(database, server)
        async with fellow(database, world, times=replace(QUICK, touch_s=60)) as worker:
            await worker.call(target)
            await database.write(rest)
            stored = await database.read(load_session, target.id, worker.scope)
            (seen,) = await database.read(load_unused, utc_now() - timedelta(minutes=14), 1)
            assert stored is not None
            assert await database.write(use_again, stored.id, stored.row_version)
            assert not await database.write(end_unused, seen)
            await database.write(rest)
            assert await swept(database, timedelta(minutes=14)) == 1
            assert not await database.write(use_again, stored.id, stored.row_version)
            await worker.call(target, stored)
    assert (server.deleted, server.sessions) == (["s1"], ["s1", "s2"])


async def test_the_sessions_of_a_deleted_key_are_ended_at_once(database: Database) -> None:
    async with listening_server() as server:
        world, target = await connect(database, server)
        async with fellow(database, world) as worker:
            await worker.call(target)
        await database.write(lambda session: session.delete(session.get_one(ApiKey, world.key_id)))
        assert await swept(database, timedelta(hours=1)) == 1
    assert server.deleted == ["s1"]


async def test_the_id_of_a_session_is_told_to_no_address_but_its_own(database: Database) -> None:
    def move(session: WriteSession) -> None:
        connection = session.scalars(select(Connection)).one()
        connection.url = other.url
        connection.sealed_auth = VAULT.seal(b'{"Authorization":"Bearer other"}', auth_purpose(connection.id))

    async with listening_server() as server, listening_server() as other:
        world, target = await connect(database, server)
        async with fellow(database, world) as worker:
            await worker.call(target)
        await database.write(move)
        assert await swept(database) == 1
    assert (server.deleted, other.raw.requests) == (["s1"], [])
    # And the credential of the other one stays there.
    assert "authorization" not in server.raw.requests[-1].headers
