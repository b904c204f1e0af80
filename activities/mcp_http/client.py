"""The client of one MCP server: sessions, tool listings, calls, cancellation. All versions, both eras."""

import asyncio
import dataclasses
import functools
import ssl
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

import httpx

from activities.mcp_http import guard, negotiation, wire
from activities.mcp_http.calls import CANCEL_LIMIT_S, ToolRun, tell_cancelled
from activities.mcp_http.connections import GuardedClient, GuardedTransport
from activities.mcp_http.conversation import Conversation
from activities.mcp_http.errors import (
    MCPError,
    Outcome,
    ProtocolError,
    SessionLost,
    TransportError,
    no_time,
    without_effect,
)
from activities.mcp_http.exchange import Line, Target
from activities.mcp_http.headers import get_headers, modern_headers
from activities.mcp_http.http_sse import open_stream
from activities.mcp_http.listening import Listener
from activities.mcp_http.replies import declared_capabilities
from activities.mcp_http.results import ListingBuilder
from activities.mcp_http.schemas import SchemaCache
from activities.mcp_http.types import (
    JSON,
    CallHooks,
    Cursor,
    Endpoint,
    OnMessage,
    OpenSession,
    ToolAnswer,
    ToolCall,
    ToolListing,
)

_NO_HOOKS: Final = CallHooks()


def _nothing_on_open() -> None:
    return None


def build_http_client(endpoint: Endpoint, ssl_context: ssl.SSLContext) -> GuardedClient:
    """Return a pooled HTTP client for one endpoint: guarded addresses, no redirects, no proxies, no cookies.

    Making a context costs 16 ms (it loads the CA bundle): share one, keep one client per endpoint and
    credential, and close it with ``aclose()``.

    Raises:
        EndpointRefused: The endpoint may not be dialled.
    """
    guard.check_endpoint(endpoint)
    return GuardedClient(GuardedTransport(endpoint, ssl_context))


@dataclasses.dataclass(frozen=True, slots=True)
class _Reply:
    """A result, the headers it came with, and where it came from if not from the endpoint's own URL."""

    result: dict[str, JSON]
    headers: httpx.Headers
    url: str | None


class MCPClient:
    """Speaks with the server behind one endpoint; keeps no session, so any worker may continue one.

    Args:
        http: From `build_http_client`; its owner closes it.
        endpoint: Where and how.

    Raises:
        EndpointRefused: The endpoint may not be dialled.
    """

    def __init__(self, http: httpx.AsyncClient, endpoint: Endpoint) -> None:
        guard.check_endpoint(endpoint)
        self._endpoint = endpoint
        self._line = Line(http, endpoint)
        self._schemas = SchemaCache()
        self._on_stream = endpoint.transport == "http_sse"

    async def open_session(self) -> OpenSession:
        """Negotiate era and version with the server; at the legacy era, initialize and await its 202.

        No tool runs here, so no error has the outcome ``unknown``.

        Raises:
            MCPError: No session; `retryable` says whether trying again may help.
        """
        if self._on_stream:
            async with open_stream(self._line) as (_, session):
                return session
        configured, spent = self._endpoint.protocol_version, 0
        move = negotiation.first_move(configured)
        while True:
            spent += 1
            match move:
                case negotiation.Adopt(session):
                    return session
                case negotiation.GiveUp(error):
                    raise error
                case negotiation.Discover():
                    move = await self._discover(configured, spent)
                case negotiation.Initialize(version):
                    try:
                        return await self._initialize(version)
                    except MCPError as exc:
                        move = negotiation.after_initialize_error(exc, configured, spent)

    async def _discover(self, configured: str, spent: int) -> negotiation.Move:
        target = self._line.target(OpenSession(None, wire.MODERN_VERSION, "modern"))
        try:
            reply = await self._short(target, "server/discover", {})
        except MCPError as exc:
            return negotiation.after_discover(exc, configured, spent)
        move = negotiation.after_discover(reply.result, configured, spent)
        if isinstance(move, negotiation.Adopt):
            return negotiation.Adopt(dataclasses.replace(move.session, url=reply.url))
        return move

    async def _initialize(self, version: str) -> OpenSession:
        params: dict[str, JSON] = {
            "protocolVersion": version,
            "capabilities": declared_capabilities(self._endpoint.elicitation, version),
            "clientInfo": {
                "name": self._endpoint.client_info.name,
                "version": self._endpoint.client_info.version,
            },
        }
        target = self._line.first_target(self._endpoint.url)
        reply = await self._short(target, "initialize", params)
        session_id = reply.headers.get("mcp-session-id")
        try:
            session = negotiation.read_initialized(reply.result, session_id)
        except ProtocolError as exc:
            if exc.code == "unsupported_protocol_version" and session_id is not None:
                await self.close_session(OpenSession(session_id, version, "legacy"))
            raise
        session = dataclasses.replace(session, url=reply.url)
        # Some servers offer more tools once they have seen this, so its 202 is awaited before anything else.
        try:
            await self._notify_initialized(session)
        except MCPError:
            await self.close_session(session)  # Servers keep only so many, and nobody will know of this one.
            raise
        return session

    async def _notify_initialized(self, session: OpenSession) -> None:
        body = wire.notification_bytes("notifications/initialized")
        limit_s = self._endpoint.timeouts.negotiation_s
        try:
            async with asyncio.timeout(limit_s):
                await self._line.notify(self._line.target(session), body)
        except TimeoutError as exc:
            raise no_time("notifications/initialized", limit_s) from exc
        except MCPError as exc:
            raise without_effect(exc) from exc.__cause__

    async def list_tools(self, session: OpenSession) -> ToolListing:
        """Fetch all pages of the tool list.

        Raises:
            SessionLost: Open a new session and ask again.
            MCPError: A page could not be fetched or holds no list.
        """
        if self._on_stream:
            async with open_stream(self._line) as (stream, _):
                return await self._collect(session, functools.partial(stream.ask_short, "tools/list"))
        target = self._line.target(session)

        async def ask(params: dict[str, JSON]) -> dict[str, JSON]:
            return (await self._short(target, "tools/list", params)).result

        return await self._collect(session, ask)

    async def _collect(
        self, session: OpenSession, ask: Callable[[dict[str, JSON]], Awaitable[dict[str, JSON]]]
    ) -> ToolListing:
        listing = ListingBuilder(session.era, self._endpoint.limits, self._schemas)
        params: dict[str, JSON] = {}
        while True:
            cursor = listing.take_page(await ask(params))
            if cursor is None:
                return listing.listing()
            params = {"cursor": cursor}

    async def ping(self, session: OpenSession) -> None:
        """Ask whether the session still lives; at the modern era, whether the server does.

        Raises:
            SessionLost: The session is gone.
            MCPError: The server does not answer.
        """
        if self._on_stream:
            async with open_stream(self._line) as (stream, _):
                await stream.ask_short("ping", {})
            return
        method = "server/discover" if session.era == "modern" else "ping"
        await self._short(self._line.target(session), method, {})

    async def close_session(self, session: OpenSession) -> None:
        """End a session on the server; whatever it answers, the session is done with.

        A 405 means that it does not let clients end sessions.
        Source: MCP 2025-11-25, Transports, Session Management.
        """
        if session.session_id is None:
            return
        target = self._line.target(session)
        headers = get_headers(self._endpoint, session.protocol_version, session.session_id)
        limit_s = min(CANCEL_LIMIT_S, self._endpoint.timeouts.negotiation_s)
        try:
            async with asyncio.timeout(limit_s):
                async with self._line.bare("DELETE", target, headers) as response:
                    await self._line.refuse(response, had_session=False)
        except (TimeoutError, MCPError):
            return

    async def call_tool(
        self,
        session: OpenSession,
        call: ToolCall,
        hooks: CallHooks = _NO_HOOKS,
        timeout_s: float = 60,
    ) -> ToolAnswer:
        """Call a tool and return its result, whole.

        `timeout_s` is hard: neither progress nor keep-alives extend it. When it ends, or when the task is
        cancelled, the server is told if `hooks.tell_upstream_on_cancel` says so.

        Raises:
            SessionLost: The call did not run; open a new session and call again with a new request id.
            MCPError: No result; `outcome` says whether the call may have run.
        """
        run = ToolRun(self._line, self._schemas, session, call, hooks)
        return await (run.start_on_stream(timeout_s) if self._on_stream else run.start(timeout_s))

    async def resume_call(
        self,
        session: OpenSession,
        cursor: Cursor,
        call: ToolCall,
        hooks: CallHooks = _NO_HOOKS,
        timeout_s: float = 60,
    ) -> ToolAnswer:
        """Fetch the answer to a call that was sent before, perhaps by a process that is gone.

        Raises:
            MCPError: The answer cannot be fetched; the outcome of the call stays unknown.
        """
        if self._on_stream:
            raise TransportError("resume_refused", "This transport cannot resume.", Outcome.UNKNOWN)
        return await ToolRun(self._line, self._schemas, session, call, hooks).resume(cursor, timeout_s)

    async def cancel_call(self, session: OpenSession, request_id: str, reason: str) -> None:
        """Tell a legacy server to stop a call of any process; best effort, within 5 s.

        Modern servers stop when the stream of the call is closed, which only its own process can do.
        """
        await tell_cancelled(self._line, self._line.target(session), request_id, reason)

    async def listen(
        self,
        session: OpenSession,
        on_message: OnMessage,
        last_event_id: str | None = None,
        hooks: CallHooks = _NO_HOOKS,
        on_open: Callable[[], None] = _nothing_on_open,
    ) -> None:
        """Hold the stream for what the server says outside of calls, reconnecting as the server asks.

        Each notification goes to `on_message` with its event id; keep the newest id to resume with. Requests
        of the server are answered; `hooks.on_elicitation` is asked where the endpoint says so. A legacy
        server allows one such stream a session, 2024-11-05 none. `on_open` is called each time that the
        stream stands: what the server asks before is lost. Returns when the server offers none, or ends it
        for good.

        Raises:
            SessionLost: The session is gone.
            MCPError: Another stream is open (``listen_conflict``), or it keeps breaking (``stream_lost``).
        """
        if self._on_stream:
            return
        try:
            await Listener(self._line, session, on_message, hooks, on_open).run(last_event_id)
        except SessionLost:
            # A server without a route for GET answers 404 too, and its session lives: a POST tells which.
            await self._still_lives(session)

    async def _still_lives(self, session: OpenSession) -> None:
        try:
            await self.ping(session)
        except ProtocolError as exc:
            if exc.code != "method_not_found":
                raise

    async def _short(self, target: Target, method: str, params: dict[str, JSON]) -> _Reply:
        """Ask what runs no tool, within the negotiation limit; follows one redirect in the origin."""
        try:
            return await self._ask_once(target, method, params)
        except TransportError as exc:
            url = guard.allowed_redirect(exc, str(target.url))
            if url is None:
                raise
        return await self._ask_once(dataclasses.replace(target, url=httpx.URL(url)), method, params)

    async def _ask_once(self, target: Target, method: str, params: dict[str, JSON]) -> _Reply:
        if target.era == "modern":
            declared = declared_capabilities(self._endpoint.elicitation, wire.MODERN_VERSION)
            params = {**params, "_meta": wire.modern_meta(self._endpoint.client_info, declared)}
        request_id = str(uuid.uuid4())
        conversation = Conversation(self._line, target, request_id, _NO_HOOKS)
        body = wire.request_bytes(request_id, method, params)
        extra = modern_headers(method, None, {}, {}) if target.era == "modern" else None
        limit_s = self._endpoint.timeouts.negotiation_s
        try:
            async with asyncio.timeout(limit_s):
                result = await conversation.ask(body, extra)
        except TimeoutError as exc:
            raise no_time(method, limit_s) from exc
        except MCPError as exc:
            raise without_effect(exc) from exc.__cause__
        url = str(target.url)
        return _Reply(result, conversation.response_headers, None if url == self._endpoint.url else url)
