"""Sessions of connections that are deleted or edited: their servers are told once, as they were dialled."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from activities.client_pool import ClientPool
from activities.mcp_http.errors import TransportError
from activities.mcp_sessions import NewSession, SessionScope
from activities.session_sweep import SessionSweeper, SweepReport
from models.base import utc_now
from models.connection import Connection, ConnectionTarget, target_of
from models.database import ReadSession, WriteSession
from models.mcp_farewell import McpFarewell
from tests.activities.listening_server import ListeningServer, listening_server
from tests.activities.test_event_streams import Engine, fellow
from tests.api.bench import APIBench, execute, tool_call
from tests.support.world import ConnectionPlan, World, build_world

pytestmark = pytest.mark.anyio

FILES = "/api/v1/mcp/clients/files"
FIRST = {"kind": "shared", "headers": {"Authorization": "Bearer first"}}
SECOND = {"kind": "shared", "headers": {"Authorization": "Bearer second"}}


async def edit(api: APIBench, **settings: Any) -> None:
    response = await api.operator("PATCH", FILES, json=settings)
    assert response.status_code == 200, response.text


async def delete(api: APIBench) -> None:
    response = await api.operator("DELETE", FILES)
    assert response.status_code == 200, response.text


async def target(api: APIBench) -> ConnectionTarget:
    def load(session: ReadSession) -> ConnectionTarget:
        return target_of(session.scalars(select(Connection)).one())

    return await api.database.read(load)


async def sweep(api: APIBench) -> SweepReport:
    async with ClientPool(1024, api.deps.vault) as clients:
        return await SessionSweeper(api.database, api.deps.vault, clients, Engine()).sweep_sessions()


async def waiting(api: APIBench) -> int:
    def count(session: ReadSession) -> int:
        return session.scalar(select(func.count()).select_from(McpFarewell)) or 0

    return await api.database.read(count)


async def call_once(api: APIBench, server: ListeningServer) -> World:
    """Build a connection that sends headers, and make a call on a session of it."""
    world = await build_world(api.database, ConnectionPlan(url=server.url))
    await edit(api, auth=FIRST, event_stream="never")
    async with fellow(api.database, world) as worker:
        await worker.call(await target(api))
    return world


def farewells(server: ListeningServer) -> list[tuple[str, str]]:
    """Return the session and the credential of every DELETE that the server got."""
    return [
        (request.headers["mcp-session-id"], request.headers.get("authorization", ""))
        for request in server.raw.requests
        if request.method == "DELETE"
    ]


async def test_the_server_of_a_deleted_connection_is_told_once(api: APIBench) -> None:
    async with listening_server() as server:
        await call_once(api, server)
        await delete(api)
        reports = [await sweep(api), await sweep(api)]

    assert [report.farewells for report in reports] == [1, 0]
    assert farewells(server) == [("s1", "Bearer first")]
    assert await waiting(api) == 0


async def test_a_session_opened_with_other_headers_is_ended_with_those(api: APIBench) -> None:
    async with listening_server() as server:
        world = await call_once(api, server)
        await edit(api, auth=SECOND)
        async with fellow(api.database, world) as worker:
            await worker.call(await target(api))
        await sweep(api)
        await sweep(api)

    assert farewells(server) == [("s1", "Bearer first")]
    assert server.sessions == ["s1", "s2"]


async def test_a_session_is_ended_at_the_address_that_its_connection_left(api: APIBench) -> None:
    async with listening_server() as server, listening_server() as other:
        await call_once(api, server)
        await edit(api, url=other.url, auth=SECOND)
        await sweep(api)

    assert farewells(server) == [("s1", "Bearer first")]
    assert other.raw.requests == []


async def test_a_session_replaced_after_an_edit_of_something_else_is_ended_too(api: APIBench) -> None:
    async with listening_server() as server:
        world = await call_once(api, server)
        await edit(api, on_session_loss="report")
        await sweep(api)
        before_the_next_call = farewells(server)
        async with fellow(api.database, world) as worker:
            await worker.call(await target(api))
        await sweep(api)
        await sweep(api)

    assert before_the_next_call == []
    assert farewells(server) == [("s1", "Bearer first")]


async def test_a_session_stored_after_its_connection_moved_is_told_only_to_its_own_server(
    api: APIBench,
) -> None:
    def opened_before(session: WriteSession) -> None:
        session.execute(update(Connection).values(url=other.url, version=Connection.version + 1))

    async with listening_server() as server, listening_server() as other:
        world = await call_once(api, server)
        await api.database.write(opened_before)
        async with fellow(api.database, world) as worker:
            await worker.call(await target(api))
        await sweep(api)

    # The headers that are stored now were given for the other server.
    assert farewells(server) == [("s1", "")]
    assert farewells(other) == []


async def test_a_server_that_is_gone_holds_up_no_other_and_is_tried_once(api: APIBench) -> None:
    async with AsyncExitStack() as stack, listening_server() as server:
        gone = await stack.enter_async_context(listening_server())
        world = await call_once(api, gone)
        await edit(api, url=server.url)
        async with fellow(api.database, world) as worker:
            await worker.call(await target(api))
        await stack.aclose()
        await delete(api)
        before = await waiting(api)
        reports = [await sweep(api), await sweep(api)]

    assert (before, await waiting(api)) == (2, 0)
    assert [report.farewells for report in reports] == [2, 0]
    assert farewells(server) == [("s1", "Bearer first")]


async def test_a_farewell_that_waited_for_an_hour_is_dropped_unsent(api: APIBench) -> None:
    def age(session: WriteSession) -> None:
        session.execute(update(McpFarewell).values(created_at=utc_now() - timedelta(minutes=61)))

    async with listening_server() as server:
        await call_once(api, server)
        await delete(api)
        await api.database.write(age)
        report = await sweep(api)

    assert (report.farewells, farewells(server), await waiting(api)) == (0, [], 0)


async def test_a_session_that_cannot_be_opened_any_more_is_dropped(api: APIBench) -> None:
    def spoil(session: WriteSession) -> None:
        session.execute(update(McpFarewell).values(sealed_session=b"v1 of another key"))

    async with listening_server() as server:
        await call_once(api, server)
        await delete(api)
        await api.database.write(spoil)
        report = await sweep(api)

    assert (report.farewells, farewells(server), await waiting(api)) == (0, [], 0)


async def test_a_refused_edit_ends_no_session(api: APIBench) -> None:
    async with listening_server() as server:
        await call_once(api, server)
        refused = await api.operator("PATCH", FILES, json={"auth": SECOND}, headers={"if-match": '"old"'})
        await edit(api, auth=FIRST)  # Nothing changes.
        await sweep(api)

    assert refused.status_code == 412
    assert (farewells(server), await waiting(api)) == ([], 0)


async def test_a_session_that_is_opened_while_its_connection_is_deleted_is_ended_at_once(
    api: APIBench,
) -> None:
    async with listening_server() as server:
        world = await build_world(api.database, ConnectionPlan(url=server.url))
        await edit(api, auth=FIRST, event_stream="never")
        async with fellow(api.database, world) as worker:
            wanted_target = await target(api)
            client = worker.clients.client(wanted_target)
            open_session = worker.keeper.opener(client, wanted_target)

            async def deleted_meanwhile() -> NewSession:
                new = await open_session()
                await delete(api)
                return new

            wanted = SessionScope(wanted_target.id, wanted_target.version, worker.scope)
            with pytest.raises(TransportError, match="took over"):
                await worker.sessions.obtain(wanted, None, deleted_meanwhile)

    assert (farewells(server), await waiting(api)) == ([("s1", "Bearer first")], 0)


async def test_a_call_under_way_outlives_the_edit_and_its_session_is_ended_after_it(
    live_api: APIBench,
) -> None:
    async with listening_server(gate=asyncio.Event(), announces=False) as server:
        assert server.gate is not None
        agent = await live_api.agent(ConnectionPlan(url=server.url, open_to_all_keys=True))
        await edit(live_api, auth=FIRST)
        call = asyncio.create_task(execute(live_api, agent, tool_call("files-read")))
        await server.raw.wait_until(lambda _: server.calls == 1)
        await edit(live_api, auth=SECOND)
        during = (await sweep(live_api), farewells(server), await waiting(live_api))
        server.gate.set()
        answer = await call
        after = await sweep(live_api)

    # Each edit also listed the tools, on sessions that the listing itself ended.
    ended_by_then = {session for session, _ in during[1]}
    assert (during[0].farewells, ended_by_then, during[2]) == (0, {"s1", "s3"}, 1)
    assert (answer.status_code, answer.json()["content"]) == (200, "done")
    assert after.farewells == 1
    assert [farewell for farewell in farewells(server) if farewell[0] == "s2"] == [("s2", "Bearer first")]
