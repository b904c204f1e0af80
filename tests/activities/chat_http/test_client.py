"""The client against a provider whose every byte the test writes."""

import asyncio
import dataclasses
import gzip
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from activities.chat_http.client import ChatClient, build_chat_http_client, check_chat_endpoint
from activities.chat_http.errors import BrokenAnswer, ChatError, NotReached, Refused
from activities.chat_http.types import ChatEndpoint, ChatLimits, ChatTimeouts
from tests.support.fake_provider import (
    END,
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
)
from tests.support.raw_server import Peer, RawRequest, Script, http

pytestmark = pytest.mark.anyio

CONTEXT = ssl.create_default_context()
BODY = b'{"model":"m","messages":[]}'
SECRET = "Bearer a-secret-of-the-provider"
SMALL = ChatLimits(max_answer_bytes=2000, max_event_bytes=500)


@asynccontextmanager
async def client_of(
    script: Script, timeouts: ChatTimeouts | None = None, limits: ChatLimits | None = None
) -> AsyncIterator[ChatClient]:
    async with fake_provider(script) as provider:
        endpoint = ChatEndpoint(
            provider.base_url,
            "loopback",
            {"Authorization": SECRET},
            timeouts or ChatTimeouts(),
            limits or ChatLimits(),
        )
        async with build_chat_http_client(endpoint, CONTEXT) as http_client:
            yield ChatClient(http_client, endpoint)


async def text_of(client: ChatClient) -> str:
    async with client.stream(BODY) as chunks:
        return "".join(
            [
                one.body["choices"][0]["delta"].get("content", "")
                async for one in chunks
                if one.body["choices"]
            ]
        )


async def failure(client: ChatClient, *, streams: bool = False) -> ChatError:
    with pytest.raises(ChatError) as raised:
        await (text_of(client) if streams else client.complete(BODY))
    return raised.value


async def test_the_body_goes_out_byte_for_byte_and_the_answer_comes_back_whole() -> None:
    seen: list[RawRequest] = []

    async def script(request: RawRequest, peer: Peer) -> None:
        seen.append(request)
        await peer.send(answer(completion()))

    async with client_of(script) as client:
        found = await client.complete(BODY)

    assert (seen[0].method, seen[0].path, seen[0].body) == ("POST", "/v1/chat/completions", BODY)
    assert found.body == completion()
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (7, 5)


async def test_a_stream_cut_at_any_byte_reads_the_same() -> None:
    values = text_chunks("Hel", "lo 世", "界")
    body = b"".join(f"data:{json.dumps(one)}\r\n\r\n".encode() for one in values)
    body = b"\xef\xbb\xbf: hello\n\n" + body + b"data: [DONE]\n\n"

    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(stream_head())
        await peer.send(*(part(body[position : position + 1]) for position in range(len(body))), END)

    async with client_of(script) as client:
        assert await text_of(client) == "Hello 世界"


async def test_what_follows_done_is_not_read() -> None:
    tail = streamed(text_chunks("a"))[: -len(END)] + event("{broken") + END
    async with client_of(answers(tail)) as client:
        assert await text_of(client) == "a"


@pytest.mark.parametrize("streams", [True, False])
async def test_an_answer_beyond_the_cap_is_cut_off(*, streams: bool) -> None:
    whole = answer(completion("x" * 3000))
    long = streamed([chunk({"content": "x" * 100}) for _ in range(30)])
    async with client_of(answers(long if streams else whole), limits=SMALL) as client:
        found = await failure(client, streams=streams)

    assert (type(found), found.code, found.details["max_bytes"]) == (BrokenAnswer, "answer_too_large", 2000)


async def test_an_event_beyond_the_cap_is_cut_off() -> None:
    async with client_of(answers(streamed([chunk({"content": "x" * 600})])), limits=SMALL) as client:
        found = await failure(client, streams=True)

    assert (found.code, found.details["max_bytes"]) == ("answer_too_large", 500)


async def test_a_small_compressed_answer_is_held_to_what_it_expands_to() -> None:
    packed = gzip.compress(b'{"choices":"' + b"x" * 100_000 + b'"}')
    script = answers(http(200, packed, "application/json", "Content-Encoding: gzip"))
    async with client_of(script, limits=SMALL) as client:
        assert (await failure(client)).code == "answer_too_large"


async def test_redirects_are_not_followed() -> None:
    async with client_of(answers(answer({}, 307, "Location: http://127.0.0.1:1/v1"))) as client:
        found = await failure(client)

    assert (type(found), found.code, found.http_status) == (BrokenAnswer, "unexpected_status", 307)


async def test_no_cookie_is_kept() -> None:
    seen: list[RawRequest] = []

    async def script(request: RawRequest, peer: Peer) -> None:
        seen.append(request)
        await peer.send(answer(completion(), 200, "Set-Cookie: a=1; Path=/"))

    async with client_of(script) as client:
        await client.complete(BODY)
        await client.complete(BODY)

    assert ["cookie" in request.headers for request in seen] == [False, False]


async def test_an_error_whose_body_never_comes_is_known_by_its_status() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 503 X\r\nContent-Length: 100\r\n\r\nhalf")
        peer.close()

    async with client_of(script) as client:
        found = await failure(client)

    assert (type(found), found.http_status) == (Refused, 503)


async def test_a_credential_that_a_provider_repeats_is_taken_out() -> None:
    told = f"Incorrect key {SECRET}, or a-secret-of-the-provider"
    async with client_of(answers(answer(error(told), 401))) as client:
        found = await failure(client)

    assert found.details["provider_message"] == "Incorrect key …, or …"


async def test_a_request_that_was_sent_may_have_run_and_one_that_was_not_did_not() -> None:
    async def reset(_request: RawRequest, peer: Peer) -> None:
        peer.reset()

    async with client_of(reset) as client:
        sent = await failure(client)
    async with fake_provider(reset) as provider:
        endpoint = ChatEndpoint(provider.base_url, "loopback")
    async with build_chat_http_client(endpoint, CONTEXT) as http_client:
        unsent = await failure(ChatClient(http_client, endpoint))

    assert isinstance(sent, NotReached)
    assert isinstance(unsent, NotReached)
    assert (sent.code, sent.may_have_run) == ("connection_lost", True)
    assert (unsent.code, unsent.may_have_run) == ("connect_failed", False)


async def test_time_runs_out_for_silence_and_for_the_whole() -> None:
    async def silent(_request: RawRequest, peer: Peer) -> None:
        await peer.send(stream_head(), event(chunk({"content": "a"})))
        await peer.wait_closed()

    async with client_of(silent, ChatTimeouts(idle_s=0.05)) as client:
        assert (await failure(client, streams=True)).code == "read_timeout"
    async with client_of(silent, ChatTimeouts(answer_s=0.05)) as client:
        assert (await failure(client, streams=True)).code == "answer_timeout"
    async with client_of(silent, ChatTimeouts(answer_s=0.05)) as client:
        assert (await failure(client)).code in ("answer_timeout", "read_timeout")


async def test_leaving_a_stream_early_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(stream_head(), event(chunk({"content": "a"})))
        await peer.wait_closed()
        closed.set()

    async with client_of(script) as client:
        async with client.stream(BODY) as chunks:
            await anext(chunks)
        async with asyncio.timeout(5):
            await closed.wait()


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": "http://a.example/v1", "network": "public"},
        {"base_url": "ftp://a.example/v1"},
        {"base_url": "https://user@a.example/v1"},
        {"base_url": "https:///v1"},
        {"headers": {"Content-Length": "1"}},
        {"headers": {"X": "line\nbreak"}},
    ],
)
async def test_an_endpoint_that_may_not_be_dialled_is_refused(changes: dict[str, object]) -> None:
    endpoint = dataclasses.replace(ChatEndpoint("https://a.example/v1", "loopback"), **changes)  # type: ignore[arg-type]
    with pytest.raises(NotReached) as raised:
        check_chat_endpoint(endpoint)

    assert (raised.value.may_have_run, raised.value.retryable) == (False, False)
