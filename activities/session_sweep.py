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
from activities.mcp_sessions import SessionScope
from models.base import utc_now
from models.connection import Connection, ConnectionTarget, target_of
from models.database import Database, WriteSession
from models.mcp_session import UnusedSession, end_unused, load_unused
from models.vault import CannotOpenError, Vault

SESSION_IDLE = timedelta(minutes=15)
"""Sessions unused for longer are ended; servers would hold them for 30 minutes or so."""

SWEPT_AT_ONCE = 100
"""Sessions that one run ends; the next run goes on."""

FAREWELLS_AT_ONCE = 10
"""Servers told at the same time: one that does not answer holds up no other."""


@dataclass(frozen=True)
class SweepReport:
    """What one run did."""

    ended: int
    refreshed: int


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
        return SweepReport(sum(ended), await refresh_overlooked(self._database, self._engine))

    async def _end(self, unused: UnusedSession) -> bool:
        target = await self._database.write(_close, unused)
        if target is None:
            return False
        session = self._opened(unused)
        if session is not None:
            url = unused.negotiated.get("url")
            # The id is a secret of the server that gave it: it goes to no other address.
            at = target_at(target, url) if isinstance(url, str) else target
            # An address that may not be dialled any more is told nothing.
            with contextlib.suppress(MCPError):
                await self._clients.client(at).close_session(session)
        return True

    def _opened(self, unused: UnusedSession) -> OpenSession | None:
        if unused.sealed is None:
            return None
        purpose = SessionScope(unused.connection_id, 0, unused.scope).purpose
        try:
            return OpenSession.from_json(json.loads(self._vault.open(unused.sealed, purpose)))
        except CannotOpenError:
            return None


def _close(session: WriteSession, unused: UnusedSession) -> ConnectionTarget | None:
    """Close the row if it still is as it was read, and return how to dial its server."""
    connection = session.get(Connection, unused.connection_id)
    closed = end_unused(session, unused)
    return target_of(connection) if closed and connection is not None else None
