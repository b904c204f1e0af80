"""An MCP server on a bare socket: the test sees each request when its first byte arrives, and answers it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Reply = tuple[int, dict[str, Any] | None]
"""Status and JSON body of an answer."""

OnCall = Callable[[dict[str, Any]], Awaitable[Reply]]


@dataclass
class SocketServer:
    """What arrived, by JSON-RPC method; `on_first_byte` is awaited before anything more is read."""

    on_call: OnCall
    on_first_byte: Callable[[], Awaitable[None]] | None = None
    methods: list[str] = field(default_factory=list[str])
    sessions: int = 0
    lost: set[str] = field(default_factory=set[str])
    canceled: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    connections: set["asyncio.Task[Any]"] = field(default_factory=set["asyncio.Task[Any]"])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        if connection is not None:
            self.connections.add(connection)
        try:
            while first := await reader.read(1):
                # Known only after the headers what it is, so the test looks at every request.
                if self.on_first_byte is not None:
                    await self.on_first_byte()
                head = (first + await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                status, extra, answer = await self.answer(head, headers, body)
                content = b"" if answer is None else json.dumps(answer).encode()
                lines = [f"HTTP/1.1 {status} X", f"content-length: {len(content)}", *extra]
                if answer is not None:
                    lines.append("content-type: application/json")
                writer.write("\r\n".join([*lines, "", ""]).encode() + content)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def answer(
        self, head: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[str], dict[str, Any] | None]:
        if not head.startswith("POST"):
            return 405, [], None
        message = json.loads(body)
        method = message["method"]
        self.methods.append(method)
        if method == "notifications/cancelled":
            self.canceled.set()
        if "id" not in message:
            return 202, [], None
        if method == "initialize":
            self.sessions += 1
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "socket", "version": "1"},
            }
            return 200, [f"mcp-session-id: s{self.sessions}"], _result(message, result)
        if headers.get("mcp-session-id", "") in self.lost:
            return 404, [], None
        if method != "tools/call":
            return 200, [], _result(message, {"tools": []})
        status, answer = await self.on_call(message)
        return status, [], answer


def _result(message: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


async def done(message: dict[str, Any]) -> Reply:
    """Answer a call with a text."""
    return 200, _result(message, {"content": [{"type": "text", "text": "done"}]})


@asynccontextmanager
async def socket_server(on_call: OnCall = done) -> AsyncIterator[SocketServer]:
    state = SocketServer(on_call)
    server = await asyncio.start_server(state.serve, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield state
    finally:
        server.close()
        for connection in state.connections:
            connection.cancel()
        await asyncio.gather(*state.connections, return_exceptions=True)
