"""Handshakes over HTTP: both planes, the governed catalog, immutable versions, and who may call."""

from typing import Any

import pytest

from tests.api.bench import ADMIN_TOKEN, APIBench, error_of
from tests.support.programs import definition, mcp_tool, register, register_runtime, runtime_tool, tool
from tests.support.world import ConnectionPlan, add_connection

pytestmark = pytest.mark.anyio

ROUTES = [
    ("GET", "/program_api/capabilities"),
    ("POST", "/program_api/capabilities"),
    ("POST", "/program_api/tasks"),
]


async def with_files(api: APIBench) -> None:
    await api.database.write(add_connection, ConnectionPlan())


async def test_a_handshake_answers_with_both_planes_and_the_governed_catalog(api: APIBench) -> None:
    await with_files(api)
    runtime = await register_runtime(api)
    await runtime.declare(runtime_tool("exec_command"))
    declared = definition(
        tool_catalog=[mcp_tool("remote", "files", "read"), tool("exec_command"), tool("subagent_spawn")],
        profile_catalog={"main": {"allowed_tool_names": ["remote", "subagent_spawn", "exec_command"]}},
    )
    program = await register(api, declared, execution_runtime=runtime.name)

    response = await program.handshake()

    assert response.status_code == 200, response.text
    body = response.json()
    assert body["method_id"] == "capabilities_handshake"
    assert body["program_version_fingerprint"] == declared["fingerprint"]
    assert body["program_plane"]["tool_catalog"] == declared["tool_catalog"]
    assert body["execution_plane"] == {
        "runtime_plane": "execution",
        "capability_payload": {},
        "tool_catalog": [runtime_tool("exec_command")],
    }
    assert body["execution_runtime_id"] == runtime.id
    # Only what something can run is in a catalog; the names of the family come first.
    names = [entry["tool_name"] for entry in body["effective_tool_catalog"]]
    assert names == ["subagent_spawn", "subagent_list", "remote"]
    governed = {entry["tool_name"]: entry for entry in body["governed_effective_tool_catalog"]}
    assert {name: entry["governance_mode"] for name, entry in governed.items()} == {
        "subagent_spawn": "reserved",
        "remote": "replaceable",
    }
    assert governed["subagent_spawn"]["implementation_source"] == "core_matrix"
    shown = await api.operator("GET", f"/api/v1/tools/{governed['remote']['tool_definition_id']}")
    [implementation] = shown.json()["implementations"]
    assert implementation["id"] == governed["remote"]["tool_implementation_id"]


async def test_without_a_runtime_there_is_no_execution_plane(api: APIBench) -> None:
    program = await register(api)

    body = (await program.get("capabilities")).json()

    assert body["method_id"] == "capabilities_refresh"
    assert {name for name in body if name.startswith(("execution", "runtime"))} == set()
    assert None not in body.values()


async def test_a_refresh_shows_what_the_handshake_showed(api: APIBench) -> None:
    program = await register(api, definition(tool_catalog=[tool("sum")]))

    handshake = (await program.handshake()).json()
    refresh = (await program.get("capabilities")).json()

    assert {**refresh, "method_id": ""} == {**handshake, "method_id": ""}


async def test_all_tools_are_governed_where_no_profile_lists_any(api: APIBench) -> None:
    program = await register(api, definition(profile_catalog={"main": {}, "other": {}}))

    body = (await program.handshake()).json()

    assert [entry["tool_name"] for entry in body["governed_effective_tool_catalog"]] == [
        "subagent_spawn",
        "subagent_list",
    ]


async def test_other_content_under_the_fingerprint_is_refused_with_the_differences(api: APIBench) -> None:
    program = await register(api, definition(tool_catalog=[tool("sum")]))
    before = (await program.get("capabilities")).json()

    response = await program.handshake(tool_catalog=[tool("sum", description="Adds."), tool("product")])

    assert response.status_code == 409
    assert error_of(response)["details"]["diff"] == [
        {"path": "tool_catalog.sum", "change": "changed", "fields": ["description"]},
        {"path": "tool_catalog.product", "change": "added"},
    ]
    assert (await program.get("capabilities")).json() == before


async def test_another_fingerprint_is_refused(api: APIBench) -> None:
    program = await register(api)

    response = await program.handshake(fingerprint="another")

    assert response.status_code == 422
    assert [problem["path"] for problem in error_of(response)["details"]["problems"]] == ["fingerprint"]


async def test_a_malformed_declaration_lists_every_fault_and_changes_nothing(api: APIBench) -> None:
    runtime = await register_runtime(api)
    program = await register(api, execution_runtime=runtime.name, declares_runtime=True)

    response = await program.handshake(
        sdk_version=7,
        tool_catalog=[tool("Sum"), tool("sum", implementation_ref="")],
        profile_catalog={"main": []},
        execution_tool_catalog=[tool("exec")],
    )

    assert response.status_code == 422
    assert [problem["path"] for problem in error_of(response)["details"]["problems"]] == [
        "sdk_version",
        "tool_catalog[0].tool_name",
        "tool_catalog[1].implementation_ref",
        "profile_catalog.main",
    ]
    assert (await api.operator("GET", f"/api/v1/runtimes/{runtime.name}")).json()["tool_catalog"] == []


@pytest.mark.parametrize("body", ["[]", "7", "null", '"text"'])
async def test_a_declaration_is_an_object(body: str, api: APIBench) -> None:
    program = await register(api)

    response = await api.http.post(
        "/program_api/capabilities",
        headers={"authorization": f"Bearer {program.secret}", "content-type": "application/json"},
        content=body,
    )

    assert response.status_code == 422


async def test_an_address_that_no_operator_registered_is_refused(api: APIBench) -> None:
    await with_files(api)
    remote = mcp_tool("remote", "files", "read", server_slug=None, server_url="http://169.254.169.254/latest")
    program = await register(api)

    response = await api.operator(
        "POST", f"/api/v1/programs/{program.name}/versions", json=definition(tool_catalog=[remote])
    )

    assert response.status_code == 422
    [problem] = error_of(response)["details"]["problems"]
    assert problem["path"] == "tool_catalog[0].server_url"


async def test_a_program_speaks_for_its_runtime_only_where_the_operator_says_so(api: APIBench) -> None:
    runtime = await register_runtime(api)
    silent = await register(api, execution_runtime=runtime.name)
    speaking = await register(api, execution_runtime=runtime.name, declares_runtime=True)
    brought = {
        "execution_tool_catalog": [runtime_tool("exec")],
        "execution_capability_payload": {"os": "linux"},
    }

    refused = await silent.handshake(**brought)
    accepted = await speaking.handshake(**brought)

    assert refused.status_code == 422
    assert {problem["path"] for problem in error_of(refused)["details"]["problems"]} == set(brought)
    assert accepted.status_code == 200
    assert accepted.json()["execution_plane"]["capability_payload"] == {"os": "linux"}


async def test_a_runtime_declares_its_tools_under_its_own_credential(api: APIBench) -> None:
    runtime = await register_runtime(api)
    program = await register(api, definition(tool_catalog=[tool("exec")]), execution_runtime=runtime.name)

    declared = await runtime.declare(runtime_tool("exec"), execution_capability_payload={"os": "linux"})
    wrong_kind = await runtime.declare(tool("exec"))
    other_host = await runtime.declare(fingerprint="host-2")

    assert declared.status_code == 200
    assert declared.json()["execution_capability_payload"] == {"os": "linux"}
    assert (wrong_kind.status_code, other_host.status_code) == (422, 422)
    tools = await api.operator("GET", "/api/v1/tools", params={"tool_name": "exec"})
    [found] = tools.json()["items"]
    assert found["scope"] == f"program_version:{program.version_id}"
    assert (found["governance_mode"], len(found["implementations"])) == ("whitelist_only", 2)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_tokens_of_other_planes_are_refused(method: str, path: str, api: APIBench) -> None:
    agent = await api.agent()
    tokens = {
        ADMIN_TOKEN: 403,
        agent.secret: 403,
        "sgp_unknown": 401,
        "sgr_unknown": 401,
        "nonsense": 401,
    }

    for token, status in tokens.items():
        response = await api.http.request(method, path, headers={"authorization": f"Bearer {token}"}, json={})
        assert response.status_code == status, (token, response.text)
    assert (await api.http.request(method, path, json={})).status_code == 401


async def test_credentials_of_programs_and_runtimes_open_no_other_plane(api: APIBench) -> None:
    program, runtime = await register(api), await register_runtime(api)

    for secret in (program.secret, runtime.secret):
        headers = {"authorization": f"Bearer {secret}"}
        for path in ("/v1/mcp/tools", "/api/v1/keys", "/api/v1/programs", "/api/v1/tools"):
            response = await api.http.get(path, headers=headers)
            assert response.status_code in (401, 403), (path, response.text)


async def test_a_runtime_creates_no_task(api: APIBench) -> None:
    runtime = await register_runtime(api)

    response = await api.http.post(
        "/program_api/conversations", headers={"authorization": f"Bearer {runtime.secret}"}, json={}
    )

    assert response.status_code == 403


@pytest.mark.parametrize("what", ["program", "runtime"])
async def test_a_disabled_caller_is_refused(what: str, api: APIBench) -> None:
    program, runtime = await register(api), await register_runtime(api)
    path = f"/api/v1/programs/{program.name}" if what == "program" else f"/api/v1/runtimes/{runtime.name}"
    await api.operator("PATCH", path, json={"enabled": False})

    response = await (program.handshake() if what == "program" else runtime.declare())

    assert response.status_code == 403
    assert error_of(response)["code"] == "key_disabled"


async def test_both_secrets_of_a_version_are_good_while_it_rotates(api: APIBench) -> None:
    program = await register(api)
    made = await api.operator(
        "POST", f"/api/v1/programs/{program.name}/versions/{program.version_id}/credentials"
    )

    secrets = [program.secret, made.json()["secret"]]
    answers = [
        await api.http.get("/program_api/capabilities", headers={"authorization": f"Bearer {secret}"})
        for secret in secrets
    ]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert all(secret.startswith("sgp_") for secret in secrets)


async def test_no_secret_is_shown_again_or_stored(api: APIBench) -> None:
    program = await register(api)

    shown = await api.operator("GET", f"/api/v1/programs/{program.name}/versions")
    trail = await api.operator("GET", "/api/v1/audit")

    assert program.secret not in shown.text + trail.text
    assert shown.json()["items"][0]["fingerprint"] == program.declared["fingerprint"]


async def test_a_task_is_created_and_shown_to_its_own_version_only(api: APIBench) -> None:
    program, other = await register(api), await register(api)
    conversation_id = await program.conversation()

    task = await program.new_task(conversation_id)
    again = await program.get(f"tasks/{task['agent_task_run_id']}")
    foreign = await other.get(f"tasks/{task['agent_task_run_id']}")
    elsewhere = await other.task(conversation_id)

    assert again.json() == task
    assert [binding["tool_name"] for binding in task["bindings"]] == ["subagent_list", "subagent_spawn"]
    assert {binding["governance_mode"] for binding in task["bindings"]} == {"reserved"}
    assert (foreign.status_code, elsewhere.status_code) == (404, 404)
    assert (await program.get("tasks/17")).status_code == 404


@pytest.mark.parametrize(
    ("override", "paths"),
    [
        ({"interactive": {"profile": "x"}}, ["override_payload.interactive"]),
        ({"subagents": {"enabled": "false"}}, ["override_payload.subagents.enabled"]),
        ({"depth": "deep"}, ["override_payload/depth"]),
    ],
)
async def test_a_conversation_overrides_only_what_it_may(
    override: dict[str, Any], paths: list[str], api: APIBench
) -> None:
    schema = {"type": "object", "properties": {"depth": {"type": "integer"}}}
    program = await register(api, definition(conversation_override_schema_snapshot=schema))

    response = await program.post("conversations", {"override_payload": override})

    assert response.status_code == 422
    assert [problem["path"] for problem in error_of(response)["details"]["problems"]] == paths


async def test_an_implementation_that_may_not_be_bound_is_named_with_its_rule(api: APIBench) -> None:
    program = await register(api)
    conversation_id = await program.conversation()

    refused = await program.task(conversation_id, implementations={"subagent_list": "program/other"})
    unknown = await program.task(conversation_id, implementations={"nothing": "x"})

    assert refused.status_code == 403
    assert error_of(refused)["details"] == {
        "tool": "subagent_list",
        "implementation": "program/other",
        "rule": "reserved",
    }
    assert error_of(unknown)["code"] == "tool_not_found"
