"""Run an MCP server on a free port, counting how often each of its tools really ran."""

import socket
import sys
from collections import Counter
from contextlib import suppress

import uvicorn
from mcp.server import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

LOOPBACK = "127.0.0.1"


def serve(server: MCPServer, runs: Counter[str]) -> None:
    """Serve until the process is ended: MCP on `/mcp`, the counters as JSON on `/counters`.

    The first line of standard output is the server's base URL.
    """

    async def counters(_request: Request) -> Response:
        return JSONResponse(dict(runs))

    server.custom_route("/counters", methods=["GET"])(counters)
    app = server.streamable_http_app(host=LOOPBACK)
    # With the protocol named, asyncio turns Nagle's algorithm off; without, each answer takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind((LOOPBACK, 0))
    # Whoever reads the address may connect at once; the connection waits in the queue.
    listener.listen()
    sys.stdout.write(f"http://{LOOPBACK}:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    # A client may keep an event stream open for ever; nobody waits for it.
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
