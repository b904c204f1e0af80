"""The wrapper's side of one call's sends: nothing leaves before the ledger has said so."""

import asyncio
import logging
from collections.abc import Mapping

from activities.flights import Flight
from activities.ledger import OpenCall, mark_call_sent, open_next_send
from governance.canonical import JSON
from governance.codes import SendOutcome
from models.database import Database, DatabaseError
from models.send import save_cursor

CURSOR_DELAY_S = 0.1
"""A call that is answered sooner needs no stored cursor, which would cost a transaction."""

logger = logging.getLogger(__name__)


class LedgerGate:
    """Commits each send before its first byte, and keeps where its answer can be resumed."""

    def __init__(self, database: Database, call: OpenCall, flight: Flight) -> None:
        """Begin at the send that `call` opened, or whose answer it is to fetch."""
        self._database = database
        self._call = call
        self._flight = flight
        self._saver: asyncio.Task[None] | None = None
        self._cursor: Mapping[str, JSON] | None = None
        if call.resume is not None:
            self._cursor = {
                "request_id": call.resume.request_id,
                "last_event_id": call.resume.last_event_id,
            }
        self.send_id = call.send_id
        self.send_number = call.send_number
        self.is_sent = call.resume is not None
        """Whether bytes of the present send may have left."""
        self.unsent_outcome = SendOutcome.NOT_SENT
        """What is known of the present send while `is_sent` is False."""

    @property
    def can_be_resumed(self) -> bool:
        """Whether another worker can fetch the answer to what was sent."""
        return self.is_sent and self._cursor is not None

    async def before_send(self, session_digest: str | None) -> None:
        """Commit that the first byte is about to leave.

        Whatever interrupts this transaction, a cancel too, vetoes the send: no byte has left yet.
        """
        await self._database.write(mark_call_sent, self._call, self.send_id, session_digest)
        self.is_sent = True

    async def next_send(self) -> None:
        """Close the refused send and open another one."""
        self.is_sent, self.unsent_outcome = False, SendOutcome.REFUSED
        self.send_id, self.send_number = await self._database.write(open_next_send, self._call, self.send_id)
        self.unsent_outcome, self._cursor = SendOutcome.NOT_SENT, None

    async def on_cursor(self, cursor: Mapping[str, JSON]) -> None:
        """Keep a cursor: in the next heartbeat at once, in the database if the call lasts."""
        self._cursor = dict(cursor)
        self._flight.details = ({"send_id": self.send_id, **cursor},)
        if self._saver is None or self._saver.done():
            self._saver = asyncio.create_task(self._save(self.send_id, CURSOR_DELAY_S))

    async def _save(self, send_id: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self._cursor is None:
            return
        try:
            await self._database.write(save_cursor, send_id, self._cursor)
        except DatabaseError:
            # The heartbeat carries the cursor too, and the answer may come all the same.
            logger.warning("A resume cursor could not be stored.")

    async def close(self) -> None:
        """End what goes on beside the call."""
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.gather(self._saver, return_exceptions=True)

    async def keep_cursor(self) -> None:
        """Store the cursor now, for the worker that goes on with this call."""
        await self._save(self.send_id, 0)

    def tell_upstream_on_cancel(self) -> bool:
        """Whether a cancel is somebody's wish: not a worker's end and not an operator's pause."""
        return self._flight.tells_upstream
