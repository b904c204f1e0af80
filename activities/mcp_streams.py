"""Opens a session together with its event stream, where a connection wants the stream before any call."""

import asyncio
from collections.abc import Awaitable, Callable

from activities.mcp_http.client import MCPClient
from activities.mcp_http.errors import MCPError
from activities.mcp_http.types import JSON, OpenSession
from models.connection import ConnectionTarget, EventStream

FIRST_EVENT_S = 2.0
"""How long the first event of a stream is waited for: a server may have nothing to say."""


def session_opener(client: MCPClient, target: ConnectionTarget) -> Callable[[], Awaitable[OpenSession]]:
    """Return what opens a session of a connection.

    With `event_stream: always` it also opens the stream and waits for its first event, so a server that
    prepares a session when it is listened to has done so before the first call. Source: core document, MCP
    session state, lazy initialization in three steps.
    """
    if target.event_stream is not EventStream.ALWAYS:
        return client.open_session

    async def open_listened_to() -> OpenSession:
        session = await client.open_session()
        try:
            await _hear_first_event(client, session)
        except MCPError:
            await client.close_session(session)
            raise
        return session

    return open_listened_to


async def _hear_first_event(client: MCPClient, session: OpenSession) -> None:
    heard = asyncio.Event()

    async def on_message(_message: dict[str, JSON], _event_id: str | None) -> None:
        heard.set()

    listening = asyncio.ensure_future(client.listen(session, on_message))
    waiting = asyncio.ensure_future(heard.wait())
    try:
        await asyncio.wait({listening, waiting}, timeout=FIRST_EVENT_S, return_when=asyncio.FIRST_COMPLETED)
        refused = listening.exception() if listening.done() else None
    finally:
        listening.cancel()
        waiting.cancel()
        await asyncio.gather(listening, waiting, return_exceptions=True)
    if refused is not None:
        raise refused
