"""A worker's side of connections' slots: it renews the leases of its calls, and wakes who is next."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from temporalio import activity
from temporalio.service import RPCError

from models.database import Database, DatabaseError
from models.slot import SLOT_LEASE_S, Waiter, renew_slots

SLOT_FREE: Final = "slot_free"
"""The signal that a slot is free for one of a workflow's calls; it carries the call's position."""

BUSY: Final = "busy"
"""Status of a call that has not begun: its connection has no slot free, and it is to be started again."""

RENEWALS_PER_LEASE: Final = 4
"""Renewals within one lease: three may be late before the slot is given to another call."""

SIGNAL_TIMEOUT: Final = timedelta(seconds=2)
"""A signal that takes longer is given up: whoever waits looks by itself."""

logger = logging.getLogger(__name__)


class CallBusyError(Exception):
    """The call has not begun and is to be started again after a wait."""

    def __init__(self, wait_s: float, ahead: int) -> None:
        """Carry the wait and how many calls are before this one."""
        super().__init__(f"No slot is free; {ahead} calls are before this one.")
        self.wait_s = wait_s
        self.ahead = ahead


class SlotLeases:
    """Renews the slots that calls of this worker hold, all in one transaction; idle while there are none."""

    def __init__(self, database: Database, lease_s: float = SLOT_LEASE_S) -> None:
        """Renew leases of `lease_s` seconds."""
        self.lease_s = lease_s
        self._database = database
        self._held: set[str] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._waking: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def held(self, lease_token: str | None) -> AsyncGenerator[None]:
        """Keep the slot of a lease while the block runs; None holds nothing."""
        if lease_token is None:
            yield
            return
        self._held.add(lease_token)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            self._held.discard(lease_token)
            if not self._held:
                self._renewing.cancel()

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(self.lease_s / RENEWALS_PER_LEASE)
            try:
                await self._database.write(renew_slots, sorted(self._held), self.lease_s)
            except DatabaseError:
                logger.warning("The slots of this worker could not be renewed; trying again.")

    def wake(self, waiter: Waiter | None) -> None:
        """Tell a workflow that a slot is free, beside whatever goes on; only to be called in an activity."""
        if waiter is None or not activity.in_activity():
            return
        task = asyncio.create_task(_signal(waiter))
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)


async def _signal(waiter: Waiter) -> None:
    handle = activity.client().get_workflow_handle(waiter.workflow_id)
    try:
        await handle.signal(SLOT_FREE, waiter.position, rpc_timeout=SIGNAL_TIMEOUT)
    except RPCError as error:
        # It has ended, or the engine is away. The signal only saves time.
        logger.info("A waiting call was not woken (%s).", error.status.name)
