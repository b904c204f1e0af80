"""What is listed is what can be executed, in any world: the upstream's own counter is the judge."""

import random
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from models.database import WriteSession
from tests.api.bench import APIBench, execute, tool_call
from tests.support.world import ANY_OBJECT, ConnectionPlan, add_connection

TOOLS = ("echo", "fail", "add")
ARGUMENTS = {"add": {"a": 1, "b": 2}}
CLIENTS = ("one", "two")
WORLDS = 8

LISTS: Sequence[list[str] | None] = (None, [], ["*"], ["echo"], ["fail", "add"], ["unknown"])
HEADERS: Sequence[dict[str, str]] = (
    {},
    {"x-mcp-include-tools": ""},
    {"x-mcp-include-clients": "none"},
    {"x-mcp-include-clients": "one"},
    {"x-mcp-include-tools": "one-echo,two-*"},
    {"x-mcp-include-tools": "*", "x-mcp-include-clients": "two"},
    {"x-mcp-include-tools": "one-fail", "x-mcp-include-clients": "*"},
)

pytestmark = pytest.mark.anyio


async def calls_received(mcp_url: str) -> int:
    async with httpx.AsyncClient() as http:
        counters: dict[str, int] = (await http.get(mcp_url.replace("/mcp", "/counters"))).json()
    return counters.get("tools/call", 0)


async def test_what_is_listed_is_what_reaches_the_server(live_api: APIBench, mcp_url: str) -> None:
    dice = random.Random(20_251_130)
    agent = await live_api.agent()

    def connect(session: WriteSession) -> None:
        for name in CLIENTS:
            add_connection(session, ConnectionPlan(name, tools=dict.fromkeys(TOOLS, ANY_OBJECT), url=mcp_url))

    await live_api.database.write(connect)
    seen: set[bool] = set()
    received = await calls_received(mcp_url)
    for _ in range(WORLDS):
        headers = await _another_world(live_api, agent.key_id, dice)
        response = await live_api.http.get("/v1/mcp/tools", headers={**agent.headers, **headers})
        listed = {tool["function"]["name"] for tool in response.json()["tools"]}
        for name in (f"{client}-{tool}" for client in CLIENTS for tool in TOOLS):
            arguments = ARGUMENTS.get(name.split("-")[1], {})
            answer = await execute(live_api, agent, tool_call(name, arguments), headers)
            before, received = received, await calls_received(mcp_url)
            moved = received - before
            assert moved == (1 if name in listed else 0), (name, headers, answer.text)
            assert answer.status_code == (200 if name in listed else 403), answer.text
            seen.add(name in listed)
    assert seen == {True, False}


async def _another_world(api: APIBench, key_id: str, dice: random.Random) -> dict[str, str]:
    """Set lists, the key's configuration and its mode anew, through the control plane; return the headers."""
    for client in CLIENTS:
        settings = {"tools_to_execute": dice.choice(LISTS), "open_to_all_keys": dice.random() < 0.5}
        await api.operator("PATCH", f"/api/v1/mcp/clients/{client}", json=settings)
    mode = dice.choice(["override", "narrow"])
    await api.operator("PATCH", f"/api/v1/keys/{key_id}", json={"request_filter": mode})
    path = f"/api/v1/mcp/keys/{key_id}/tools"
    if dice.random() < 0.4:
        etag = (await api.operator("GET", path)).headers["etag"]
        await api.operator("DELETE", path, headers={"if-match": etag})
    else:
        configs: list[Any] = [
            {"client": client, "tools_to_execute": dice.choice(LISTS)}
            for client in CLIENTS
            if dice.random() < 0.7
        ]
        await api.operator("PUT", path, json={"mcp_configs": configs})
    return dict(dice.choice(HEADERS))
