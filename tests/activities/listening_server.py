"""An MCP server whose event streams the test plays on: what is opened, by whom, and what is told on it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.raw_server import (
    Peer,
    RawRequest,
    RawServer,
    dump,
    error,
    event,
    http,
    raw_server,
    result,
    sse_head,
    text_result,
)

CHANGED: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
TOOLS = [{"name": "read", "inputSchema": {"type": "object"}}]


@dataclass
class ListeningServer:
    """A server of the legacy era, or with `modern` of the other one."""

    announces: bool = True
    modern: bool = False
    instead_of_stream: bytes | None = None
    """What a GET is answered; nothing at all with b""."""
    first_event: bytes = b"id: p\ndata:\n\n"
    sessions: list[str] = field(default_factory=list[str])
    deleted: list[str] = field(default_factory=list[str])
    lost: set[str] = field(default_factory=set[str])
    streams: dict[str, Peer] = field(default_factory=dict[str, Peer])
    opened: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])
    """Session and Last-Event-ID of every stream that was opened, in order."""
    conflicts: int = 0
    listings: int = 0
    calls: int = 0
    told_in_calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Sent in the answer to every call, before the result."""
    gate: asyncio.Event | None = None
    """Calls are answered once it is set."""
    raw: RawServer = field(init=False)

    @property
    def url(self) -> str:
        return self.raw.url

    async def serve(self, request: RawRequest, peer: Peer) -> None:
        session = request.headers.get("mcp-session-id", "")
        if request.method == "DELETE":
            self.deleted.append(session)
            await peer.send(http(200))
        elif session in self.lost:
            await peer.send(http(404, dump(error(None, -32001, "Session not found"))))
        elif request.method == "GET":
            await self._stream(session, request.headers.get("last-event-id"), peer)
        elif "id" not in request.message:
            await peer.send(http(202, b"", None))
        elif (refusal := self._era_refusal(request, session)) is not None:
            await peer.send(http(400, dump(refusal)))
        else:
            await self._answer(request, peer)

    def _era_refusal(self, request: RawRequest, session: str) -> dict[str, Any] | None:
        """Say what a server of one era says to a call of the other."""
        if request.rpc_method != "tools/call" or self.modern == (session == ""):
            return None
        if self.modern:
            known = {"supported": ["2026-07-28"]}
            return error(request.message["id"], -32022, "Unsupported protocol version", known)
        return error(None, -32000, "Bad Request: Server not initialized")

    async def _answer(self, request: RawRequest, peer: Peer) -> None:
        match request.rpc_method:
            case "initialize" | "server/discover":
                await self._handshake(request, peer)
            case "tools/list":
                self.listings += 1
                value = {"tools": TOOLS, "resultType": "complete"}
                await peer.send(http(200, dump(result(request.message["id"], value))))
            case "subscriptions/listen":
                await self._stream("", None, peer)
            case "tools/call":
                self.calls += 1
                if self.gate is not None:
                    await self.gate.wait()
                told = [event(message) for message in self.told_in_calls]
                value = {**text_result("done"), "resultType": "complete"}
                await peer.send(sse_head() + b"".join(told) + event(result(request.message["id"], value)))
                peer.close()
            case "ping":
                await peer.send(http(200, dump(result(request.message["id"], {}))))
            case _:
                await peer.send(http(400, dump(error(request.message["id"], -32601, "Method not found"))))

    async def _handshake(self, request: RawRequest, peer: Peer) -> None:
        discovers = request.rpc_method == "server/discover"
        if discovers != self.modern:
            await peer.send(http(400, dump(error(request.message["id"], -32000, "Bad request"))))
            return
        capabilities = {"tools": {"listChanged": self.announces}}
        if discovers:
            modern = {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}
            await peer.send(
                http(200, dump(result(request.message["id"], {**modern, "resultType": "complete"})))
            )
            return
        self.sessions.append(f"s{len(self.sessions) + 1}")
        value: dict[str, Any] = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "serverInfo": {"name": "listening", "version": "1"},
        }
        extra = f"Mcp-Session-Id: {self.sessions[-1]}"
        await peer.send(http(200, dump(result(request.message["id"], value)), "application/json", extra))

    async def _stream(self, session: str, last_event_id: str | None, peer: Peer) -> None:
        self.opened.append((session, last_event_id))
        if self.instead_of_stream is not None:
            await (peer.send(self.instead_of_stream) if self.instead_of_stream else peer.wait_closed())
            return
        if session in self.streams:
            self.conflicts += 1
            await peer.send(http(409, dump(error(None, -32600, "Conflict"))))
            return
        self.streams[session] = peer
        try:
            await peer.send(sse_head(), self.first_event)
            await self.raw.note()
            await peer.wait_closed()
        finally:
            del self.streams[session]
            await self.raw.note()

    async def tell(self, session: str, message: dict[str, Any], event_id: str | None = None) -> None:
        """Send a message on the stream of a session."""
        await self.streams[session].send(event(message, event_id))


@asynccontextmanager
async def listening_server(**settings: Any) -> AsyncGenerator[ListeningServer, None]:
    server = ListeningServer(**settings)
    async with raw_server(server.serve) as raw:
        server.raw = raw
        yield server
