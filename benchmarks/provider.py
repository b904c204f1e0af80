"""The chat provider that the benchmarks ask: `python -m benchmarks.provider` prints its base URL.

It answers at once, streamed or not, so that all that is measured lies before and behind it.
"""

import json
import socket
import sys
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

TOKENS = 20
USAGE = {"prompt_tokens": 10, "completion_tokens": TOKENS, "total_tokens": 10 + TOKENS}


async def complete(request: Request) -> Response:
    """Answer with a sentence."""
    body = json.loads(await request.body())
    if body.get("stream"):
        return StreamingResponse(_events(), media_type="text/event-stream")
    message = {"role": "assistant", "content": "word " * TOKENS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse({"id": "c", "object": "chat.completion", "choices": [choice], "usage": USAGE})


async def _events() -> AsyncIterator[bytes]:
    for number in range(TOKENS):
        finish = "stop" if number == TOKENS - 1 else None
        choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": finish}
        yield b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def main() -> None:
    """Serve until the process is ended."""
    # With the protocol named, asyncio turns Nagle's algorithm off; without, each answer takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/v1\n")
    sys.stdout.flush()
    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
