"""The official Python client uses the gateway as any MCP server, in both eras and with hooks of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.api.bench import Agent
from tests.gateway.stage import Stage

pytestmark = pytest.mark.anyio

Mode = Literal["auto", "legacy"]
MODES: tuple[Mode, ...] = ("auto", "legacy")


@asynccontextmanager
async def connected(gateway: Stage, agent: Agent, mode: Mode) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers=agent.headers, timeout=20) as http:
        transport = streamable_http_client(f"{gateway.url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


@pytest.fixture
async def agent(gateway: Stage) -> Agent:
    clients = (await gateway.operator("GET", "/api/v1/mcp/clients")).json()["items"]
    if not clients:
        await gateway.connect("files", ["read", "write"])
    return await gateway.key(grants={"files": ["*"]})


@pytest.mark.parametrize("mode", MODES)
async def test_the_client_lists_and_calls_what_the_key_may_use(
    gateway: Stage, agent: Agent, mode: Mode
) -> None:
    async with connected(gateway, agent, mode) as client:
        version = client.protocol_version
        listed = await client.list_tools()
        called = await client.call_tool("files-read", {"nonce": mode})
        failed = await client.call_tool("files-write", {"fail": True})

    assert version == ("2026-07-28" if mode == "auto" else "2025-11-25")
    assert {tool.name for tool in listed.tools} == {"files-read", "files-write"}
    content: Any = called.content[0]
    assert json.loads(content.text) == {"tool": "read", "arguments": {"nonce": mode}}
    assert (called.is_error, failed.is_error) == (False, True)
    assert gateway.probe.count(mode) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_a_hidden_tool_is_an_error_and_reaches_nobody(gateway: Stage, agent: Agent, mode: Mode) -> None:
    async with connected(gateway, agent, mode) as client:
        with pytest.raises(MCPError) as raised:
            await client.call_tool("files-delete", {"nonce": "hidden"})
    assert raised.value.error.code == -32602
    assert gateway.probe.count("hidden") == 0


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_takes_long_comes_as_a_stream(gateway: Stage, agent: Agent, mode: Mode) -> None:
    async with connected(gateway, agent, mode) as client:
        calling = asyncio.create_task(client.call_tool("files-read", {"nonce": f"long {mode}", "hold": True}))
        async with asyncio.timeout(5):
            await gateway.probe.holding.wait()
        # Longer than an answer is held back as JSON, so that what follows is an event stream.
        await asyncio.wait({calling}, timeout=1.5)
        gateway.probe.go.set()
        async with asyncio.timeout(5):
            result = await calling
    assert result.is_error is False
    assert gateway.probe.count(f"long {mode}") == 1


@pytest.mark.parametrize("mode", MODES)
async def test_a_caller_that_gives_up_stops_the_call_at_the_server(
    gateway: Stage, agent: Agent, mode: Mode
) -> None:
    async with connected(gateway, agent, mode) as client:
        calling = asyncio.create_task(client.call_tool("files-read", {"nonce": f"gone {mode}", "hold": True}))
        async with asyncio.timeout(5):
            await gateway.probe.holding.wait()
        calling.cancel()
        async with asyncio.timeout(5):
            await gateway.probe.stopped.wait()
    assert gateway.probe.given_up == 1


async def test_a_wrong_key_is_no_session(gateway: Stage) -> None:
    stranger = Agent("nobody", "sgk_nobody")
    with pytest.raises(Exception):  # noqa: B017, PT011 - the classes are the client's own, in groups.
        async with connected(gateway, stranger, "legacy") as client:
            await client.list_tools()
