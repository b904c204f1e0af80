"""Runs calls side by side; one whose connection is busy is started again when its turn may have come."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import workflow

from activities.slots import BUSY
from activities.tool_calls import CallToolResult

CHUNK = 50
"""Calls that are started in one workflow task, so that its commands stay far below 4 MB."""

NEXT_TASK = timedelta(milliseconds=1)
"""A timer that ends the workflow task; the next one starts more calls, whatever has ended meanwhile."""

Handle = workflow.ActivityHandle[CallToolResult]


def _nobody() -> set[int]:
    return set()


@dataclass
class Queue:
    """Which calls of a workflow were told that a slot is free, since they last looked for one."""

    told: set[int] = field(default_factory=_nobody)

    def wake(self, position: int) -> None:
        """Let a call look for its slot at once; also one of which is not known yet that it has to wait."""
        self.told.add(position)

    async def wait(self, position: int, wait_s: float) -> None:
        """Wait until the call is told to look, or for as long as it was told to wait; a durable timer."""
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: position in self.told, timeout=timedelta(seconds=max(wait_s, 0.001))
            )
        self.told.discard(position)


async def run_calls(
    handles: dict[int, Handle], start: Mapping[int, Callable[[], Handle]], queue: Queue
) -> None:
    """Start calls and wait until every one has ended; a cancel is passed on to each and waited for as well.

    `start` starts a call by position, for the first time or again. `handles` is filled with them, always
    with the last attempt of each, and keeps their outcomes. What an activity raised is not looked at here:
    its ledger row tells.
    """
    canceled = False
    waiting: dict[int, asyncio.Task[None]] = {}
    positions = list(start)
    _start_chunk(handles, start, positions[:CHUNK])
    starting = asyncio.create_task(_start_others(handles, start, positions[CHUNK:]))
    while True:
        if not canceled:
            _let_wait(handles, waiting, queue)
        pending = [*(handle for handle in handles.values() if not handle.done()), *waiting.values()]
        if not starting.done():
            pending.append(starting)
        if not pending:
            break
        try:
            await workflow.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            canceled = True
            for task in pending:
                task.cancel()
        for position in [position for position, task in waiting.items() if task.done()]:
            # One that had waited when the cancel came is not started any more.
            if not waiting.pop(position).cancelled() and not canceled:
                handles[position] = start[position]()
    _hear_of_failures(handles)
    if canceled:
        raise asyncio.CancelledError


async def wait_for_call(start: Callable[[], Handle], position: int, queue: Queue) -> CallToolResult:
    """Make one call, however long it has to wait for its connection; raises what its activity raised."""
    handles: dict[int, Handle] = {}
    await run_calls(handles, {position: start}, queue)
    return handles[position].result()


def _start_chunk(
    handles: dict[int, Handle], start: Mapping[int, Callable[[], Handle]], positions: Iterable[int]
) -> None:
    for position in positions:
        handles[position] = start[position]()


async def _start_others(
    handles: dict[int, Handle], start: Mapping[int, Callable[[], Handle]], positions: Sequence[int]
) -> None:
    """Start what the first chunk left, a chunk in a workflow task."""
    for first in range(0, len(positions), CHUNK):
        await workflow.sleep(NEXT_TASK)
        _start_chunk(handles, start, positions[first : first + CHUNK])


def _let_wait(handles: Mapping[int, Handle], waiting: dict[int, asyncio.Task[None]], queue: Queue) -> None:
    """Let every call wait that came back without having begun and does not wait yet."""
    for position, handle in handles.items():
        wait_s = None if position in waiting else _busy_for(handle)
        if wait_s is not None:
            waiting[position] = asyncio.create_task(queue.wait(position, wait_s))


def _hear_of_failures(handles: Mapping[int, Handle]) -> None:
    """Ask each handle for what it raised, so that asyncio does not complain that nobody did."""
    for handle in handles.values():
        if not handle.cancelled():
            handle.exception()


def _busy_for(handle: Handle) -> float | None:
    """Return how long a call is to wait that has not begun; None for every other."""
    if not handle.done() or handle.cancelled() or handle.exception() is not None:
        return None
    result = handle.result()
    return result.wait_s if result.status == BUSY else None
