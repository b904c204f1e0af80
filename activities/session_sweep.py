"""Ends sessions that nobody uses: closes the row, which ends its event stream, and tells the server."""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity

from activities.catalog_refresh import CatalogEngine, refresh_overlooked
from activities.client_pool import ClientPool
from activities.drift import target_at
from activities.mcp_http.errors import MCPError
from activities.mcp_http.types import OpenSession
from activities.mcp_sessions import SessionScope, session_digest
from models.base import utc_now
from models.connection import Connection, ConnectionTarget, target_of
from models.database import Database, WriteSession
from models.mcp_farewell import Farewell, load_farewells, load_sessions_in_call, take_farewells
from models.mcp_session import UnusedSession, end_unused, load_unused
from models.vault import CannotOpenError, Vault

SESSION_IDLE = timedelta(minutes=15)
"""Sessions unused for longer are ended; servers would hold them for 30 minutes or so."""

SWEPT_AT_ONCE = 100
"""Sessions that one run ends; the next run goes on."""

FAREWELLS_IN_A_RUN = 50
"""Sessions of deleted and edited connections whose servers one run tells; the next run goes on."""

FAREWELLS_LOOKED_AT = 500
"""Those among which a run finds them: some may still have a call under way."""

FAREWELL_EXPIRY = timedelta(hours=1)
"""A server that was not told for so long is not told any more: it will have ended the session itself."""

FAREWELLS_AT_ONCE = 10
"""Servers told at the same time: one that does not answer holds up no other."""


@dataclass(frozen=True)
class SweepReport:
    """What one run did."""

    ended: int
    refreshed: int
    farewells: int = 0
    """Sessions of deleted or edited connections whose servers were told, or tried to."""


class SessionSweeper:
    """Holds what ending sessions needs."""

    def __init__(
        self,
        database: Database,
        vault: Vault,
        clients: ClientPool,
        engine: CatalogEngine,
        idle: timedelta = SESSION_IDLE,
    ) -> None:
        """End sessions that were not used for `idle`."""
        self._database = database
        self._vault = vault
        self._clients = clients
        self._engine = engine
        self._idle = idle

    @activity.defn(name="sweep_sessions")
    async def sweep_sessions(self) -> SweepReport:
        """End unused sessions, and refresh catalogs whose refresh was overlooked; idempotent.

        Of several sweeps one ends a session: its row is closed by compare-and-set before the server is told.
        """
        unused = await self._database.read(load_unused, utc_now() - self._idle, SWEPT_AT_ONCE)
        slots = asyncio.Semaphore(FAREWELLS_AT_ONCE)

        async def end(session: UnusedSession) -> bool:
            async with slots:
                return await self._end(session)

        ended = await asyncio.gather(*(end(session) for session in unused))
        told = await self._bid_farewells(slots)
        return SweepReport(sum(ended), await refresh_overlooked(self._database, self._engine), told)

    async def _end(self, unused: UnusedSession) -> bool:
        target = await self._database.write(_close, unused)
        if target is None:
            return False
        session = self._opened(unused.connection_id, unused.scope, unused.sealed)
        if session is not None:
            url = unused.negotiated.get("url")
            await self._tell(target, url if isinstance(url, str) else target.url, session)
        return True

    async def _bid_farewells(self, slots: asyncio.Semaphore) -> int:
        """Tell the servers of deleted and edited connections, once each: the row goes before the DELETE."""
        waiting = await self._database.read(load_farewells, FAREWELLS_LOOKED_AT)
        if not waiting:
            return 0
        sessions = {
            farewell.id: self._opened(farewell.target.id, farewell.scope, farewell.sealed_session)
            for farewell in waiting
        }
        digests = {row: session_digest(session) for row, session in sessions.items() if session is not None}
        named = [digest for digest in digests.values() if digest is not None]
        in_call = await self._database.read(load_sessions_in_call, named)
        free = [row for row in sessions if digests.get(row) not in in_call][:FAREWELLS_IN_A_RUN]
        taken = await self._database.write(take_farewells, free, utc_now() - FAREWELL_EXPIRY)

        async def tell(farewell: Farewell) -> bool:
            session = sessions[farewell.id]
            if session is None:
                return False
            async with slots:
                await self._tell(farewell.target, farewell.session_url, session)
            return True

        return sum(await asyncio.gather(*(tell(farewell) for farewell in waiting if farewell.id in taken)))

    async def _tell(self, target: ConnectionTarget, url: str, session: OpenSession) -> None:
        """Send the DELETE to where the session was opened: its id is a secret of that server."""
        # An address that may not be dialled any more is told nothing.
        with contextlib.suppress(MCPError):
            await self._clients.client(target_at(target, url)).close_session(session)

    def _opened(self, connection_id: str, scope: str, sealed: bytes | None) -> OpenSession | None:
        if sealed is None:
            return None
        purpose = SessionScope(connection_id, 0, scope).purpose
        try:
            return OpenSession.from_json(json.loads(self._vault.open(sealed, purpose)))
        except CannotOpenError:
            return None


def _close(session: WriteSession, unused: UnusedSession) -> ConnectionTarget | None:
    """Close the row if it still is as it was read, and return how to dial its server."""
    connection = session.get(Connection, unused.connection_id)
    closed = end_unused(session, unused)
    return target_of(connection) if closed and connection is not None else None
