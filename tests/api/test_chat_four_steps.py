"""The gateway document's four steps as written, with the official client and with curl.

Everything is real but the model: an MCP server process, the workflow engine, a worker, the API on a socket,
and a provider that says what the document's model says.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from tests.api.bench import Agent, APIBench
from tests.api.chat_bench import MODEL, register
from tests.support.fake_provider import (
    FakeProvider,
    answer,
    chunk,
    completion,
    error,
    event,
    fake_provider,
    stream_head,
    streamed,
    text_chunks,
    tool_call,
)
from tests.support.live_server import live_server
from tests.support.raw_server import Peer, RawRequest

pytestmark = pytest.mark.anyio

QUESTION: list[Any] = [{"role": "user", "content": "Say hello through the tool."}]
ARGUMENTS = '{"text": "你好"}'
SUGGESTED = tool_call("business_search-echo", ARGUMENTS, "call_of_the_model")


async def model(request: RawRequest, peer: Peer) -> None:
    """Suggest a call of the tool; once its result is there, answer with it."""
    asked = json.loads(request.body)
    last = asked["messages"][-1]
    if last["role"] == "tool":
        content = f"It said: {last['content']}"
        await peer.send(
            streamed(text_chunks(content)) if asked.get("stream") else answer(completion(content))
        )
    elif asked.get("stream"):
        first = {
            "index": 0,
            **SUGGESTED,
            "function": {"name": SUGGESTED["function"]["name"], "arguments": ""},
        }
        pieces = [{"index": 0, "function": {"arguments": letter}} for letter in ARGUMENTS]
        deltas = [chunk({"role": "assistant", "content": None}), chunk({"tool_calls": [first]})]
        deltas += [chunk({"tool_calls": [piece]}) for piece in pieces]
        await peer.send(streamed([*deltas, chunk({}, "tool_calls")]))
    else:
        await peer.send(answer(completion(None, [SUGGESTED])))


@dataclass(frozen=True)
class Installation:
    """A running gateway with a tool server, a provider and a key."""

    url: str
    agent: Agent
    provider: FakeProvider
    mcp_url: str

    async def executions(self) -> int:
        """Return how often the tool ran, by its server's own count."""
        async with httpx.AsyncClient(trust_env=False) as http:
            counters = (await http.get(self.mcp_url.removesuffix("/mcp") + "/counters")).json()
        return int(counters.get("tool:echo", 0))


@asynccontextmanager
async def installation(api: APIBench, mcp_url: str) -> AsyncIterator[Installation]:
    connection = {
        "name": "business_search",
        "url": mcp_url,
        "network": "loopback",
        "tools_to_execute": ["*"],
    }
    made = await api.operator("POST", "/api/v1/mcp/clients", json=connection)
    assert made.json()["health"] == "healthy", made.text
    agent = await api.agent()
    async with fake_provider(model) as provider, live_server(api.app) as url:
        await register(api, provider.base_url)
        yield Installation(url, agent, provider, mcp_url)


async def test_the_four_steps_with_the_official_client(live_api: APIBench, mcp_url: str) -> None:
    async with (
        installation(live_api, mcp_url) as place,
        openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key=place.agent.secret, max_retries=0) as client,
    ):
        before = await place.executions()
        first = await client.chat.completions.create(model=MODEL, messages=QUESTION)
        assert first.choices[0].finish_reason == "tool_calls"
        message = first.choices[0].message
        assert message.tool_calls is not None
        [suggestion] = message.tool_calls
        assert isinstance(suggestion, ChatCompletionMessageFunctionToolCall)
        assert json.loads(suggestion.function.arguments) == {"text": "你好"}
        assert await place.executions() == before, "a suggestion is not executed"

        result = await client.post("/mcp/tool/execute", body=suggestion.model_dump(), cast_to=object)
        assert result == {"role": "tool", "content": "你好", "tool_call_id": "call_of_the_model"}
        assert await place.executions() == before + 1

        history: list[Any] = [*QUESTION, message.model_dump(exclude_none=True), result]
        final = await client.chat.completions.create(model=MODEL, messages=history)

    assert final.choices[0].message.content == "It said: 你好"
    assert final.model == MODEL
    assert final.usage is not None
    assert final.usage.total_tokens == 12
    assert place.provider.bodies[1]["messages"] == history
    offered = [tool["function"]["name"] for tool in place.provider.bodies[0]["tools"]]
    assert "business_search-echo" in offered
    assert offered == sorted(offered)


async def test_the_four_steps_streamed_with_the_official_client(live_api: APIBench, mcp_url: str) -> None:
    async with (
        installation(live_api, mcp_url) as place,
        openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key=place.agent.secret, max_retries=0) as client,
    ):
        async with client.chat.completions.stream(model=MODEL, messages=QUESTION) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        assert message.tool_calls is not None
        [suggestion] = message.tool_calls
        assert (suggestion.id, suggestion.function.arguments) == ("call_of_the_model", ARGUMENTS)
        body = {
            "id": suggestion.id,
            "type": "function",
            "function": {"name": suggestion.function.name, "arguments": suggestion.function.arguments},
        }
        result = await client.post("/mcp/tool/execute", body=body, cast_to=object)
        history: list[Any] = [
            *QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [body]},
            result,
        ]
        chunks = await client.chat.completions.create(model=MODEL, messages=history, stream=True)
        text = "".join([one.choices[0].delta.content or "" async for one in chunks])

    assert text == "It said: 你好"


async def curl(url: str, secret: str, body: Any, *more: str) -> tuple[int, str]:
    """Post as the document does; the status and the body."""
    command = [
        "curl",
        "--silent",
        "--noproxy",
        "*",
        "--max-time",
        "20",
        "--write-out",
        "\n%{http_code}",
        url,
        "-H",
        "Content-Type: application/json",
        "-H",
        f"Authorization: Bearer {secret}",
        *more,
        "-d",
        json.dumps(body, ensure_ascii=False),
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    text, _, status = output.decode().rpartition("\n")
    return int(status), text


async def test_the_four_steps_with_curl(live_api: APIBench, mcp_url: str) -> None:
    async with installation(live_api, mcp_url) as place:
        completions, secret = f"{place.url}/v1/chat/completions", place.agent.secret
        status, text = await curl(completions, secret, {"model": MODEL, "messages": QUESTION})
        assert status == 200
        [choice] = json.loads(text)["choices"]
        assert (choice["index"], choice["finish_reason"]) == (0, "tool_calls")
        [suggestion] = choice["message"]["tool_calls"]
        assert suggestion == SUGGESTED

        status, text = await curl(f"{place.url}/v1/mcp/tool/execute", secret, suggestion)
        result = json.loads(text)
        assert status == 200
        assert result == {"role": "tool", "content": "你好", "tool_call_id": "call_of_the_model"}

        history = [*QUESTION, choice["message"], result]
        status, text = await curl(completions, secret, {"model": MODEL, "messages": history})
        assert json.loads(text)["choices"][0]["message"]["content"] == "It said: 你好"

        narrowed = ("-H", "x-mcp-include-tools: business_search-add,knowledge_base-*")
        await curl(completions, secret, {"model": MODEL, "messages": QUESTION}, *narrowed)
        await curl(
            completions,
            secret,
            {"model": MODEL, "messages": QUESTION},
            "-H",
            "x-mcp-include-clients: business_search,knowledge_base",
        )
        offered = [
            [tool["function"]["name"] for tool in body["tools"]] for body in place.provider.bodies[-2:]
        ]

    assert offered[0] == ["business_search-add"]
    assert len(offered[1]) > 5


async def test_curl_sees_a_stream_as_the_provider_wrote_it(live_api: APIBench, mcp_url: str) -> None:
    async with installation(live_api, mcp_url) as place:
        body = {"model": MODEL, "messages": [{"role": "tool", "content": "x"}], "stream": True}
        status, text = await curl(f"{place.url}/v1/chat/completions", place.agent.secret, body, "--no-buffer")

    assert status == 200
    assert text.startswith("data: {")
    assert text.rstrip().endswith("data: [DONE]")


async def test_refusals_reach_the_official_client_as_its_own_errors(api: APIBench) -> None:
    agent = await api.agent()
    broken = stream_head() + event(chunk({"content": "half"})) + event(error("busy", "server_error"))

    async def script(request: RawRequest, peer: Peer) -> None:
        if json.loads(request.body).get("stream"):
            await peer.send(broken)
            peer.close()
        else:
            await peer.send(answer(error("slow", "rate_limit_exceeded"), 429))

    async with (
        fake_provider(script) as provider,
        live_server(api.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=agent.secret, max_retries=0) as client,
    ):
        await register(api, provider.base_url)
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="other", messages=QUESTION)
        with pytest.raises(openai.RateLimitError) as limited:
            await client.chat.completions.create(model=MODEL, messages=QUESTION)
        with pytest.raises(openai.APIError, match="failed") as half:
            async for _ in await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True):
                pass
        assert [one.id async for one in await client.models.list()] == [MODEL]

    assert unknown.value.code == "model_not_found"
    assert limited.value.code == "provider_rate_limited"
    assert half.value.code == "provider_overloaded"
