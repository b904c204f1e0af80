"""A scriptable HTTP server on raw sockets: every byte of an answer is under the test's control.

A script is ``async def script(request, peer)``; it runs once for each request and writes what it likes. The
connection stays open for the next request unless the script closes or resets it.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One request as received; header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    raw_headers: tuple[tuple[str, str], ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The JSON-RPC message in the body, {} if there is none."""
        return json.loads(self.body) if self.body else {}

    @property
    def rpc_method(self) -> str | None:
        return self.message.get("method")


class Peer:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def wait_closed(self) -> None:
        """Wait until the client closes the connection."""
        await self._reader.read()

    async def send(self, *parts: bytes) -> None:
        """Write each part and flush it, so that parts arrive as chunks of their own as far as TCP allows."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()

    async def send_bytewise(self, data: bytes) -> None:
        for position in range(len(data)):
            self._writer.write(data[position : position + 1])
            await self._writer.drain()
            await asyncio.sleep(0)

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Close with RST."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script = Callable[[RawRequest, Peer], Awaitable[None]]


@dataclass(slots=True)
class RawServer:
    """A running server; `requests` has everything it received, in order."""

    script: Script
    port: int = 0
    requests: list[RawRequest] = field(default_factory=list)
    connections: int = 0
    closed_connections: int = 0
    listener: asyncio.Server | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def received(self, rpc_method: str) -> list[RawRequest]:
        """Return the POSTs that carried a method."""
        return [r for r in self.requests if r.method == "POST" and r.rpc_method == rpc_method]

    def gets(self) -> list[RawRequest]:
        return [r for r in self.requests if r.method == "GET"]

    async def wait_until(self, predicate: Callable[["RawServer"], bool]) -> None:
        """Wait, at most `WAIT_S`, until the server has seen what the predicate asks for."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: predicate(self))

    def stop_listening(self) -> None:
        """Refuse connections from now on; those that stand are kept."""
        if self.listener is not None:
            self.listener.close()

    async def note(self) -> None:
        """Let `wait_until` look again."""
        async with self._changed:
            self._changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        peer = Peer(reader, writer)
        try:
            while (request := await _read_request(reader, number)) is not None:
                self.requests.append(request)
                await self.note()
                await self.script(request, peer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.closed_connections += 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            await self.note()


async def _read_request(reader: asyncio.StreamReader, connection: int) -> RawRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    fields = tuple((n, v.strip()) for n, _, v in (line.partition(":") for line in lines if line))
    headers = {name.lower(): value for name, value in fields}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RawRequest(method, path, headers, body, connection, fields)


@asynccontextmanager
async def raw_server(script: Script) -> AsyncGenerator[RawServer, None]:
    """Run a script on a free loopback port until the block ends."""
    server = RawServer(script)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(server.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 20)
    server.listener = listener
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        # A connection accepted by the kernel just before may still be on its way to a task.
        for _ in range(3):
            await asyncio.sleep(0)
            pending = list(tasks)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)


def http(status: int, body: bytes = b"", content_type: str | None = "application/json", *extra: str) -> bytes:
    """Build a whole response; `extra` are header lines."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *extra]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def sse_head(*extra: str, content_type: str = "text/event-stream") -> bytes:
    """Build the head of an event stream that ends when the connection does."""
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", "Connection: close", *extra]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def event(
    data: Any, event_id: str | None = None, name: str | None = "message", retry: int | None = None
) -> bytes:
    """Build one event; `data` is text, or a value that becomes JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    lines = [] if name is None else [f"event: {name}"]
    if event_id is not None:
        lines.append(f"id: {event_id}")
    if retry is not None:
        lines.append(f"retry: {retry}")
    lines.extend(f"data: {line}" for line in text.split("\n"))
    return "\n".join(lines).encode() + b"\n\n"


def result(request_id: Any, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def error(request_id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:
    body: dict[str, Any] = {"code": code, "message": message}
    return {"jsonrpc": "2.0", "id": request_id, "error": body if data is None else {**body, "data": data}}


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def legacy_server(script: Script, session_id: str | None = "s-1", version: str = "2025-11-25") -> Script:
    """Answer the handshake and DELETE; pass everything else to `script`."""

    async def wrapped(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method == "initialize":
            value = {
                "protocolVersion": version,
                "capabilities": {},
                "serverInfo": {"name": "raw", "version": "1"},
            }
            extra = [] if session_id is None else [f"Mcp-Session-Id: {session_id}"]
            await peer.send(http(200, dump(result(request.message["id"], value)), "application/json", *extra))
        elif request.rpc_method in {"notifications/initialized", "notifications/cancelled"}:
            await peer.send(http(202, b"", None))
        elif request.method == "DELETE":
            await peer.send(http(200))
        else:
            await script(request, peer)

    return wrapped


def modern_server(script: Script) -> Script:
    """Answer ``server/discover``; pass everything else to `script`."""

    async def wrapped(request: RawRequest, peer: Peer) -> None:
        if request.rpc_method == "server/discover":
            value = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete"}
            await peer.send(http(200, dump(result(request.message["id"], value))))
        else:
            await script(request, peer)

    return wrapped
