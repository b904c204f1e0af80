"""Chains the audit trail while a worker runs, so that what is appended is sealed within seconds.

Every worker runs one; the head's row lets one of them through at a time. No call waits for it, and what it
leaves undone is done before every verification.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from models.audit_chain import SEAL_BATCH, is_behind, seal_batch
from models.database import Database, DatabaseError

SEAL_INTERVAL_S = 10.0
"""How long an event waits for its link, about; a look costs one read."""

logger = logging.getLogger(__name__)


async def seal(database: Database) -> int:
    """Chain what waits, batch by batch, and return how many events that were.

    Raises:
        DatabaseError: the database is away.
    """
    sealed = 0
    if not await database.read(is_behind):
        return sealed
    while True:
        done = await database.write(seal_batch)
        sealed += done
        if done < SEAL_BATCH:
            return sealed


@asynccontextmanager
async def sealing(database: Database, interval_s: float = SEAL_INTERVAL_S) -> AsyncGenerator[None]:
    """Seal again and again until the block is left."""
    task = asyncio.create_task(_seal_for_ever(database, interval_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _seal_for_ever(database: Database, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        try:
            await seal(database)
        except DatabaseError:
            logger.warning("The audit trail could not be sealed; trying again.")
        except Exception:
            # The edge of a task that nobody waits for: it must outlive whatever one batch runs into.
            logger.exception("the audit trail could not be sealed")
