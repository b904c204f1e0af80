"""Policies, rounds of every key, the audit trail, explanations and readiness on the control plane."""

from typing import Any

import pytest

from tests.api.bench import APIBench, api_bench, error_of, execute, make_settings, start_round, tool_call
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.world import ConnectionPlan

OVERLAYS = "/api/v1/policies/tool-overlays"
PARALLEL = {"match": {"tool_name": "files-read"}, "execution_policy": {"parallel_safe": True}}

pytestmark = pytest.mark.anyio


async def parallel_tools(api: APIBench) -> list[str]:
    tools = (await api.operator("GET", "/api/v1/mcp/clients/files/tools")).json()["tools"]
    return [tool["name"] for tool in tools if tool["parallel_safe"]]


async def test_overlays_reach_every_tool_in_the_same_step(api: APIBench) -> None:
    await api.agent(ConnectionPlan())

    put = await api.operator("PUT", OVERLAYS, json={"overlays": [PARALLEL]})
    put_tools = await parallel_tools(api)
    cleared = await api.operator("PUT", OVERLAYS, json={"overlays": []})

    assert put.json()["overlays"] == [PARALLEL]
    assert put.json()["changed_tools"] == ["files-read"]
    assert put_tools == ["files-read"]
    assert (cleared.json()["changed_tools"], await parallel_tools(api)) == (["files-read"], [])


async def test_the_last_overlay_that_matches_wins(api: APIBench) -> None:
    await api.agent(ConnectionPlan())
    serial = {"match": {"server_slug": "files"}, "execution_policy": {"parallel_safe": False}}

    await api.operator("PUT", OVERLAYS, json={"overlays": [PARALLEL, serial]})
    first = await parallel_tools(api)
    await api.operator("PUT", OVERLAYS, json={"overlays": [serial, PARALLEL]})

    assert (first, await parallel_tools(api)) == ([], ["files-read"])


@pytest.mark.parametrize(
    ("overlay", "status"),
    [
        ({"match": {}, "execution_policy": {"parallel_safe": True}}, 422),
        ({"match": {"colour": "red"}, "execution_policy": {"parallel_safe": True}}, 422),
        ({"match": {"tool_name": "a\x00"}, "execution_policy": {"parallel_safe": True}}, 422),
        ({"match": {"tool_name": "a"}, "execution_policy": {"parallel_safe": "yes"}}, 422),
        ({"match": {"tool_name": "a"}}, 422),
        ("text", 422),
    ],
)
async def test_an_overlay_that_cannot_be_meant_is_refused(api: APIBench, overlay: Any, status: int) -> None:
    response = await api.operator("PUT", OVERLAYS, json={"overlays": [PARALLEL, overlay]})

    assert (response.status_code, error_of(response)["code"]) == (status, "invalid_request")
    assert error_of(response)["details"]["problems"][0]["path"] == "overlays[1]"
    assert (await api.operator("GET", OVERLAYS)).json()["overlays"] == []


async def test_overlays_that_changed_meanwhile_are_not_overwritten(api: APIBench) -> None:
    etag = (await api.operator("GET", OVERLAYS)).headers["etag"]
    await api.operator("PUT", OVERLAYS, json={"overlays": [PARALLEL]}, headers={"if-match": etag})

    late = await api.operator("PUT", OVERLAYS, json={"overlays": []}, headers={"if-match": etag})

    assert (late.status_code, error_of(late)["code"]) == (412, "precondition_failed")


async def test_operators_find_rounds_of_every_key_and_their_audit_trail(engine_api: APIBench) -> None:
    api = engine_api
    one, two = await api.agent(ConnectionPlan()), await api.agent(name="two")
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        first = (await start_round(api, one, [tool_call("files-read")])).json()["round_id"]
        second = (await start_round(api, two, [tool_call("files-read")])).json()["round_id"]

    everything = (await api.operator("GET", "/api/v1/rounds")).json()
    page = (await api.operator("GET", "/api/v1/rounds?limit=1")).json()
    rest = (await api.operator("GET", f"/api/v1/rounds?limit=1&cursor={page['next_cursor']}")).json()
    of_one = (await api.operator("GET", f"/api/v1/rounds?key={one.key_id}&state=completed")).json()
    shown = (await api.operator("GET", f"/api/v1/rounds/{first}")).json()
    audit = (await api.operator("GET", f"/api/v1/audit?round_id={first}")).json()

    assert [row["round_id"] for row in everything["items"]] == [second, first]
    assert [row["round_id"] for row in page["items"] + rest["items"]] == [second, first]
    assert [row["round_id"] for row in of_one["items"]] == [first]
    assert (shown["key_id"], shown["results"][0]["content"]) == (one.key_id, "{}")
    kinds = [row["kind"] for row in reversed(audit["items"])]
    assert kinds[0] == "call_admitted"
    assert kinds[-1] == "call_settled"
    assert {row["actor"] for row in audit["items"]} == {one.key_id}


async def test_a_round_links_to_the_engines_own_page(engine_api: APIBench, tmp_path: Any) -> None:
    agent = await engine_api.agent(ConnectionPlan())
    round_id = (await start_round(engine_api, agent, [tool_call("files-read")], wait=0)).json()["round_id"]
    url = str(engine_api.deps.settings.database_url)
    settings = make_settings(tmp_path, url, temporal_ui_url="http://localhost:8233/")

    async with api_bench(settings, None) as api:
        shown = (await api.operator("GET", f"/api/v1/rounds/{round_id}")).json()

    assert shown["engine_url"].startswith("http://localhost:8233/namespaces/default/workflows/round%3A")


async def test_the_audit_trail_is_paged_newest_first(api: APIBench) -> None:
    agent = await api.agent()
    for number in range(3):
        await execute(api, agent, tool_call("a-b"), {"x-request-id": f"r{number}"})

    page = (await api.operator("GET", "/api/v1/audit?limit=2&kind=request_refused")).json()
    rest = (await api.operator("GET", f"/api/v1/audit?limit=2&cursor={page['next_cursor']}")).json()

    assert [row["request_id"] for row in page["items"] + rest["items"]] == ["r2", "r1", "r0"]


async def test_an_operator_sees_why_a_key_may_not_use_a_tool(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan(tools_to_execute=["read"]))
    query = {"key": agent.key_id, "include_tools": "files-write"}

    plain = (await api.operator("GET", "/api/v1/explain", params={"key": agent.key_id})).json()
    narrowed = (await api.operator("GET", "/api/v1/explain", params=query)).json()

    assert [(row["tool"], row["decision"], row["level"], row["reason"]) for row in plain["tools"]] == [
        ("files-read", "allowed", None, None),
        ("files-write", "denied", "connection", "not_on_connection_list"),
    ]
    assert narrowed["tools"][0]["reason"] == "not_in_request"


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("key=x", 404), ("key=0190d5a0-0000-7000-8000-000000000000", 404)],
)
async def test_an_explanation_needs_a_key(api: APIBench, query: str, status: int) -> None:
    response = await api.operator("GET", f"/api/v1/explain?{query}")

    assert response.status_code == status, response.text
    error_of(response)


async def test_a_process_is_ready_once_database_and_engine_are(engine_api: APIBench) -> None:
    response = await engine_api.http.get("/readyz")

    assert (response.status_code, response.json()["status"]) == (200, "ready")


async def test_a_process_without_a_schema_is_not_ready(
    empty_database_url: str, tmp_path: Any, temporal_client: Any
) -> None:
    async with api_bench(make_settings(tmp_path, empty_database_url), temporal_client) as api:
        response = await api.http.get("/readyz")

    assert (response.status_code, error_of(response)["details"]) == (503, {"reason": "schema_missing"})
