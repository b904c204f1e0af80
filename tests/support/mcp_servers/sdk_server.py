"""An MCP server on the official Python SDK, as a process: ``python -m tests.support.mcp_servers.sdk_server``.

Prints its port on the first line. Beside ``/mcp`` it serves ``/counters``: how often each HTTP method,
JSON-RPC method and tool was received, as JSON, counted before the SDK sees the request; and ``/cancelled``,
which answers once a call of ``slow`` was cancelled since it was last asked.
"""

import argparse
import asyncio
import json
import socket
from collections import Counter
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.shared.message import ServerMessageMetadata
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
SECONDS = {"type": "object", "properties": {"seconds": {"type": "number"}}}

TOOLS = [
    types.Tool(name="echo", description="Return the text.", input_schema=TEXT),
    types.Tool(
        name="add",
        description="Add two numbers.",
        input_schema={"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
        output_schema={
            "type": "object",
            "properties": {"sum": {"type": "number"}},
            "required": ["sum"],
        },
    ),
    types.Tool(name="ping_me", description="Ping the caller, then answer.", input_schema=NOTHING),
    types.Tool(name="ask_me", description="Elicit a name, then answer.", input_schema=NOTHING),
    types.Tool(name="slow", description="Report progress, answer after a while.", input_schema=SECONDS),
    types.Tool(name="drop_stream", description="Close the stream, then answer.", input_schema=SECONDS),
    types.Tool(name="big", input_schema={"type": "object", "properties": {"bytes": {"type": "integer"}}}),
    types.Tool(name="fail", description="Answer with isError.", input_schema=NOTHING),
    types.Tool(name="relist", description="Announce a changed tool list.", input_schema=NOTHING),
    types.Tool(
        name="bad_output",
        input_schema=NOTHING,
        output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    ),
]
PAGE = 4
CANCELLED = asyncio.Event()
"""Set when a call of ``slow`` is cancelled."""


class MemoryEvents(EventStore):
    """Keeps all events of the process; ids are positions."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        if not last_event_id.isdigit() or not 0 < int(last_event_id) <= len(self._events):
            return None
        first = int(last_event_id)
        stream_id = self._events[first - 1][0]
        for position in range(first, len(self._events)):
            owner, message = self._events[position]
            if owner == stream_id and message is not None:
                await send_callback(EventMessage(message, str(position + 1)))
        return stream_id


class Counting:
    """Counts requests on their way to the SDK."""

    def __init__(self, app: ASGIApp, counters: Counter[str]) -> None:
        self._app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/mcp":
            await self._app(scope, receive, send)
            return
        self._counters[scope["method"]] += 1
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self._count(bytes(body))
        pending: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)

    def _count(self, body: bytes) -> None:
        try:
            message = json.loads(body)
        except ValueError:
            return
        if isinstance(message, dict) and "method" in message:
            self._counters[message["method"]] += 1
            if message["method"] == "tools/call":
                self._counters[f"tool:{message['params']['name']}"] += 1


def text(value: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=value)], **more)


async def list_tools(_ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    cursor = params.cursor if params is not None else None
    first = 0 if cursor is None else int(cursor or PAGE)
    following = first + PAGE
    # The second page hangs on the empty cursor, which is as valid as any.
    name = "" if following == PAGE else str(following)
    return types.ListToolsResult(
        tools=TOOLS[first:following], next_cursor=name if following < len(TOOLS) else None
    )


async def echo(_ctx: Any, arguments: dict[str, Any]) -> types.CallToolResult:
    return text(arguments.get("text", ""))


async def add(_ctx: Any, arguments: dict[str, Any]) -> types.CallToolResult:
    total = arguments["a"] + arguments["b"]
    return text(str(total), structured_content={"sum": total})


async def ping_me(ctx: Any, _arguments: dict[str, Any]) -> types.CallToolResult:
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    await ctx.session.send_request(types.PingRequest(), types.EmptyResult, metadata=related)
    return text("pong received")


async def ask_me(ctx: Any, _arguments: dict[str, Any]) -> types.CallToolResult:
    answer = await ctx.session.elicit_form("name?", NOTHING, ctx.request_id)
    return text(answer.action)


async def drop_stream(ctx: Any, arguments: dict[str, Any]) -> types.CallToolResult:
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(arguments.get("seconds", 0.1))
    return text("survived")


async def big(_ctx: Any, arguments: dict[str, Any]) -> types.CallToolResult:
    return text("x" * int(arguments["bytes"]))


async def relist(ctx: Any, _arguments: dict[str, Any]) -> types.CallToolResult:
    await ctx.session.send_tool_list_changed()
    return text("announced")


async def bad_output(_ctx: Any, _arguments: dict[str, Any]) -> types.CallToolResult:
    return text("n", structured_content={"n": "not a number"})


async def fail(_ctx: Any, _arguments: dict[str, Any]) -> types.CallToolResult:
    return text("it failed", is_error=True)


HANDLERS = {
    handler.__name__: handler
    for handler in (echo, add, ping_me, ask_me, drop_stream, big, relist, bad_output, fail)
}


def build_server(counters: Counter[str]) -> Server[Any]:
    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        if params.name == "slow":
            return await slow(ctx, arguments.get("seconds", 1), counters)
        if params.name not in HANDLERS:
            return text(f"Unknown tool: {params.name}", is_error=True)
        return await HANDLERS[params.name](ctx, arguments)

    return Server("sdk-lab", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def slow(ctx: Any, seconds: float, counters: Counter[str]) -> types.CallToolResult:
    try:
        for step in range(4):
            await ctx.session.report_progress(step, 4, f"step {step}")
            await asyncio.sleep(seconds / 4)
    except asyncio.CancelledError:
        counters["cancelled"] += 1
        CANCELLED.set()
        raise
    return text("slept")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stateless", action="store_true")
    parser.add_argument("--events", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--certificate", help="a PEM file of the certificate and its key: serve TLS")
    options = parser.parse_args()
    counters: Counter[str] = Counter()

    async def show(_request: Request) -> JSONResponse:
        return JSONResponse(dict(counters))

    async def cancelled(_request: Request) -> JSONResponse:
        async with asyncio.timeout(5):
            await CANCELLED.wait()
        CANCELLED.clear()
        return JSONResponse({"cancelled": counters["cancelled"]})

    app = build_server(counters).streamable_http_app(
        json_response=options.json,
        stateless_http=options.stateless,
        event_store=MemoryEvents() if options.events else None,
        retry_interval=100 if options.events else None,
        max_request_body_size=64 * 1024 * 1024,
        custom_starlette_routes=[Route("/counters", show), Route("/cancelled", cancelled)],
    )
    # With the protocol named, asyncio turns Nagle's algorithm off; without, each answer takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", options.port))
    listener.listen(256)
    print(listener.getsockname()[1], flush=True)  # noqa: T201 - the parent reads the port
    config = uvicorn.Config(
        Counting(app, counters), log_level="warning", lifespan="on", ssl_certfile=options.certificate
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
