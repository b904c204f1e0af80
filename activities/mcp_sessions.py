"""Opens and shares MCP sessions: one initialize for a scope, whichever workers need it at once."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from weakref import WeakValueDictionary

from activities.mcp_http.errors import MCPError, Outcome, TransportError
from activities.mcp_http.types import OpenSession
from governance.canonical import canonical_bytes
from models.base import new_id, utc_now
from models.database import Database
from models.mcp_farewell import replace_session
from models.mcp_session import (
    OpenedSession,
    SessionState,
    StoredSession,
    claim_opening,
    clear_session,
    load_session,
    release_opening,
    store_opened,
    use_again,
)
from models.vault import CannotOpenError, Vault

OPENING_LEASE = timedelta(seconds=30)
"""How long a worker may take to initialize before another one tries."""

RESTED = timedelta(minutes=5)
"""A session unused for longer is marked as used before a call leaves on it: the sweep may be about to end it.

Far below the sweep's limit, as use is otherwise noted afterwards, once a minute.
"""

POLL_FIRST_S = 0.02
POLL_LONGEST_S = 0.5
"""How often a worker looks whether another one's initialize is done."""


@dataclass(frozen=True)
class SessionScope:
    """Which session is wanted: of which connection, at which version of it, for whom."""

    connection_id: str
    connection_version: int
    scope: str

    @property
    def purpose(self) -> str:
        """What the sealed session is bound to."""
        return f"mcp-session/{self.connection_id}/{self.scope}"


@dataclass(frozen=True)
class HeldSession:
    """An open session, and the row version under which it was read."""

    row_id: str
    row_version: int
    session: OpenSession
    wanted: SessionScope
    stream_token: str | None = None
    """Set for whoever opened the session together with its stream."""

    @property
    def digest(self) -> str | None:
        """Name the session without telling its id; None where the server gave none."""
        return session_digest(self.session)


def session_digest(session: OpenSession) -> str | None:
    """Return the digest by which a session is known in the ledger; None where the server gave no id."""
    session_id = session.session_id
    return None if session_id is None else hashlib.sha256(session_id.encode()).hexdigest()


async def _nothing_to_abandon() -> None:
    return None


@dataclass(frozen=True)
class NewSession:
    """A session as it was opened, and the token under which its stream is held already, if it is.

    `abandon` is awaited if the session cannot be stored.
    """

    session: OpenSession
    url: str
    """The address that was dialled: the id of the session is told to no other one."""
    stream_token: str | None = None
    stream_lease: timedelta = timedelta(0)
    abandon: Callable[[], Awaitable[None]] = _nothing_to_abandon


class McpSessions:
    """Finds, opens and clears stored sessions."""

    def __init__(self, database: Database, vault: Vault) -> None:
        """Keep sessions in a database, sealed by a vault."""
        self._database = database
        self._vault = vault
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def obtain(
        self,
        wanted: SessionScope,
        stored: StoredSession | None,
        open_session: Callable[[], Awaitable[NewSession]],
    ) -> HeldSession:
        """Return the session of a scope, opening it where there is none.

        `stored` is the row as the caller read it. `open_session` is called by one worker only; the others
        wait for what it stores.

        Raises:
            MCPError: opening failed; nothing of a call was sent.
        """
        held = await self._awake(wanted, stored)
        if held is not None:
            return held
        lock = self._locks.setdefault((wanted.connection_id, wanted.scope), asyncio.Lock())
        async with lock:
            return await self._obtain_alone(wanted, open_session)

    async def discard(self, held: HeldSession) -> None:
        """Close a session that the server has forgotten, unless it was replaced already."""
        await self._database.write(clear_session, held.row_id, held.row_version)

    async def _obtain_alone(
        self, wanted: SessionScope, open_session: Callable[[], Awaitable[NewSession]]
    ) -> HeldSession:
        """Open the session or wait for another process that does; one task of this process is here."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OPENING_LEASE.total_seconds()
        pause_s = POLL_FIRST_S
        while loop.time() < deadline:
            stored = await self._database.read(load_session, wanted.connection_id, wanted.scope)
            held = await self._awake(wanted, stored)
            if held is not None:
                return held
            if stored is not None and stored.state is SessionState.OPEN:
                # It belongs to an earlier version of the connection, or was sealed with another key.
                await self._database.write(replace_session, stored.id, stored.row_version)
            token = new_id()
            other = await self._database.write(
                claim_opening, wanted.connection_id, wanted.scope, token, OPENING_LEASE
            )
            if other is None:
                return await self._open(wanted, token, open_session)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, POLL_LONGEST_S)
        raise TransportError(
            "session_not_opened",
            "Another worker did not finish opening the session in time.",
            Outcome.NOT_SENT,
            retryable=True,
        )

    async def _open(
        self, wanted: SessionScope, token: str, open_session: Callable[[], Awaitable[NewSession]]
    ) -> HeldSession:
        try:
            new = await open_session()
        except (MCPError, asyncio.CancelledError):
            await asyncio.shield(
                self._database.write(release_opening, wanted.connection_id, wanted.scope, token)
            )
            raise
        try:
            held = await self._store(wanted, token, new)
        except BaseException:
            await asyncio.shield(new.abandon())
            raise
        if held is None:
            await new.abandon()
            raise TransportError(
                "session_not_opened",
                "Another worker took over opening the session.",
                Outcome.NOT_SENT,
                retryable=True,
            )
        return held

    async def _store(self, wanted: SessionScope, token: str, new: NewSession) -> HeldSession | None:
        session = new.session
        opened = OpenedSession(
            sealed=self._vault.seal(canonical_bytes(session.to_json()), wanted.purpose),
            negotiated={
                "protocolVersion": session.protocol_version,
                "era": session.era,
                "serverInfo": session.server_info,
                "hasSessionId": session.session_id is not None,
                "url": new.url,
            },
            connection_version=wanted.connection_version,
            stream_token=new.stream_token,
        )
        stored = await self._database.write(
            store_opened, wanted.connection_id, wanted.scope, token, opened, new.stream_lease
        )
        held = self._usable(wanted, stored)
        return None if held is None else replace(held, stream_token=new.stream_token)

    async def _awake(self, wanted: SessionScope, stored: StoredSession | None) -> HeldSession | None:
        """Return a stored session that no sweep will end under the call that wants it."""
        held = self._usable(wanted, stored)
        if held is None or stored is None or stored.last_used_at > utc_now() - RESTED:
            return held
        still_open = await self._database.write(use_again, stored.id, stored.row_version)
        return held if still_open else None

    def _usable(self, wanted: SessionScope, stored: StoredSession | None) -> HeldSession | None:
        if stored is None or stored.sealed is None or stored.state is not SessionState.OPEN:
            return None
        if stored.connection_version != wanted.connection_version:
            return None
        try:
            content = self._vault.open(stored.sealed, wanted.purpose)
        except CannotOpenError:
            return None
        session = OpenSession.from_json(json.loads(content))
        return HeldSession(stored.id, stored.row_version, session, wanted)
