"""Streamed chat over a real socket: every delta, silence, errors on the way, and callers who go away."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from api.app import create_app
from models.audit import AuditEvent, AuditKind
from tests.api.bench import Agent, APIBench, error_of
from tests.api.chat_bench import HELLO, MODEL, register
from tests.support.fake_provider import (
    END,
    FakeProvider,
    answer,
    answers,
    chunk,
    completion,
    error,
    event,
    fake_provider,
    part,
    stream_head,
    streamed,
    text_chunks,
    usage,
)
from tests.support.live_server import live_server
from tests.support.raw_server import Peer, RawRequest, Script
from tests.support.world import ConnectionPlan

pytestmark = pytest.mark.anyio

WAIT_S = 5.0


@dataclass(frozen=True)
class Live:
    """An API on a socket, a key and a provider."""

    api: APIBench
    agent: Agent
    provider: FakeProvider
    http: httpx.AsyncClient

    def ask(self, **fields: Any) -> Any:
        """Open a streamed request."""
        body = {"model": MODEL, "messages": HELLO, "stream": True, **fields}
        return self.http.stream("POST", "/v1/chat/completions", headers=self.agent.headers, json=body)

    async def whole(self, **fields: Any) -> tuple[httpx.Response, list[str]]:
        """Read a whole stream; the data of its events."""
        async with self.ask(**fields) as response:
            text = (await response.aread()).decode()
        return response, [line.removeprefix("data: ") for line in text.split("\n\n") if line]

    async def settled(self) -> AuditEvent:
        """Return what was written of the one request, once it has been."""
        query = select(AuditEvent).where(AuditEvent.kind == AuditKind.CHAT_SETTLED)
        async with asyncio.timeout(WAIT_S):
            while True:
                rows = await self.api.database.read(lambda session: session.scalars(query).all())
                if rows:
                    [row] = rows
                    return row


@asynccontextmanager
async def live(
    api: APIBench, script: Script, keep_alive_s: float = 15.0, **settings: Any
) -> AsyncIterator[Live]:
    agent = await api.agent(ConnectionPlan())
    deps = dataclasses.replace(api.deps, chat_keep_alive_s=keep_alive_s)
    async with fake_provider(script) as provider:
        await register(api, provider.base_url, **settings)
        try:
            async with (
                live_server(create_app(deps)) as url,
                httpx.AsyncClient(base_url=url, timeout=WAIT_S, trust_env=False) as http,
            ):
                yield Live(api, agent, provider, http)
        finally:
            await deps.aclose()


def renamed(values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**value, "model": MODEL} for value in values]


async def test_a_stream_passes_through_under_the_neutral_name(api: APIBench) -> None:
    chunks = text_chunks("Hel", "lo", " 世界", "\ud83d", "\ude00")
    async with live(api, answers(streamed(chunks))) as bench:
        response, events = await bench.whole()

    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-sluicegate-tools"] == "2"
    assert "content-length" not in response.headers
    assert [json.loads(data) for data in events[:-1]] == renamed(chunks)
    assert events[-1] == "[DONE]"


async def test_usage_is_metered_and_shown_only_to_those_who_asked(api: APIBench) -> None:
    last = chunk(None, usage=usage())
    chunks = [*({**one, "usage": None} for one in text_chunks("Hi")), last]
    async with live(api, answers(streamed(chunks))) as bench:
        _, quiet = await bench.whole()
        row = await bench.settled()
        _, asked = await bench.whole(stream_options={"include_usage": True})

    assert [request["stream_options"] for request in bench.provider.bodies] == [{"include_usage": True}] * 2
    assert [json.loads(data) for data in quiet[:-1]] == renamed(text_chunks("Hi"))
    assert [json.loads(data) for data in asked[:-1]] == renamed(chunks)
    assert (row.data["prompt_tokens"], row.data["completion_tokens"], row.data["streamed"]) == (7, 5, True)


async def test_a_provider_that_knows_no_stream_options_gets_none(api: APIBench) -> None:
    async with live(api, answers(streamed(text_chunks("Hi"))), reports_stream_usage=False) as bench:
        await bench.whole()

    assert "stream_options" not in bench.provider.bodies[0]


async def test_tool_calls_have_an_index_in_every_delta_and_their_id_once(api: APIBench) -> None:
    def delta(**call: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [call]})

    chunks = [
        chunk({"role": "assistant", "content": None}),
        delta(id="a", type="function", function={"name": "files-read", "arguments": ""}),
        delta(id="a", function={"name": "files-read", "arguments": '{"x":'}),
        delta(function={"arguments": "1}"}),
        delta(id="b", type="function", function={"name": "files-write", "arguments": {"y": 2}}),
        chunk({}, "tool_calls"),
    ]
    async with live(api, answers(streamed(chunks))) as bench:
        _, events = await bench.whole()

    calls = [
        call
        for data in events[:-1]
        for choice in json.loads(data)["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    assert calls == [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "files-read", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"x":'}},
        {"index": 0, "function": {"arguments": "1}"}},
        {
            "index": 1,
            "id": "b",
            "type": "function",
            "function": {"name": "files-write", "arguments": '{"y": 2}'},
        },
    ]


async def test_each_token_comes_before_the_next_is_written(api: APIBench) -> None:
    go_on = asyncio.Event()

    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(stream_head(), event(chunk({"content": "first"})))
        await go_on.wait()
        await peer.send(event(chunk({"content": "second"}, "stop")), event("[DONE]"), END)

    async with live(api, script) as bench, bench.ask() as response:
        parts = response.aiter_bytes()
        assert b"first" in await anext(parts)
        go_on.set()
        assert b"second" in b"".join([piece async for piece in parts])


async def test_silence_is_filled_with_comments_before_and_between_tokens(api: APIBench) -> None:
    heard = asyncio.Event()

    async def script(_request: RawRequest, peer: Peer) -> None:
        await heard.wait()
        heard.clear()
        await peer.send(stream_head(), event(chunk({"content": "first"})))
        await heard.wait()
        await peer.send(event(chunk({"content": "last"}, "stop")), event("[DONE]"), END)

    seen: list[bytes] = []
    async with live(api, script, keep_alive_s=0.02) as bench, bench.ask() as response:
        async for piece in response.aiter_bytes():
            seen.append(piece)
            if piece.startswith(b": keep-alive"):
                heard.set()

    text = b"".join(seen)
    assert text.startswith(b": keep-alive\n\n")
    assert b"first" in text
    assert text.index(b"first") < text.rindex(b": keep-alive\n\n") < text.index(b"last")
    assert text.endswith(b"data: [DONE]\n\n")


async def test_an_error_in_the_stream_is_an_event_in_openais_form_and_never_done(api: APIBench) -> None:
    broken = stream_head() + event(chunk({"content": "half"})) + event(error("busy", "server_error")) + END
    async with live(api, answers(broken)) as bench:
        response, events = await bench.whole()
        row = await bench.settled()

    shown = json.loads(events[-1])["error"]
    assert len(events) == 2
    assert (shown["code"], shown["type"], shown["param"]) == ("provider_overloaded",) * 2 + (None,)
    assert shown["retryable"] is True
    assert shown["request_id"] == response.headers["x-request-id"]
    assert row.code == "provider_overloaded"


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        (END, "invalid_provider_response"),
        (b"", "provider_unreachable"),
        (event("{not json"), "invalid_provider_response"),
        (event("[]"), "invalid_provider_response"),
        (event(error("slow down", "rate_limit_exceeded")), "provider_rate_limited"),
    ],
    ids=["ends early", "connection lost", "not JSON", "not an object", "rate limit"],
)
async def test_half_an_answer_is_never_taken_for_a_whole_one(api: APIBench, tail: bytes, code: str) -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(stream_head() + event(chunk({"content": "half"})) + tail)
        peer.close()

    async with live(api, script) as bench:
        _, events = await bench.whole()

    assert json.loads(events[0])["choices"][0]["delta"] == {"content": "half"}
    assert json.loads(events[-1])["error"]["code"] == code


async def test_an_answer_that_has_its_finish_reason_needs_no_last_event(api: APIBench) -> None:
    whole = stream_head() + event(chunk({"content": "all"}, "stop")) + END
    async with live(api, answers(whole)) as bench:
        _, events = await bench.whole()

    assert events[-1] == "[DONE]"


async def test_a_refusal_before_the_stream_has_its_own_status(api: APIBench) -> None:
    refused = answer(error("slow down", "rate_limit_exceeded"), 429, "Retry-After: 7")
    async with live(api, answers(refused)) as bench:
        async with bench.ask() as response:
            await response.aread()
        row = await bench.settled()

    assert (response.status_code, error_of(response)["code"]) == (429, "provider_rate_limited")
    assert response.headers["retry-after"] == "7"
    assert row.code == "provider_rate_limited"


async def test_a_refusal_after_the_first_comment_is_an_error_event(api: APIBench) -> None:
    go_on = asyncio.Event()

    async def script(_request: RawRequest, peer: Peer) -> None:
        await go_on.wait()
        await peer.send(answer(error("down"), 503))

    async with live(api, script, keep_alive_s=0.02) as bench, bench.ask() as response:
        parts = response.aiter_bytes()
        assert (await anext(parts)).startswith(b": keep-alive")
        go_on.set()
        rest = b"".join([piece async for piece in parts])

    assert response.status_code == 200
    assert b'"code": "provider_overloaded"' in rest
    assert b"[DONE]" not in rest


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (answer(completion()), 502, "invalid_provider_response"),
        (answer(error("no")), 503, "provider_overloaded"),
        (answer(error("no", "insufficient_quota")), 502, "provider_credits_exhausted"),
    ],
    ids=["answer", "error", "quota"],
)
async def test_a_provider_that_does_not_stream_is_told_apart(
    api: APIBench, body: bytes, status: int, code: str
) -> None:
    async with live(api, answers(body)) as bench, bench.ask() as response:
        await response.aread()

    assert (response.status_code, error_of(response)["code"]) == (status, code)


@pytest.mark.parametrize("first", ["a token", ""], ids=["while it streams", "before it began"])
async def test_a_caller_that_goes_away_ends_the_request_to_the_provider(api: APIBench, first: str) -> None:
    closed, asked = asyncio.Event(), asyncio.Event()

    async def script(_request: RawRequest, peer: Peer) -> None:
        asked.set()
        if first:
            await peer.send(stream_head(), event(chunk({"content": first}, usage=usage())))
        await peer.wait_closed()
        closed.set()

    async with live(api, script) as bench:
        if first:
            async with bench.ask() as response:
                await anext(response.aiter_bytes())
        else:
            await _abandon(bench, asked)
        async with asyncio.timeout(WAIT_S):
            await closed.wait()
        row = await bench.settled()

    assert row.code == "canceled"
    assert ("prompt_tokens" in row.data) == bool(first)


async def test_a_caller_of_a_whole_answer_that_goes_away_ends_the_request(api: APIBench) -> None:
    closed, asked = asyncio.Event(), asyncio.Event()

    async def script(_request: RawRequest, peer: Peer) -> None:
        asked.set()
        await peer.wait_closed()
        closed.set()

    async with live(api, script) as bench:
        await _abandon(bench, asked, stream=False)
        async with asyncio.timeout(WAIT_S):
            await closed.wait()
        row = await bench.settled()

    assert row.code == "canceled"


async def _abandon(bench: Live, asked: asyncio.Event, **fields: Any) -> None:
    """Send a request and close its connection once the provider has been asked."""

    async def request() -> None:
        async with bench.ask(**fields) as response:
            await response.aread()

    sending = asyncio.create_task(request())
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def test_a_stream_that_falls_silent_is_given_up(api: APIBench) -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(stream_head(), event(chunk({"content": "half"})))
        await peer.wait_closed()

    async with live(api, script, idle_timeout_s=0.1) as bench:
        _, events = await bench.whole()

    shown = json.loads(events[-1])["error"]
    assert (shown["code"], shown["details"]["reason"]) == ("provider_unreachable", "read_timeout")


async def test_an_answer_may_not_take_longer_than_the_provider_is_given(api: APIBench) -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(stream_head())
        while True:
            await peer.send(part(b": still here\n\n"))
            await asyncio.sleep(0.01)

    async with live(api, script, answer_timeout_s=0.2) as bench:
        _, events = await bench.whole()

    shown = json.loads(events[-1])["error"]
    assert (shown["code"], shown["details"]["reason"]) == ("provider_unreachable", "answer_timeout")


async def test_a_connection_is_used_again_after_a_whole_stream(api: APIBench) -> None:
    async with live(api, answers(streamed(text_chunks("Hi")))) as bench:
        for _ in range(3):
            await bench.whole()
            await bench.api.database.read(lambda _session: None)

    assert bench.provider.server.connections == 1
