"""The events of a round as a server-sent event stream, read from the database."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from api.errors import malformed
from governance.codes import TERMINAL_ROUND_STATES
from models.database import Database, DatabaseError, ReadSession
from models.round import Round, RoundEvent, load_events

FIRST_PAUSE_S = 0.05
"""Pause after a look that found something."""

LONGEST_PAUSE_S = 0.25
"""Longest pause between looks."""

KEEP_ALIVE_S = 15.0
"""A comment is sent after this long without an event, so that proxies keep the connection."""

RECONNECT_MS = 500
"""How long a client waits before it connects again."""


@dataclass(frozen=True)
class _Look:
    events: tuple[RoundEvent, ...]
    is_last: bool


def parse_last_event_id(value: str | None) -> int:
    """Return the number after which to resume, 0 for the beginning; raises invalid_request.

    Source: HTML, Server-sent events, the Last-Event-ID header.
    """
    if value is None or not value.strip():
        return 0
    if not (value.strip().isascii() and value.strip().isdecimal()) or len(value) > 18:
        raise malformed("Last-Event-ID is the number of an event of this round")
    return int(value)


class EventFeed:
    """Reads one round's events as they come."""

    def __init__(
        self,
        database: Database,
        round_id: str,
        stopping: asyncio.Event,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        """Follow a round until it ends or `stopping` is set."""
        self._database = database
        self._round_id = round_id
        self._stopping = stopping
        self._keep_alive_s = keep_alive_s

    async def lines(self, after: int) -> AsyncIterator[str]:
        """Yield the stream's text from the event after number `after` until the round has ended."""
        # Part of the first event: some readers take a block of its own for an empty event.
        retry = f"retry: {RECONNECT_MS}\n"
        pause, spoke_at = FIRST_PAUSE_S, time.monotonic()
        while True:
            look = await self._look(after)
            if look is not None and look.events:
                yield retry + "".join(_as_text(look.events))
                retry, after, pause, spoke_at = "", look.events[-1].number, FIRST_PAUSE_S, time.monotonic()
            if look is not None and look.is_last:
                return
            if time.monotonic() - spoke_at >= self._keep_alive_s:
                yield ": keep-alive\n"
                spoke_at = time.monotonic()
            if await self._stops_within(pause):
                return
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _look(self, after: int) -> _Look | None:
        try:
            return await self._database.read(_read, self._round_id, after)
        except DatabaseError:
            # A stream outlives a busy moment of the database; the next look tells.
            return None

    async def _stops_within(self, pause: float) -> bool:
        try:
            async with asyncio.timeout(pause):
                return await self._stopping.wait()
        except TimeoutError:
            return False


def _read(session: ReadSession, round_id: str, after: int) -> _Look:
    row = session.get(Round, round_id)
    if row is None:
        return _Look((), is_last=True)
    events = load_events(session, round_id, after)
    # The terminal state and the last event commit together, so a terminal row has no further events.
    seen = events[-1].number if events else after
    return _Look(events, is_last=row.state in TERMINAL_ROUND_STATES and seen >= row.event_count)


def _as_text(events: Iterable[RoundEvent]) -> Iterable[str]:
    for event in events:
        facts = {"number": event.number, "kind": event.kind, "at": event.at.isoformat(), **event.data}
        data = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
        yield f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n"
