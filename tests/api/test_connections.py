"""Connections on the control plane, with the real worker and a real MCP server."""

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.bench import APIBench, api_bench, error_of, execute, make_settings, tool_call
from tests.support.world import ConnectionPlan

pytestmark = pytest.mark.anyio

CLIENTS = "/api/v1/mcp/clients"


async def register(api: APIBench, url: str, **more: Any) -> httpx.Response:
    body = {"name": "lab", "url": url, "network": "loopback", "tools_to_execute": ["*"], **more}
    return await api.operator("POST", CLIENTS, json=body)


@pytest.fixture
def dead_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"


async def test_a_server_is_verified_and_its_tools_are_called(live_api: APIBench, mcp_url: str) -> None:
    agent = await live_api.agent()

    created = await register(live_api, mcp_url)
    called = await execute(live_api, agent, tool_call("lab-echo", '{"text": "hello"}'))

    body = created.json()
    assert (created.status_code, body["health"], body["sync"]["state"]) == (201, "healthy", "finished")
    assert created.headers["location"] == f"{CLIENTS}/lab"
    assert body["tool_count"] == body["sync"]["tools"] == 10
    assert "lab-echo" in body["sync"]["added"]
    assert (called.status_code, called.json()["content"]) == (200, "hello")


async def test_a_server_that_cannot_be_reached_stays_registered_as_failing(
    live_api: APIBench, dead_url: str
) -> None:
    created = await register(live_api, dead_url)

    body = created.json()
    assert (created.status_code, body["health"]) == (201, "failing")
    assert (body["sync"]["ok"], body["last_failure"]["stage"]) == (False, "connect")
    assert (await live_api.operator("GET", f"{CLIENTS}/lab")).json()["health"] == "failing"


async def test_a_failed_refresh_keeps_the_last_good_tools(
    live_api: APIBench, mcp_url: str, dead_url: str
) -> None:
    await register(live_api, mcp_url)

    moved = await live_api.operator("PATCH", f"{CLIENTS}/lab", json={"url": dead_url})
    back = await live_api.operator("PATCH", f"{CLIENTS}/lab", json={"url": mcp_url})
    refreshed = await live_api.operator("POST", f"{CLIENTS}/lab/refresh")

    assert (moved.json()["health"], moved.json()["tool_count"]) == ("failing", 10)
    assert moved.json()["sync"]["failure"]["stage"] == "connect"
    assert (back.json()["health"], back.json()["last_failure"]) == ("healthy", None)
    assert (refreshed.status_code, refreshed.json()["sync"]["added"]) == (200, [])


async def test_without_an_engine_a_server_is_registered_and_not_contacted(api: APIBench) -> None:
    created = await register(api, "http://127.0.0.1:9/mcp")
    refreshed = await api.operator("POST", f"{CLIENTS}/lab/refresh")

    assert (created.status_code, created.json()["health"]) == (201, "unknown")
    assert created.json()["sync"]["state"] == "not_started"
    assert (refreshed.status_code, error_of(refreshed)["code"]) == (503, "engine_unavailable")


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"name": "Lab"}, 400, "invalid_request"),
        ({"name": "a-b"}, 400, "invalid_request"),
        ({"name": "none"}, 400, "invalid_request"),
        ({"name": "core_matrix_x"}, 400, "invalid_request"),
        ({"name": "subagent_spawn"}, 400, "invalid_request"),
        ({"name": "a\x00"}, 400, "invalid_request"),
        ({"url": "ftp://host/mcp"}, 400, "invalid_request"),
        ({"url": "http:///mcp"}, 400, "invalid_request"),
        ({"url": "http://user:word@host/mcp"}, 400, "invalid_request"),
        ({"url": "http://host/mcp#part"}, 400, "invalid_request"),
        ({"url": "http://host:99999/mcp"}, 400, "invalid_request"),
        ({"url": "http://[::1/mcp"}, 400, "invalid_request"),
        ({"url": "http://ho st/mcp"}, 400, "invalid_request"),
        ({"url": None}, 400, "invalid_request"),
        ({"network": "any"}, 400, "invalid_request"),
        ({"tool_timeout_s": 0}, 400, "invalid_request"),
        ({"tool_timeout_s": 1e9}, 400, "invalid_request"),
        ({"protocol_version": "latest"}, 400, "invalid_request"),
        ({"refusal_statuses": [200]}, 400, "invalid_request"),
        ({"unknown": 1}, 400, "invalid_request"),
        ({"tools_to_execute": ["re*"]}, 422, "invalid_filter"),
        ({"tools_to_execute": "read"}, 422, "invalid_filter"),
    ],
)
async def test_a_connection_that_cannot_be_meant_is_refused(
    api: APIBench, change: dict[str, Any], status: int, code: str
) -> None:
    response = await register(api, **{"url": "http://127.0.0.1:9/mcp", **change})

    assert (response.status_code, error_of(response)["code"]) == (status, code)
    assert (await api.operator("GET", CLIENTS)).json()["items"] == []


async def test_a_name_is_taken_once(api: APIBench) -> None:
    await register(api, "http://127.0.0.1:9/mcp")

    again = await register(api, "http://127.0.0.1:9/mcp")

    assert (again.status_code, error_of(again)["code"]) == (409, "conflict")


async def test_by_default_a_connection_admits_nothing(api: APIBench) -> None:
    created = await api.operator("POST", CLIENTS, json={"name": "lab", "url": "https://example.org/mcp"})

    body = created.json()
    assert (body["tools_to_execute"], body["network"], body["open_to_all_keys"]) == (None, "public", False)
    assert (body["session_scope"], body["on_session_loss"], body["idempotency"]) == (
        "key",
        "retry_once",
        "unsafe",
    )


async def test_an_edit_of_a_timeout_reaches_the_tools(api: APIBench) -> None:
    await api.agent(ConnectionPlan())

    edited = await api.operator("PATCH", f"{CLIENTS}/files", json={"tool_timeout_s": 7.5})
    tools = (await api.operator("GET", f"{CLIENTS}/files/tools")).json()["tools"]

    assert (edited.status_code, edited.json()["tool_timeout_s"]) == (200, 7.5)
    assert "sync" not in edited.json()
    assert {(tool["upstream_name"], tool["timeout_s"]) for tool in tools} == {("read", 7.5), ("write", 7.5)}


async def test_a_narrowed_list_is_in_force_at_once(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())

    await api.operator("PATCH", f"{CLIENTS}/files", json={"tools_to_execute": ["read"]})

    response = await execute(api, agent, tool_call("files-write"))
    assert (response.status_code, error_of(response)["code"]) == (403, "tool_not_allowed")


async def test_an_edit_of_what_has_changed_meanwhile_is_refused(api: APIBench) -> None:
    await api.agent(ConnectionPlan())
    etag = (await api.operator("GET", f"{CLIENTS}/files")).headers["etag"]
    await api.operator("PATCH", f"{CLIENTS}/files", json={"enabled": False}, headers={"if-match": etag})

    late = await api.operator("PATCH", f"{CLIENTS}/files", json={"enabled": True}, headers={"if-match": etag})

    assert (late.status_code, error_of(late)["code"]) == (412, "precondition_failed")


async def test_a_disabled_connection_hides_its_tools(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())

    await api.operator("POST", f"{CLIENTS}/files/disable")

    response = await execute(api, agent, tool_call("files-read"))
    assert (response.status_code, error_of(response)["details"]["reason"]) == (404, "connection_disabled")


async def test_a_name_used_again_revives_no_grants(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())
    tools = f"/api/v1/mcp/keys/{agent.key_id}/tools"
    granted = [{"client": "files", "tools_to_execute": ["*"]}]
    await api.operator("PUT", tools, json={"mcp_configs": granted})

    deleted = await api.operator("DELETE", f"{CLIENTS}/files")
    await api.agent(ConnectionPlan(), name="second")

    assert deleted.json()["retired_tools"] == ["files-read", "files-write"]
    assert (await api.operator("GET", tools)).json()["mcp_configs"] == []
    listed = await api.http.get("/v1/mcp/tools", headers=agent.headers)
    assert listed.json()["tools"] == []


async def test_connections_are_listed_in_pages_by_name(api: APIBench) -> None:
    for name in ("c", "a", "b"):
        await register(api, "http://127.0.0.1:9/mcp", name=name)

    first = (await api.operator("GET", f"{CLIENTS}?limit=2")).json()
    second = (await api.operator("GET", f"{CLIENTS}?limit=2&cursor={first['next_cursor']}")).json()

    names = [item["name"] for page in (first, second) for item in page["items"]]
    assert (names, second["next_cursor"]) == (["a", "b", "c"], None)


async def test_a_round_ends_though_the_api_that_started_it_is_gone(
    live_api: APIBench, mcp_url: str, database_url: str, tmp_path: Path
) -> None:
    agent = await live_api.agent()
    await register(live_api, mcp_url)
    settings = make_settings(tmp_path, database_url, task_queue=live_api.task_queue)
    async with api_bench(settings, live_api.temporal) as passing:
        body = {"tool_calls": [tool_call("lab-slow", '{"seconds": 0.2}')], "wait": 0}
        started = await passing.http.post("/v1/rounds", headers=agent.headers, json=body)

    location = started.headers["location"]
    events = await live_api.http.get(f"{location}/events", headers=agent.headers)
    shown = await live_api.http.get(location, headers=agent.headers)

    assert (started.status_code, "round_completed" in events.text) == (202, True)
    assert shown.json()["messages"][0]["content"] == "slept"


async def test_questions_and_the_transport_are_settings_with_values_that_do_something(api: APIBench) -> None:
    made = await api.operator("POST", CLIENTS, json={"name": "lab", "url": "https://example.org/mcp"})
    settings = {"elicitation": "decline", "transport": "http_sse"}
    edited = await api.operator("PATCH", f"{CLIENTS}/lab", json=settings)
    unbuilt = await api.operator("PATCH", f"{CLIENTS}/lab", json={"elicitation": "ask"})

    assert (made.json()["elicitation"], made.json()["transport"]) == ("none", "streamable_http")
    assert (edited.json()["elicitation"], edited.json()["transport"]) == ("decline", "http_sse")
    assert (unbuilt.status_code, error_of(unbuilt)["code"]) == (400, "invalid_request")
