"""Notices that a server lists other tools than are stored, and has those listed, once for many notices."""

import asyncio
import logging
from datetime import timedelta
from typing import Protocol

from models.base import utc_now
from models.connection import StaleCatalog, load_stale, mark_stale
from models.database import Database, DatabaseError

LIST_CHANGED = "notifications/tools/list_changed"
"""With this notification a server says that its list of tools is another one now."""

REFRESH_DELAY = timedelta(seconds=1)
"""Servers announce changes in bursts: whatever comes within this time is covered by one listing."""

REFRESH_INTERVAL = timedelta(seconds=10)
"""Shortest time between a listing and the next one that notices cause; some servers announce endlessly."""

OVERLOOKED = timedelta(seconds=60)
"""A catalog stale for this long was left behind by a worker that died before it asked for the refresh."""

logger = logging.getLogger(__name__)


class CatalogEngine(Protocol):
    """The workflow engine as refreshes use it."""

    async def refresh_catalog(self, connection_id: str, delay: timedelta) -> bool:
        """Start a sync of a connection after `delay`, or join the one under way; False if that failed."""
        ...


def refresh_delay(stale: StaleCatalog) -> timedelta:
    """Return how long to wait before the tools of a stale catalog are listed."""
    if stale.synced_at is None:
        return REFRESH_DELAY
    return max(REFRESH_DELAY, REFRESH_INTERVAL - (utc_now() - stale.synced_at))


class CatalogWatch:
    """Takes the notices of this process; call `close` when the worker ends.

    For each connection one mark is on its way to the database at a time; notices that come meanwhile are
    covered by one more. The first mark of all workers asks for the refresh, and the listing takes it away.
    """

    def __init__(self, database: Database, engine: CatalogEngine) -> None:
        """Mark in a database, and refresh through an engine."""
        self._database = database
        self._engine = engine
        self._marking: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    def note(self, connection_id: str) -> None:
        """Note that a server announced a change; returns at once."""
        if connection_id in self._marking:
            self._again.add(connection_id)
            return
        task = asyncio.get_running_loop().create_task(self._mark(connection_id))
        self._marking[connection_id] = task

    async def _mark(self, connection_id: str) -> None:
        try:
            while True:
                self._again.discard(connection_id)
                stale = await self._database.write(mark_stale, connection_id)
                if stale is not None:
                    await self._engine.refresh_catalog(connection_id, refresh_delay(stale))
                if connection_id not in self._again:
                    return
        except DatabaseError:
            logger.warning("A changed tool list could not be noted; the next notice or sync makes up for it.")
        finally:
            self._marking.pop(connection_id, None)

    async def close(self) -> None:
        """Wait until what was noted is stored."""
        await asyncio.gather(*self._marking.values(), return_exceptions=True)


async def refresh_overlooked(database: Database, engine: CatalogEngine) -> int:
    """Have the catalogs refreshed whose worker died before it asked; return how many there were."""
    overlooked = await database.read(load_stale, utc_now() - OVERLOOKED)
    for stale in overlooked:
        await engine.refresh_catalog(stale.connection_id, refresh_delay(stale))
    return len(overlooked)
