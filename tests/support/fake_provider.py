"""A scriptable provider of chat completions in OpenAI's wire format, on a real socket.

A script is ``async def script(request, peer)``, as for `raw_server`; the builders here write the bytes it
sends. `answers` plays whole answers one after another.
"""

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.raw_server import Peer, RawRequest, RawServer, Script, http, raw_server

UPSTREAM_MODEL = "upstream-model-1"
"""What the provider calls the model that tests ask for."""


@dataclass(frozen=True)
class FakeProvider:
    """A running provider."""

    server: RawServer

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/v1"

    @property
    def requests(self) -> list[RawRequest]:
        return self.server.requests

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was asked, in order."""
        return [json.loads(request.body) for request in self.server.requests]


@asynccontextmanager
async def fake_provider(script: Script) -> AsyncIterator[FakeProvider]:
    """Run a script on a free loopback port until the block ends."""
    async with raw_server(script) as server:
        yield FakeProvider(server)


def answers(*given: bytes) -> Script:
    """Send the given responses, one for each request; the last one again and again."""
    left = list(given)

    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(left.pop(0) if len(left) > 1 else left[0])

    return script


def usage(prompt: int = 7, completion: int = 5, cached: int = 2) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def tool_call(name: str, arguments: Any = "{}", call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(
    content: str | None = "Hello.",
    tool_calls: Sequence[Mapping[str, Any]] = (),
    told: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a whole answer as a value."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": UPSTREAM_MODEL,
        "choices": [
            {"index": 0, "message": message, "finish_reason": "tool_calls" if tool_calls else "stop"}
        ],
        "usage": dict(usage() if told is None else told),
    }


def answer(value: Any, status: int = 200, *extra: str) -> bytes:
    """Write a response whose body is a JSON value."""
    return http(status, json.dumps(value).encode(), "application/json", *extra)


def error(message: str, code: str | None = None, error_type: str = "error") -> dict[str, Any]:
    return {"error": {"message": message, "type": error_type, "param": None, "code": code}}


def chunk(delta: Mapping[str, Any] | None, finish: str | None = None, **extra: Any) -> dict[str, Any]:
    """Write a chunk as a value; without a delta it has no choice."""
    choices = [] if delta is None else [{"index": 0, "delta": dict(delta), "finish_reason": finish}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": UPSTREAM_MODEL,
        "choices": choices,
        **extra,
    }


def stream_head(*extra: str) -> bytes:
    """Write the head of a chunked event stream, after which the connection can be used again."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked", *extra]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def part(data: bytes) -> bytes:
    """Write one HTTP chunk; an empty one ends the response."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: Any) -> bytes:
    """Write one event as an HTTP chunk; text goes as it is, other values as JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return part(f"data: {text}\n\n".encode())


END = part(b"")


def streamed(values: Iterable[Any]) -> bytes:
    """Write a whole stream: the given events, `[DONE]`, and the end."""
    return stream_head() + b"".join(event(value) for value in [*values, "[DONE]"]) + END


def text_chunks(*texts: str) -> list[dict[str, Any]]:
    """Write the chunks of a text answer, the last with its finish reason."""
    first = chunk({"role": "assistant", "content": ""})
    return [first, *(chunk({"content": text}) for text in texts), chunk({}, "stop")]
