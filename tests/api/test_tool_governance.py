"""Programs, approved lists, pins and explanations on the control plane."""

from typing import Any

import pytest

from models.version_projection import project_core
from tests.api.bench import APIBench, error_of
from tests.support.programs import Program, definition, mcp_tool, register, register_runtime, runtime_tool
from tests.support.world import ConnectionPlan, add_connection

pytestmark = pytest.mark.anyio


async def whitelisted(api: APIBench) -> tuple[Program, dict[str, Any]]:
    """Register a tool whose runtime implementation wins over the program's of a connection."""
    await api.database.write(add_connection, ConnectionPlan())
    runtime = await register_runtime(api)
    await runtime.declare(runtime_tool("exec_command"))
    program = await register(
        api,
        definition(tool_catalog=[mcp_tool("exec_command", "files", "write")]),
        execution_runtime=runtime.name,
        grants=["files"],
    )
    found = await api.operator("GET", "/api/v1/tools", params={"tool_name": "exec_command"})
    return program, found.json()["items"][0]


async def test_an_approved_list_is_the_default_until_it_is_set_and_then_exactly_what_was_set(
    api: APIBench,
) -> None:
    program, found = await whitelisted(api)
    path = f"/api/v1/tools/{found['id']}/approved"
    wanted: dict[str, Any] = {"implementations": {"exec_command": "mcp/files/write"}}
    conversation_id = await program.conversation()

    before = await program.task(conversation_id, **wanted)
    changed = await api.operator("PUT", path, json={"implementations": ["mcp/files/write"]})
    after = await program.task(conversation_id, **wanted)
    reset = await api.operator("PUT", path, json={"implementations": None})

    assert found["approved"] == ["env/exec_command"]
    assert (before.status_code, error_of(before)["details"]["rule"]) == (403, "not_approved")
    assert changed.json()["approved"] == ["mcp/files/write"]
    assert after.status_code == 201
    assert [
        row["binding_reason"] for row in after.json()["bindings"] if row["tool_name"] == "exec_command"
    ] == ["explicit_override"]
    assert reset.json()["approved"] == ["env/exec_command"]


@pytest.mark.parametrize("references", [["nothing"], ["mcp/files/write", "core_matrix/subagent_list"]])
async def test_only_implementations_of_the_tool_are_approved(references: list[str], api: APIBench) -> None:
    _, found = await whitelisted(api)

    response = await api.operator(
        "PUT", f"/api/v1/tools/{found['id']}/approved", json={"implementations": references}
    )

    assert response.status_code == 422
    shown = await api.operator("GET", f"/api/v1/tools/{found['id']}")
    assert shown.json()["approved"] == ["env/exec_command"]


async def test_an_edit_on_what_is_no_longer_there_is_refused(api: APIBench) -> None:
    _, found = await whitelisted(api)
    path = f"/api/v1/tools/{found['id']}/approved"
    await api.operator("PUT", path, json={"implementations": []})

    late = await api.operator(
        "PUT", path, json={"implementations": None}, headers={"if-match": found["etag"]}
    )

    assert late.status_code == 412


async def test_a_pin_holds_until_it_is_moved_or_removed(api: APIBench) -> None:
    _, found = await whitelisted(api)
    path = f"/api/v1/tools/{found['id']}/pin"
    contents = {row["implementation_ref"]: row["content_digest"] for row in found["implementations"]}

    pinned = await api.operator("PUT", path, json={})
    moved = await api.operator("PUT", path, json={"content_digest": contents["mcp/files/write"]})
    wrong = await api.operator("PUT", path, json={"content_digest": "0" * 64})
    removed = await api.operator("DELETE", path)

    assert pinned.json()["pinned_digest"] == contents["env/exec_command"]
    assert not pinned.json()["changed_since_pinned"]
    assert moved.json()["changed_since_pinned"]
    assert wrong.status_code == 422
    assert removed.json()["pinned_digest"] is None


async def test_a_tools_own_idempotency_goes_before_its_connections_until_it_is_taken_away(
    api: APIBench,
) -> None:
    await api.database.write(add_connection, ConnectionPlan())
    found = (await api.operator("GET", "/api/v1/tools", params={"tool_name": "files-read"})).json()["items"][
        0
    ]
    other = (await api.operator("GET", "/api/v1/tools", params={"tool_name": "files-write"})).json()["items"][
        0
    ]
    path = f"/api/v1/tools/{found['id']}"

    async def shown(tool: str = path) -> tuple[Any, str, list[tuple[str, str]]]:
        body = (await api.operator("GET", tool)).json()
        [row] = body["implementations"]
        layers = [(layer["layer"], layer["value"]) for layer in row["idempotency_provenance"]]
        return body["idempotency"], row["idempotency"], layers

    assert await shown() == (None, "unsafe", [])
    late = await api.operator("PUT", f"{path}/idempotency", json={"idempotency": "safe"})
    assert late.status_code == 200
    assert await shown() == ("safe", "safe", [("connection", "unsafe"), ("tool", "safe")])
    assert await shown(f"/api/v1/tools/{other['id']}") == (None, "unsafe", [])

    stale = await api.operator(
        "PUT", f"{path}/idempotency", json={"idempotency": None}, headers={"if-match": found["etag"]}
    )
    wrong = await api.operator("PUT", f"{path}/idempotency", json={"idempotency": "sometimes"})
    edited = await api.operator("PATCH", "/api/v1/mcp/clients/files", json={"idempotency": "keyed"})
    assert (stale.status_code, wrong.status_code, edited.status_code) == (412, 400, 200), edited.text
    assert await shown() == ("safe", "safe", [("connection", "keyed"), ("tool", "safe")])

    await api.operator("PUT", f"{path}/idempotency", json={"idempotency": None})
    assert await shown() == (None, "keyed", [])
    pins = {row["content_digest"] for row in found["implementations"]}
    kept = {row["content_digest"] for row in (await api.operator("GET", path)).json()["implementations"]}
    assert kept == pins


async def test_a_tools_own_time_limit_goes_before_its_connections_until_it_is_taken_away(
    api: APIBench,
) -> None:
    await api.database.write(add_connection, ConnectionPlan(tool_timeout_s=30))
    query = {"tool_name": "files-read"}
    [found] = (await api.operator("GET", "/api/v1/tools", params=query)).json()["items"]
    path = f"/api/v1/tools/{found['id']}"

    async def shown() -> tuple[float | None, float, list[tuple[str, float]]]:
        body = (await api.operator("GET", path)).json()
        [row] = body["implementations"]
        layers = [(layer["layer"], layer["value"]) for layer in row["timeout_provenance"]]
        return body["timeout_s"], row["timeout_s"], layers

    assert await shown() == (None, 30, [])
    assert (await api.operator("PUT", f"{path}/timeout", json={"timeout_s": 2.5})).status_code == 200
    assert await shown() == (2.5, 2.5, [("connection", 30), ("tool", 2.5)])

    stale = await api.operator(
        "PUT", f"{path}/timeout", json={"timeout_s": None}, headers={"if-match": found["etag"]}
    )
    wrong = [
        (await api.operator("PUT", f"{path}/timeout", json=body)).status_code
        for body in ({"timeout_s": 0}, {"timeout_s": 90_000}, {"timeout_s": "soon"}, {})
    ]
    edited = await api.operator("PATCH", "/api/v1/mcp/clients/files", json={"tool_timeout_s": 20})
    assert (stale.status_code, wrong, edited.status_code) == (412, [400] * 4, 200)
    assert await shown() == (2.5, 2.5, [("connection", 20), ("tool", 2.5)])

    await api.operator("PUT", f"{path}/timeout", json={"timeout_s": None})
    assert await shown() == (None, 20, [])


async def test_policies_are_shown_with_the_layers_that_they_came_from(api: APIBench) -> None:
    _, found = await whitelisted(api)
    overlay = {"match": {"tool_name": "exec_command"}, "execution_policy": {"parallel_safe": True}}
    put = await api.operator("PUT", "/api/v1/policies/tool-overlays", json={"overlays": [overlay]})

    shown = (await api.operator("GET", f"/api/v1/tools/{found['id']}")).json()

    assert put.json()["changed_tools"] == ["exec_command"]
    by_reference = {row["implementation_ref"]: row for row in shown["implementations"]}
    assert all(row["parallel_safe"] for row in by_reference.values())
    assert [layer["layer"] for layer in by_reference["mcp/files/write"]["policy_provenance"]] == [
        "declared",
        "source_default",
        "overlay:0",
    ]


async def test_an_explanation_names_the_level_that_hides_a_core_tool(api: APIBench) -> None:
    await api.database.write(project_core)
    agent = await api.agent(ConnectionPlan(tools_to_execute=("read",)), may_explain=True)

    async def hidden(**headers: str) -> dict[str, tuple[str, str]]:
        response = await api.http.get(
            "/v1/mcp/tools", params={"explain": "1"}, headers={**agent.headers, **headers}
        )
        return {tool["name"]: (tool["level"], tool["reason"]) for tool in response.json()["hidden"]}

    assert await hidden() == {
        "files-write": ("connection", "not_on_connection_list"),
        "subagent_list": ("key", "core_tools_not_granted_to_key"),
        "subagent_spawn": ("key", "core_tools_not_granted_to_key"),
    }

    allowed = await api.operator("PATCH", f"/api/v1/keys/{agent.key_id}", json={"core_tools": True})
    assert allowed.json()["core_tools"] is True
    assert await hidden() == {"files-write": ("connection", "not_on_connection_list")}
    none = await hidden(**{"x-mcp-include-tools": ""})
    assert none["subagent_list"] == ("request", "request_asks_for_no_tools")


async def test_a_program_gets_a_key_that_may_use_no_connection_until_one_is_granted(api: APIBench) -> None:
    await api.database.write(add_connection, ConnectionPlan(open_to_all_keys=False))
    program = await register(api)

    task = await program.new_task(await program.conversation())

    assert [row["tool_name"] for row in task["bindings"]] == ["subagent_list", "subagent_spawn"]
    key = (await api.operator("GET", f"/api/v1/keys/{program.key_id}")).json()
    assert key["name"] == f"program:{program.name}"


async def test_a_version_registered_again_is_the_same_one_and_has_no_new_secret(api: APIBench) -> None:
    program = await register(api)
    path = f"/api/v1/programs/{program.name}/versions"

    again = await api.operator("POST", path, json=program.declared)
    other = await api.operator("POST", path, json={**program.declared, "sdk_version": "2"})
    count = await api.operator("GET", path)

    assert (again.status_code, again.json()["id"]) == (200, program.version_id)
    assert "secret" not in again.json()
    assert (other.status_code, error_of(other)["details"]["diff"]) == (
        409,
        [{"path": "sdk_version", "change": "changed"}],
    )
    assert len(count.json()["items"]) == 1


async def test_a_second_program_of_one_name_is_a_conflict(api: APIBench) -> None:
    program, runtime = await register(api), await register_runtime(api)

    for path, body in (
        ("/api/v1/programs", {"name": program.name}),
        ("/api/v1/runtimes", {"name": runtime.name, "fingerprint": "x"}),
    ):
        response = await api.operator("POST", path, json=body)
        assert response.status_code == 409, response.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/v1/programs/nobody", None, 404),
        ("GET", "/api/v1/runtimes/nobody", None, 404),
        ("POST", "/api/v1/programs/nobody/versions", {}, 404),
        ("POST", "/api/v1/programs", {"name": "Upper"}, 400),
        ("POST", "/api/v1/programs", {"name": "x", "execution_runtime": "nobody"}, 404),
        ("POST", "/api/v1/programs", {"name": "x", "key_id": "not-an-id"}, 400),
        ("GET", "/api/v1/tools/17", None, 404),
        ("PUT", "/api/v1/tools/0190a0a0-0000-7000-8000-000000000000/pin", {}, 404),
        ("GET", "/api/v1/programs/%00", None, 404),
    ],
)
async def test_a_mistake_is_told_and_never_ours(
    method: str, path: str, body: dict[str, Any] | None, status: int, api: APIBench
) -> None:
    options = {} if body is None else {"json": body}
    response = await api.operator(method, path, **options)

    assert response.status_code == status, response.text
    error_of(response)


async def test_lists_come_in_pages(api: APIBench) -> None:
    names = sorted([(await register(api)).name for _ in range(3)])

    first = (await api.operator("GET", "/api/v1/programs", params={"limit": 2})).json()
    rest = (
        await api.operator("GET", "/api/v1/programs", params={"limit": 2, "cursor": first["next_cursor"]})
    ).json()

    assert [item["name"] for item in [*first["items"], *rest["items"]]] == names
    assert rest["next_cursor"] is None


async def test_the_key_of_a_program_is_not_deleted_under_it(api: APIBench) -> None:
    program = await register(api)

    response = await api.operator("DELETE", f"/api/v1/keys/{program.key_id}")

    assert response.status_code == 409
    assert (await program.get("capabilities")).status_code == 200
