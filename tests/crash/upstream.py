"""An MCP server that writes down, by nonce, when each call was received, ran and was answered.

``python -m tests.crash.upstream`` prints its port. Tools take {"nonce", "hold_s"}: the effect happens in the
middle of the hold, whether or not the caller is still there. `work` answers with JSON. `stream` answers with
an event stream that begins with an event id, and a GET with that id fetches the answer later. The tools of a
server that was told to be `keyed` run once for each idempotency key. `GET /log` returns the log.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

KEY_META = "dev.sluicegate/idempotency-key"


@dataclass
class Entry:
    """What is known of one call that arrived; times are seconds since the epoch."""

    nonce: str
    tool: str
    key: str
    received_at: float
    ran_at: float | None = None
    answered_at: float | None = None


@dataclass
class Upstream:
    """The log, and the calls that are being worked on."""

    log: list[Entry] = field(default_factory=list[Entry])
    canceled: list[Any] = field(default_factory=list[Any])
    by_key: dict[str, "asyncio.Task[dict[str, Any]]"] = field(
        default_factory=dict[str, "asyncio.Task[dict[str, Any]]"]
    )
    by_event: dict[str, "asyncio.Task[dict[str, Any]]"] = field(
        default_factory=dict[str, "asyncio.Task[dict[str, Any]]"]
    )

    async def handle(self, request: Request) -> Response:
        if request.method == "GET":
            return self.resume(request)
        if request.method == "DELETE":
            return Response(status_code=200)
        message = await request.json()
        method, request_id = message.get("method"), message.get("id")
        if method == "notifications/cancelled":
            self.canceled.append(message["params"]["requestId"])
        if request_id is None:
            return Response(status_code=202)
        if method == "initialize":
            result: dict[str, Any] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "crash-upstream", "version": "1"},
            }
            return answer(request_id, result, {"mcp-session-id": f"session-{time.time_ns()}"})
        if method != "tools/call":
            return answer(request_id, {"tools": []} if method == "tools/list" else {})
        return await self.call(message, keyed=request.url.path.endswith("/keyed"))

    async def call(self, message: dict[str, Any], *, keyed: bool) -> Response:
        params, request_id = message["params"], message["id"]
        key = params.get("_meta", {}).get(KEY_META, "")
        arguments = params["arguments"]
        entry = Entry(arguments["nonce"], params["name"], key, time.time())
        task = self.by_key.get(key) if keyed else None
        if task is None:
            self.log.append(entry)
            # A task of its own: what began goes on when the caller is gone.
            task = asyncio.create_task(self.work(entry, arguments["hold_s"]))
            self.by_key[key] = task
        if params["name"] != "stream":
            return answer(request_id, await asyncio.shield(task))
        event_id = f"event/{len(self.by_event)}/{request_id}"
        self.by_event[event_id] = task
        events = stream(request_id, event_id, task)
        return StreamingResponse(events, media_type="text/event-stream")

    async def work(self, entry: Entry, hold_s: float) -> dict[str, Any]:
        await asyncio.sleep(hold_s / 2)
        entry.ran_at = time.time()
        await asyncio.sleep(hold_s / 2)
        entry.answered_at = time.time()
        return {"content": [{"type": "text", "text": f"did {entry.nonce}"}]}

    def resume(self, request: Request) -> Response:
        event_id = request.headers.get("last-event-id", "")
        task = self.by_event.get(event_id)
        if task is None:
            return Response(status_code=405)
        request_id = event_id.split("/", 2)[2]
        return StreamingResponse(stream(request_id, f"{event_id}", task), media_type="text/event-stream")

    async def show(self, _request: Request) -> Response:
        return JSONResponse({"log": [asdict(entry) for entry in self.log], "canceled": self.canceled})


def answer(request_id: Any, result: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": request_id, "result": result}, headers=headers)


async def stream(request_id: Any, event_id: str, task: "asyncio.Task[dict[str, Any]]") -> AsyncIterator[str]:
    yield f"id: {event_id}\ndata: \n\n"
    result = await asyncio.shield(task)
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})
    yield f"data: {body}\n\n"


def main() -> None:
    upstream = Upstream()
    methods = ["GET", "POST", "DELETE"]
    routes = [
        Route("/mcp", upstream.handle, methods=methods),
        Route("/mcp/keyed", upstream.handle, methods=methods),
        Route("/log", upstream.show),
    ]
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)  # noqa: T201 - The parent reads the port.
    config = uvicorn.Config(Starlette(routes=routes), log_level="error", access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
