"""The transport of 2024-11-05: one GET stream that names a POST URL and carries every answer.

Spoken only where an endpoint is configured for it. A session is the stream itself and dies with it, so it
cannot be shared: each operation here opens a stream, initializes, asks and closes. Nothing can be resumed.
Source: MCP 2024-11-05, Transports, HTTP with SSE.
"""

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from urllib.parse import urljoin

import httpx

from activities.mcp_http import negotiation, wire
from activities.mcp_http.conversation import Conversation
from activities.mcp_http.errors import (
    EndpointRefused,
    MCPError,
    Outcome,
    ProtocolError,
    no_time,
    without_effect,
)
from activities.mcp_http.exchange import Line, Target, content_type, unexpected_type
from activities.mcp_http.guard import is_plain, same_origin
from activities.mcp_http.headers import EVENT_STREAM_TYPE, get_headers
from activities.mcp_http.replies import declared_capabilities
from activities.mcp_http.sse import Event
from activities.mcp_http.types import JSON, CallHooks, OpenSession

VERSION = "2024-11-05"


class StreamSession:
    """One open stream with its session; made by `open_stream`."""

    def __init__(self, line: Line, target: Target, events: AsyncGenerator[Event, None]) -> None:
        self.line = line
        self.target = target
        self._events = events

    async def ask(self, conversation: Conversation, body: bytes) -> dict[str, JSON]:
        """POST a request and return the result that comes on the stream.

        Raises:
            MCPError: No result came.
        """
        return await conversation.ask_beside(body, self._events)

    async def ask_short(self, method: str, params: dict[str, JSON]) -> dict[str, JSON]:
        """Ask something that runs no tool, within the negotiation limit.

        Raises:
            MCPError: No result came.
        """
        request_id, limit_s = str(uuid.uuid4()), self.line.endpoint.timeouts.negotiation_s
        conversation = Conversation(self.line, self.target, request_id, CallHooks())
        try:
            async with asyncio.timeout(limit_s):
                return await self.ask(conversation, wire.request_bytes(request_id, method, params))
        except TimeoutError as exc:
            raise no_time(method, limit_s) from exc
        except MCPError as exc:
            raise without_effect(exc) from exc.__cause__


@asynccontextmanager
async def open_stream(line: Line) -> AsyncGenerator[tuple[StreamSession, OpenSession], None]:
    """Open a stream, learn where to post, and initialize; all within the negotiation limit.

    Raises:
        EndpointRefused: The server names a POST URL on another origin.
        MCPError: No session.
    """
    endpoint = line.endpoint
    first = line.first_target(endpoint.url)
    limit_s = endpoint.timeouts.negotiation_s
    scope = asyncio.timeout(limit_s)
    try:
        async with scope, line.bare("GET", first, get_headers(endpoint, None, None)) as response:
            if response.status_code >= 300:
                raise await line.refuse(response, had_session=False)
            if content_type(response) != EVENT_STREAM_TYPE:
                raise unexpected_type(response, b"")
            async with aclosing(line.events(response, None)) as events:
                post_url = await _post_url(events, endpoint.url)
                target = dataclasses.replace(first, url=httpx.URL(post_url))
                stream = StreamSession(line, target, events)
                session = await _initialize(stream)
                scope.reschedule(None)
                yield stream, session
    except TimeoutError as exc:
        if not scope.expired():
            raise
        raise no_time("GET", limit_s) from exc


async def _post_url(events: AsyncGenerator[Event, None], url: str) -> str:
    async for event in events:
        if event.name != "endpoint":
            continue
        try:
            post_url = urljoin(url, event.data.strip())
        except ValueError:
            post_url = ""
        if not is_plain(post_url) or not same_origin(post_url, url):
            raise EndpointRefused("The server names a POST URL that is on another origin, or is none.")
        return post_url
    raise ProtocolError("no_answer", "The MCP server's stream ended without naming a URL.", Outcome.NOT_SENT)


async def _initialize(stream: StreamSession) -> OpenSession:
    endpoint = stream.line.endpoint
    params: dict[str, JSON] = {
        "protocolVersion": VERSION,
        "capabilities": declared_capabilities(endpoint.elicitation, VERSION),
        "clientInfo": {"name": endpoint.client_info.name, "version": endpoint.client_info.version},
    }
    session = negotiation.read_initialized(await stream.ask_short("initialize", params), None)
    await stream.line.notify(stream.target, wire.notification_bytes("notifications/initialized"))
    return session
