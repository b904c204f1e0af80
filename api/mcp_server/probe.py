"""A small MCP server that remembers everything that reaches it, for checks that only the far side can judge.

It speaks the modern era, keeps nothing on disk and listens where it is told. `sluicegate verify` puts it
behind a gateway; its own record then says what was called and what came along.
"""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn
from starlette.types import Receive, Scope, Send

from api.mcp_server.eras import MODERN
from api.mcp_server.frames import (
    METHOD_NOT_FOUND,
    Request,
    RPCProblem,
    error_frame,
    read_frame,
    result_frame,
)
from governance.canonical import JSON

ANY_ARGUMENTS: Final[dict[str, JSON]] = {"type": "object"}


@dataclass(frozen=True)
class Received:
    """A request as it came in, whole: what is not in here did not reach the server."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def holds(self, text: str) -> bool:
        """Say whether a text is anywhere in the request."""
        encoded = text.encode()
        return (
            encoded in self.body
            or text in self.target
            or any(text in name or text in value for name, value in self.headers)
        )


@dataclass(frozen=True)
class ProbeCall:
    """A call of a tool that was carried out."""

    tool: str
    arguments: dict[str, JSON]


@dataclass
class Probe:
    """The server as an ASGI app. `tools` are listed as they are; every name but theirs is unknown.

    Arguments tell a tool what to do: `fail` makes it report a failure, `hold` makes it wait until `go` is set
    or the caller gives up.
    """

    tools: Sequence[dict[str, JSON]]
    received: list[Received] = field(default_factory=list[Received])
    calls: list[ProbeCall] = field(default_factory=list[ProbeCall])
    given_up: int = 0
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def forget(self) -> None:
        """Begin a new record; calls that are held go on waiting for what they waited for."""
        self.received, self.calls, self.given_up = [], [], 0
        self.holding, self.stopped, self.go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def count(self, nonce: JSON, tool: str | None = None) -> int:
        """Return how many calls with this `nonce` among their arguments were carried out."""
        return sum(call.arguments.get("nonce") == nonce and tool in (None, call.tool) for call in self.calls)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] != "http":
            return
        body = await _body(receive)
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        target = scope["path"] + "?" + scope["query_string"].decode("latin-1")
        self.received.append(Received(scope["method"], target, headers, body))
        if scope["method"] != "POST":
            await _answer(send, 405, None)
            return
        frame = read_frame(json.loads(body))
        if not isinstance(frame, Request):
            await _answer(send, 202, None)
            return
        try:
            result = await self._result(frame, receive)
        except RPCProblem as problem:
            await _answer(send, problem.status, error_frame(frame.id, problem))
        else:
            await _answer(send, 200, result_frame(frame.id, {**result, "resultType": "complete"}))

    async def _result(self, request: Request, receive: Receive) -> dict[str, JSON]:
        match request.method:
            case "server/discover":
                return {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
            case "tools/list":
                return {"tools": list(self.tools), "ttlMs": 0, "cacheScope": "private"}
            case "tools/call":
                return await self._call(request, receive)
            case _:
                raise RPCProblem(METHOD_NOT_FOUND, "Method not found", status=404)

    async def _call(self, request: Request, receive: Receive) -> dict[str, JSON]:
        name: JSON = request.params["name"]
        arguments: dict[str, JSON] = request.params.get("arguments") or {}
        if all(tool.get("name") != name for tool in self.tools):
            return {"content": [{"type": "text", "text": "unknown tool"}], "isError": True}
        self.calls.append(ProbeCall(name, arguments))
        if arguments.get("hold"):
            await self._hold(receive)
        text = json.dumps({"tool": name, "arguments": arguments}, ensure_ascii=False)
        return {"content": [{"type": "text", "text": text}], "isError": bool(arguments.get("fail"))}

    async def _hold(self, receive: Receive) -> None:
        self.holding.set()
        gone, let_go = asyncio.create_task(_gone(receive)), asyncio.create_task(self.go.wait())
        await asyncio.wait({gone, let_go}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.given_up += 1
            self.stopped.set()
        gone.cancel()
        let_go.cancel()


def probe_tool(name: str, schema: JSON = None, **more: JSON) -> dict[str, JSON]:
    """Describe a tool for `Probe.tools`."""
    return {"name": name, "description": f"Probe {name}.", "inputSchema": schema or ANY_ARGUMENTS, **more}


class QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its process."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


@asynccontextmanager
async def serving(app: Any, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[int]:
    """Serve an ASGI app on a socket until the block ends; gives the port."""
    # With the protocol named, asyncio turns Nagle's algorithm off; without, small answers wait 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        server = QuietServer(config)
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            server.force_exit = True
            await asyncio.gather(running, return_exceptions=True)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int, body: JSON) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
