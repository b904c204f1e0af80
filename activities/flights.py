"""Calls on their way in this process, and why one of them is to stop.

A heartbeat that comes late on a busy machine makes Temporal start another attempt while the first still
works. On the same worker the later attempt joins the flight; on another worker it takes the lease over.
"""

import asyncio
from enum import StrEnum
from typing import Any

from temporalio import activity

from activities.ledger import CallOutcome, SettledCall


class Stop(StrEnum):
    """Why a call is to stop."""

    WISH = "wish"
    """Somebody canceled the call or its round: its server is told."""

    OVERDUE = "overdue"
    """It has run for longer than its activity may: its server is told."""

    HAND_OVER = "hand_over"
    """This worker ends, or an operator paused or reset the activity: another attempt goes on."""


class Flight:
    """One call on its way: whoever makes it, and whatever attempts wait for it."""

    def __init__(self, details: tuple[Any, ...]) -> None:
        """Begin with the heartbeat details that an attempt before this one left."""
        self.details = details
        """What each heartbeat carries: the cursor at which the answer can be resumed."""
        self.stop: Stop | None = None
        self.task: asyncio.Task[SettledCall] | None = None
        self.runner: asyncio.Task[CallOutcome] | None = None
        self._was_stale = False

    async def land(self) -> SettledCall:
        """Wait for the end; a cancel of the activity that waits stops the call, unless it is only stale."""
        if self.task is None:
            raise RuntimeError("A flight is waited for once it has begun.")
        while not self.task.done():
            try:
                await asyncio.wait({self.task})
            except asyncio.CancelledError:
                self._cancel_came()
        return self.task.result()

    def _cancel_came(self) -> None:
        details = activity.cancellation_details()
        if details is not None and details.not_found and not self._was_stale:
            # Temporal has given this attempt up, or its workflow is gone. What was sent is still worth its
            # answer, and only this process can get it. A second cancel means that the process ends.
            self._was_stale = True
            return
        self.ask_to_stop(_stop_of(details))

    def ask_to_stop(self, stop: Stop) -> None:
        """Stop the runner; what that leaves behind is settled by the wrapper."""
        if self.stop is None:
            self.stop = stop
        if self.runner is not None:
            self.runner.cancel()

    @property
    def tells_upstream(self) -> bool:
        """Whether the call's server is to be told that its answer is not waited for."""
        return self.stop is not Stop.HAND_OVER


def _stop_of(details: activity.ActivityCancellationDetails | None) -> Stop:
    if details is None or details.cancel_requested:
        return Stop.WISH
    return Stop.OVERDUE if details.timed_out else Stop.HAND_OVER
