"""Listens to servers for the sessions in use: one stream a session over all workers, under a stored lease.

Where a connection wants the stream before any call, it is opened together with the session.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

from activities.catalog_refresh import LIST_CHANGED, CatalogWatch
from activities.mcp_http.client import MCPClient
from activities.mcp_http.errors import MCPError, SessionLost
from activities.mcp_http.types import JSON, OpenSession
from activities.mcp_sessions import HeldSession, NewSession
from models.base import new_id, utc_now
from models.connection import ConnectionTarget, Elicitation, EventStream, Transport
from models.database import Database, DatabaseError
from models.mcp_session import LAST_EVENT_MAX_BYTES, clear_session, touch_sessions
from models.mcp_stream import (
    SessionGone,
    StreamGranted,
    StreamLease,
    StreamTaken,
    claim_stream,
    leave_stream,
    renew_streams,
    store_event,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamTimes:
    """How long things may take; tests shorten them."""

    lease: timedelta = timedelta(seconds=60)
    """A worker that dies with a stream is replaced after this long."""

    keep_s: float = 20.0
    """How often a worker extends its leases, all at once, and sees which sessions still stand."""

    store_s: float = 1.0
    """Shortest time between two events that are stored; of those between, the newest is."""

    unused_s: float = 300.0
    """A stream ends when this process has not used its session for this long."""

    touch_s: float = 60.0
    """How often the use of sessions is noted for the idle sweep."""

    first_event_s: float = 2.0
    """How long the first event of `event_stream: always` is waited for: a server may have nothing to say."""

    not_offered: timedelta = timedelta(days=1)
    """How long a server is not asked again for a session's stream that it does not offer."""

    refused: timedelta = timedelta(minutes=1)
    """The same after a refusal or a stream that kept breaking."""


def wants_stream(target: ConnectionTarget, session: OpenSession) -> bool:
    """Say whether the stream of a session is to be held.

    `auto` means: where something can come on it that matters, which is a changed tool list that the server
    promises to announce, or a question that this connection declares to answer.
    """
    if target.event_stream is EventStream.NEVER or target.transport is Transport.HTTP_SSE:
        return False
    if target.event_stream is EventStream.ALWAYS:
        return True
    if session.era == "legacy" and session.session_id is None:
        return False
    if hears_questions(target, session):
        return True
    tools = session.capabilities.get("tools")
    return isinstance(tools, dict) and tools.get("listChanged") is True  # pyright: ignore[reportUnknownMemberType]


def hears_questions(target: ConnectionTarget, session: OpenSession) -> bool:
    """Say whether a server may ask on the stream what a call of it waits for."""
    return (
        session.era == "legacy"
        and target.event_stream is not EventStream.NEVER
        and target.elicitation is not Elicitation.NONE
    )


def stored_event(message: dict[str, JSON], event_id: str | None) -> dict[str, JSON]:
    """Return an event as a session's row keeps it; one that is too large loses its params."""
    event: dict[str, JSON] = {"id": event_id, "message": message, "at": utc_now().isoformat()}
    if len(json.dumps(event).encode()) <= LAST_EVENT_MAX_BYTES:
        return event
    kept = {"jsonrpc": "2.0", "method": str(message.get("method"))[:200]}
    return {**event, "id": event_id if len(event_id or "") <= 1024 else None, "message": kept, "cut": True}


@dataclass(eq=False)
class _Stream:
    """One session's stream in this process, whether it is held here or awaited."""

    client: MCPClient
    session: OpenSession
    connection_id: str
    lease: StreamLease
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    newest: tuple[dict[str, JSON], str | None] | None = None
    spoke: bool = False
    stands: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the stream is open, here or at another worker, or is known not to be had."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event | None = None
    """There while the stream is held under the lease; set once that does not stand any more."""
    listening: asyncio.Task[None] | None = None
    task: asyncio.Task[None] | None = None

    def take_newest(self) -> dict[str, JSON] | None:
        newest, self.newest = self.newest, None
        return None if newest is None else stored_event(*newest)

    def unused_for_s(self) -> float:
        return 0.0 if self.users else time.monotonic() - self.used_at


class StreamKeeper:
    """Holds the streams of the sessions that this process uses; a context manager."""

    def __init__(self, database: Database, catalogs: CatalogWatch, times: StreamTimes | None = None) -> None:
        """Keep leases in a database; hand changed tool lists to a watch."""
        self._database = database
        self._catalogs = catalogs
        self._times = times or StreamTimes()
        self._streams: dict[tuple[str, int], _Stream] = {}
        self._opening: dict[str, _Stream] = {}
        self._in_use: dict[str, int] = {}
        self._used: set[str] = set()
        self._routines: tuple[asyncio.Task[None], ...] = ()

    async def __aenter__(self) -> Self:
        """Begin to note which sessions are in use, and to extend the leases on their streams."""
        loop = asyncio.get_running_loop()
        self._routines = (loop.create_task(self._touch()), loop.create_task(self._renew()))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close every stream and give the leases back."""
        streams = [*self._streams.values(), *self._opening.values()]
        tasks = [
            task for stream in streams for task in (stream.task or stream.listening,) if task is not None
        ]
        tasks += self._routines
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._catalogs.close()

    def heard_in_call(self, target: ConnectionTarget, method: str) -> None:
        """Take a notification that came in the answer to a call."""
        if method == LIST_CHANGED:
            self._catalogs.note(target.id)

    def opener(self, client: MCPClient, target: ConnectionTarget) -> Callable[[], Awaitable[NewSession]]:
        """Return what opens a session of a connection.

        With `event_stream: always` it also opens the stream and waits for its first event, so a server that
        prepares a session when it is listened to has done so before the first call. Source: core document,
        MCP session state, lazy initialization in three steps.
        """

        async def open_session() -> NewSession:
            session = await client.open_session()
            if target.event_stream is not EventStream.ALWAYS or not wants_stream(target, session):

                async def close() -> None:
                    await client.close_session(session)

                return NewSession(session, target.url, abandon=close)
            stream = _Stream(client, session, target.id, StreamLease("", 0, new_id()))
            self._listen(stream, None)
            self._opening[stream.lease.token] = stream
            try:
                await self._await_first_event(stream)
            except BaseException:
                await self._abandon(stream)
                raise

            async def abandon() -> None:
                await self._abandon(stream)

            return NewSession(session, target.url, stream.lease.token, self._times.lease, abandon)

        return open_session

    async def _await_first_event(self, stream: _Stream) -> None:
        waiting = asyncio.ensure_future(stream.heard.wait())
        listening = stream.listening
        try:
            await asyncio.wait(
                {waiting, *([] if listening is None else [listening])},
                timeout=self._times.first_event_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waiting.cancel()
        if listening is not None and listening.done() and (refused := listening.exception()) is not None:
            raise refused

    async def _abandon(self, stream: _Stream) -> None:
        """Let a session go that was opened and could not be stored."""
        self._opening.pop(stream.lease.token, None)
        await _stop(stream.listening)
        await stream.client.close_session(stream.session)

    @asynccontextmanager
    async def using(
        self, client: MCPClient, target: ConnectionTarget, held: HeldSession
    ) -> AsyncGenerator[None]:
        """Count a session as in use, and hold its stream if it is wanted.

        A call during which the server may ask something waits for the stream: a question that nobody hears
        is waited for by the server, up to its own limit.
        """
        stream = self._stream(client, target, held)
        self._in_use[held.row_id] = self._in_use.get(held.row_id, 0) + 1
        self._used.add(held.row_id)
        if stream is not None:
            stream.users += 1
        try:
            if stream is not None and hears_questions(target, held.session):
                await self._await_stream(stream)
            yield
        finally:
            self._in_use[held.row_id] -= 1
            if not self._in_use[held.row_id]:
                del self._in_use[held.row_id]
            if stream is not None:
                stream.users -= 1
                stream.used_at = time.monotonic()

    async def _await_stream(self, stream: _Stream) -> None:
        try:
            async with asyncio.timeout(self._times.first_event_s):
                await stream.stands.wait()
        except TimeoutError:
            stream.stands.set()  # One call has waited; the next ones take the risk.

    def _stream(self, client: MCPClient, target: ConnectionTarget, held: HeldSession) -> _Stream | None:
        if not wants_stream(target, held.session):
            return None
        key = (held.row_id, held.row_version)
        opened = None if held.stream_token is None else self._opening.pop(held.stream_token, None)
        present = self._streams.get(key)
        if opened is None and present is not None:
            return present
        if present is not None and present.task is not None:
            present.task.cancel()  # It waits for the lease of the stream that was opened with the session.
        token = new_id() if opened is None else opened.lease.token
        stream = opened or _Stream(client, held.session, target.id, StreamLease("", 0, ""))
        stream.lease = StreamLease(held.row_id, held.row_version, token)
        self._streams[key] = stream
        stream.task = asyncio.get_running_loop().create_task(self._run(key, stream))
        return stream

    async def _run(self, key: tuple[str, int], stream: _Stream) -> None:
        try:
            while stream.unused_for_s() < self._times.unused_s:
                try:
                    if not await self._turn(stream):
                        return
                except DatabaseError:
                    logger.warning("The lease of an event stream could not be looked at; trying again.")
                    await asyncio.sleep(self._times.keep_s)
        finally:
            stream.stands.set()
            await _stop(stream.listening)
            if self._streams.get(key) is stream:
                del self._streams[key]

    async def _turn(self, stream: _Stream) -> bool:
        """Try to get the lease and hold the stream; False where it is of no more use."""
        claim = await self._database.write(claim_stream, stream.lease, self._times.lease)
        match claim:
            case SessionGone():
                return False
            case StreamTaken(until):
                stream.stands.set()
                # An end within a day may be a holder's; looking again each lease is soon enough.
                wait_s = (until - utc_now()).total_seconds()
                await asyncio.sleep(min(max(wait_s, 0.05), self._times.lease.total_seconds()))
                return True
            case StreamGranted(last_event_id):
                return await self._hold(stream, last_event_id)

    async def _hold(self, stream: _Stream, last_event_id: str | None) -> bool:
        """Listen under the lease until the stream ends or is not wanted; then give the lease back."""
        listening = stream.listening or self._listen(stream, last_event_id)
        stream.lost = lost = asyncio.Event()
        pause = timedelta(0)
        try:
            while not listening.done():
                if stream.unused_for_s() >= self._times.unused_s:
                    return False
                if lost.is_set():
                    return True  # Trying to get it again says why.
                if not await self._store(stream):
                    return False
                await self._await_news(stream, listening, lost)
            pause = self._pause_after(stream, listening)
            if isinstance(listening.exception(), SessionLost):
                await self._database.write(clear_session, stream.lease.row_id, stream.lease.row_version)
                return False
            return True
        finally:
            stream.lost = None
            stream.listening = None
            stream.stands.clear()
            await _stop(listening)
            await asyncio.shield(self._leave(stream.lease, pause, stream.take_newest()))

    async def _leave(self, lease: StreamLease, pause: timedelta, newest: dict[str, JSON] | None) -> None:
        try:
            await self._database.write(leave_stream, lease, pause, newest)
        except DatabaseError:
            logger.warning("The lease of an event stream could not be given back; it expires.")

    async def _store(self, stream: _Stream) -> bool:
        newest = stream.take_newest()
        stream.heard.clear()
        if newest is None:
            return True
        return await self._database.write(store_event, stream.lease, self._times.lease, newest)

    async def _await_news(self, stream: _Stream, listening: asyncio.Task[None], lost: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (stream.heard, lost)]
        try:
            await asyncio.wait(
                {*waits, listening}, timeout=self._times.keep_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
        if stream.heard.is_set() and not listening.done():
            await asyncio.wait({listening}, timeout=self._times.store_s)

    def _pause_after(self, stream: _Stream, listening: asyncio.Task[None]) -> timedelta:
        """Say how long the server is left alone after its stream ended by itself."""
        error = listening.exception()
        if error is not None:
            code = error.code if isinstance(error, MCPError) else type(error).__name__
            logger.info("The event stream of a session ended (%s).", code)
            return self._times.refused
        return self._times.refused if stream.spoke else self._times.not_offered

    def _listen(self, stream: _Stream, last_event_id: str | None) -> asyncio.Task[None]:
        async def on_message(message: dict[str, JSON], event_id: str | None) -> None:
            stream.newest, stream.spoke = (message, event_id), True
            stream.heard.set()
            if message.get("method") == LIST_CHANGED:
                self._catalogs.note(stream.connection_id)

        listening = asyncio.get_running_loop().create_task(
            stream.client.listen(stream.session, on_message, last_event_id, on_open=stream.stands.set)
        )
        stream.listening = listening
        return listening

    async def _renew(self) -> None:
        """Extend the leases of all streams held here, by one transaction each `keep_s`."""
        loop = asyncio.get_running_loop()
        extended_at = loop.time()
        while True:
            await asyncio.sleep(self._times.keep_s)
            streams = list(self._streams.values())
            held = [(stream.lease, stream.lost) for stream in streams if stream.lost is not None]
            try:
                standing = await self._standing([lease for lease, _ in held])
                extended_at = loop.time()
            except DatabaseError:
                logger.warning("The leases of event streams could not be extended; trying again.")
                # A lease that may end before the next try is given up: another worker may take it then.
                if loop.time() + self._times.keep_s < extended_at + self._times.lease.total_seconds():
                    continue
                standing = frozenset[str]()
            for lease, lost in held:
                if lease.token not in standing:
                    lost.set()

    async def _standing(self, leases: list[StreamLease]) -> frozenset[str]:
        if not leases:
            return frozenset()
        return await self._database.write(renew_streams, leases, self._times.lease)

    async def _touch(self) -> None:
        while True:
            await asyncio.sleep(self._times.touch_s)
            used, self._used = sorted(self._used | self._in_use.keys()), set[str]()
            if used:
                try:
                    await self._database.write(touch_sessions, used)
                except DatabaseError:
                    self._used.update(used)


async def _stop(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
