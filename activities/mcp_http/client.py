"""The client of one MCP server: sessions, tool listings, calls, cancellation. All versions, both eras."""

import asyncio
import http.cookiejar
import ssl
import uuid
from typing import Final

import httpx

from activities.mcp_http import guard, negotiation, wire
from activities.mcp_http.calls import CANCEL_LIMIT_S, ToolRun, tell_cancelled
from activities.mcp_http.connections import GuardedTransport
from activities.mcp_http.conversation import Conversation
from activities.mcp_http.errors import MCPError, Outcome, ProtocolError, TransportError, without_effect
from activities.mcp_http.exchange import Line, Target
from activities.mcp_http.headers import get_headers, modern_headers
from activities.mcp_http.replies import declared_capabilities
from activities.mcp_http.results import ListingBuilder
from activities.mcp_http.schemas import SchemaCache
from activities.mcp_http.types import (
    JSON,
    CallHooks,
    Cursor,
    Endpoint,
    OpenSession,
    ToolAnswer,
    ToolCall,
    ToolListing,
)

_NO_HOOKS: Final = CallHooks()


def build_http_client(endpoint: Endpoint, ssl_context: ssl.SSLContext) -> httpx.AsyncClient:
    """Return a pooled HTTP client for one endpoint: guarded addresses, no redirects, no proxies, no cookies.

    Making a context costs 16 ms (it loads the CA bundle): share one, keep one client per endpoint and
    credential, and close it with ``aclose()``.

    Raises:
        EndpointRefused: The endpoint may not be dialled.
    """
    guard.check_endpoint(endpoint)
    no_cookies = http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(
        transport=GuardedTransport(endpoint, ssl_context),
        follow_redirects=False,
        trust_env=False,
        cookies=no_cookies,
    )


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

    async def open_session(self) -> OpenSession:
        """Negotiate era and version with the server; at the legacy era, initialize and await its 202.

        No tool runs here, so no error has the outcome ``unknown``.

        Raises:
            MCPError: No session; `retryable` says whether trying again may help.
        """
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
                    move = negotiation.after_discover(await self._discover(), configured, spent)
                case negotiation.Initialize(version):
                    try:
                        return await self._initialize(version)
                    except MCPError as exc:
                        move = negotiation.after_initialize_error(exc, configured, spent)

    async def _discover(self) -> dict[str, JSON] | MCPError:
        target = self._line.target(OpenSession(None, wire.MODERN_VERSION, "modern"))
        try:
            result, _ = await self._short(target, "server/discover", {})
        except MCPError as exc:
            return exc
        return result

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
        result, headers = await self._short(target, "initialize", params)
        session_id = headers.get("mcp-session-id")
        try:
            session = negotiation.read_initialized(result, session_id)
        except ProtocolError as exc:
            if exc.code == "unsupported_protocol_version" and session_id is not None:
                await self.close_session(OpenSession(session_id, version, "legacy"))
            raise
        # Some servers offer more tools once they have seen this, so its 202 is awaited before anything else.
        await self._notify_initialized(session)
        return session

    async def _notify_initialized(self, session: OpenSession) -> None:
        body = wire.notification_bytes("notifications/initialized")
        limit_s = self._endpoint.timeouts.negotiation_s
        try:
            async with asyncio.timeout(limit_s):
                await self._line.notify(self._line.target(session), body)
        except TimeoutError as exc:
            raise _no_time("notifications/initialized", limit_s) from exc
        except MCPError as exc:
            raise without_effect(exc) from exc.__cause__

    async def list_tools(self, session: OpenSession) -> ToolListing:
        """Fetch all pages of the tool list.

        Raises:
            SessionLost: Open a new session and ask again.
            MCPError: A page could not be fetched or holds no list.
        """
        listing = ListingBuilder(session.era, self._endpoint.limits, self._schemas)
        target = self._line.target(session)
        params: dict[str, JSON] = {}
        while True:
            result, _ = await self._short(target, "tools/list", params)
            cursor = listing.take_page(result)
            if cursor is None:
                return listing.listing()
            params = {"cursor": cursor}

    async def ping(self, session: OpenSession) -> None:
        """Ask whether the session still lives; at the modern era, whether the server does.

        Raises:
            SessionLost: The session is gone.
            MCPError: The server does not answer.
        """
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
        try:
            async with asyncio.timeout(CANCEL_LIMIT_S):
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
        return await ToolRun(self._line, self._schemas, session, call, hooks).start(timeout_s)

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
        return await ToolRun(self._line, self._schemas, session, call, hooks).resume(cursor, timeout_s)

    async def cancel_call(self, session: OpenSession, request_id: str, reason: str) -> None:
        """Tell a legacy server to stop a call of any process; best effort, within 5 s.

        Modern servers stop when the stream of the call is closed, which only its own process can do.
        """
        await tell_cancelled(self._line, session, request_id, reason)

    async def _short(
        self, target: Target, method: str, params: dict[str, JSON]
    ) -> tuple[dict[str, JSON], httpx.Headers]:
        """Ask what runs no tool, within the negotiation limit; return the result and response headers."""
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
                return await conversation.ask(body, extra), conversation.response_headers
        except TimeoutError as exc:
            raise _no_time(method, limit_s) from exc
        except MCPError as exc:
            raise without_effect(exc) from exc.__cause__


def _no_time(method: str, limit_s: float) -> TransportError:
    return TransportError(
        "negotiation_timeout",
        f"The MCP server did not answer {method!r} within {limit_s:g} s.",
        Outcome.NOT_SENT,
        retryable=True,
    )
