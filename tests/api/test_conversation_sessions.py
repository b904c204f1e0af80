"""What shares an MCP session over HTTP: each conversation has its own where the connection says so."""

from typing import Any

import pytest

from tests.api.bench import APIBench, start_round, tool_call
from tests.api.places import agent_of, statuses
from tests.support.core_matrix_process import core_matrix_server_process
from tests.support.programs import definition, mcp_tool, register

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("session_scope", "initializes"),
    [("conversation", 2), ("key", 1), ("binding", 4)],
)
async def test_two_conversations_share_a_session_only_where_the_connection_says_so(
    session_scope: str, initializes: int, live_api: APIBench
) -> None:
    async with core_matrix_server_process() as server:
        body = {
            "name": "fake",
            "url": server.url,
            "network": "loopback",
            "tools_to_execute": ["echo"],
            "session_scope": session_scope,
            "protocol_version": "2024-11-05",
        }
        made = await live_api.operator("POST", "/api/v1/mcp/clients", json=body)
        assert made.json()["health"] == "healthy", made.text
        declared = definition(tool_catalog=[mcp_tool("echo", "fake", "echo")])
        program = await register(live_api, declared, grants=["fake"])
        agent = await agent_of(program)
        before = len(await server.sessions())
        call = tool_call("echo", {"message": "hello"})

        for place in [{"conversation_id": await program.conversation()} for _ in range(2)]:
            for _ in range(2):
                assert await statuses(live_api, agent, [call], **place) == ["succeeded"]

        assert len(await server.sessions()) - before == initializes


async def test_a_round_without_a_conversation_shares_its_keys_session(live_api: APIBench) -> None:
    async with core_matrix_server_process() as server:
        body: dict[str, Any] = {
            "name": "fake",
            "url": server.url,
            "network": "loopback",
            "tools_to_execute": ["echo"],
            "session_scope": "conversation",
        }
        await live_api.operator("POST", "/api/v1/mcp/clients", json=body)
        agent = await live_api.agent()
        before = len(await server.sessions())

        for _ in range(2):
            assert await statuses(live_api, agent, [tool_call("fake-echo", {"message": "x"})]) == [
                "succeeded"
            ]

        assert len(await server.sessions()) - before == 1


async def test_a_binding_shows_its_session_and_never_its_id(live_api: APIBench) -> None:
    async with core_matrix_server_process() as server:
        body: dict[str, Any] = {
            "name": "fake",
            "url": server.url,
            "network": "loopback",
            "tools_to_execute": ["echo"],
            "session_scope": "binding",
            "on_session_loss": "report",
            "protocol_version": "2024-11-05",
            "event_stream": "always",
        }
        await live_api.operator("POST", "/api/v1/mcp/clients", json=body)
        declared = definition(tool_catalog=[mcp_tool("remote_echo", "fake", "echo")])
        program = await register(live_api, declared, grants=["fake"])
        agent = await agent_of(program)
        task_id = (await program.new_task(await program.conversation()))["agent_task_run_id"]
        call = [tool_call("remote_echo", {"message": "hello"})]

        async def shown() -> dict[str, Any]:
            task = (await program.get(f"tasks/{task_id}")).json()
            [binding] = [row for row in task["bindings"] if row["tool_name"] == "remote_echo"]
            return dict(binding["binding_payload"])

        before = await shown()
        assert await statuses(live_api, agent, call, task_id=task_id) == ["succeeded"]
        opened = (await shown())["mcp"]
        await server.arm("session_not_found", 1)
        lost = await start_round(live_api, agent, call, task_id=task_id)
        closed = (await shown())["mcp"]
        assert await statuses(live_api, agent, call, task_id=task_id) == ["succeeded"]
        again = (await shown())["mcp"]
        operators = await live_api.operator("GET", f"/api/v1/rounds/{lost.json()['round_id']}")
        issued = await server.sessions()

    assert before == {}
    assert {name: opened[name] for name in ("transport_kind", "server_url", "tool_name")} == {
        "transport_kind": "streamable_http",
        "server_url": server.url,
        "tool_name": "echo",
    }
    assert (opened["session_state"], opened["session_id"]) == ("open", "********")
    assert opened["initialize_result"]["protocolVersion"] == "2024-11-05"
    assert (closed["session_state"], closed["session_id"]) == ("closed", None)
    assert (again["session_state"], again["session_id"]) == ("open", "********")
    [binding] = operators.json()["bindings"]
    assert binding["binding_payload"]["mcp"]["session_state"] == "open"
    assert operators.json()["task_id"] == task_id
    assert not any(name in str(text) for name in issued for text in (opened, closed, again, operators.text))
