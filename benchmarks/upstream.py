"""The MCP server that the benchmarks call: `python -m benchmarks.upstream` prints its address.

It counts the HTTP requests to `/mcp` and the executions of its tools, and tells both at `/counters`.
"""

import asyncio
import socket
import sys
from collections import Counter

import uvicorn
from mcp.server import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

COUNTS: Counter[str] = Counter()
server = MCPServer("bench")


@server.tool()
def noop() -> str:
    """Do nothing."""
    COUNTS["noop"] += 1
    return ""


@server.tool()
async def pause(milliseconds: int) -> str:
    """Answer after a while."""
    COUNTS["pause"] += 1
    await asyncio.sleep(milliseconds / 1000)
    return ""


class CountingRequests:
    """Counts what arrives at the MCP endpoint before the SDK sees it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/mcp":
            COUNTS["http"] += 1
        await self._app(scope, receive, send)


async def counters(_request: Request) -> Response:
    """Tell the counts as a JSON object."""
    return JSONResponse(dict(COUNTS))


def main() -> None:
    """Serve until the process is ended."""
    server.custom_route("/counters", methods=["GET"])(counters)
    # With the protocol named, asyncio turns Nagle's algorithm off; without, each answer takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    app = CountingRequests(server.streamable_http_app())
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
