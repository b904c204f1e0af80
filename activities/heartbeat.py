"""Keeps a running activity's heartbeat going, so that a dead worker is noticed and a cancel arrives."""

import asyncio
from datetime import timedelta
from typing import Any, Protocol, Self

from temporalio import activity

BEATS_PER_TIMEOUT = 4
"""Beats within one heartbeat timeout: three may be late before the worker is taken for dead."""

LONGEST_PAUSE_S = 0.4
"""A cancel arrives with the answer to a beat, so beats are close; a shorter call never beats at all."""


class Detailed(Protocol):
    """Whoever knows what the next attempt should know."""

    @property
    def details(self) -> tuple[Any, ...]:
        """What travels with each beat and reaches the next attempt."""
        ...


class Heartbeat:
    """Beats until it is left."""

    def __init__(self, timeout: timedelta | None, detailed: Detailed) -> None:
        """Beat for an activity with this heartbeat timeout; without one, stay silent."""
        self._timeout = timeout
        self._detailed = detailed
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to beat."""
        if self._timeout is not None:
            pause_s = min(self._timeout.total_seconds() / BEATS_PER_TIMEOUT, LONGEST_PAUSE_S)
            self._task = asyncio.create_task(self._beat(pause_s))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _beat(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            activity.heartbeat(*self._detailed.details)
