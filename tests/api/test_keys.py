"""Keys, their secrets and their tool configuration on the control plane."""

from typing import Any

import pytest
from sqlalchemy import select

from models.audit import AuditEvent, AuditKind
from tests.api.bench import Agent, APIBench, error_of
from tests.support.world import ConnectionPlan, add_connection

UNKNOWN = "0190d5a0-0000-7000-8000-000000000000"

pytestmark = pytest.mark.anyio


async def create(api: APIBench, name: str = "reporting", **more: Any) -> dict[str, Any]:
    response = await api.operator("POST", "/api/v1/keys", json={"name": name, **more})
    assert response.status_code == 201, response.text
    body: dict[str, Any] = response.json()
    return body


async def works(api: APIBench, secret: str) -> int:
    response = await api.http.get("/v1/mcp/tools", headers={"authorization": f"Bearer {secret}"})
    return response.status_code


async def listed(api: APIBench, agent: Agent) -> list[str]:
    response = await api.http.get("/v1/mcp/tools", headers=agent.headers)
    return [tool["function"]["name"] for tool in response.json()["tools"]]


async def changes(api: APIBench) -> list[str]:
    query = select(AuditEvent).where(AuditEvent.kind == AuditKind.CONTROL_CHANGE).order_by(AuditEvent.id)
    rows = await api.database.read(lambda session: session.scalars(query).all())
    assert {row.actor for row in rows} <= {"admin"}
    return [row.data["change"] for row in rows]


async def test_a_secret_is_shown_once_and_works(api: APIBench) -> None:
    made = await create(api, may_explain=True)

    again = (await api.operator("GET", f"/api/v1/keys/{made['id']}")).json()

    assert made["secret"].startswith("sgk_")
    assert "secret" not in again
    assert again == {name: value for name, value in made.items() if name != "secret"}
    assert made["secret"] not in str(again)
    assert await works(api, made["secret"]) == 200
    assert await changes(api) == ["create_key"]


async def test_a_name_is_taken_once(api: APIBench) -> None:
    await create(api)

    response = await api.operator("POST", "/api/v1/keys", json={"name": "reporting"})

    assert (response.status_code, error_of(response)["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    "body", [{}, {"name": ""}, {"name": "x" * 101}, {"name": "a\x00"}, {"name": 1}, {"name": "a", "extra": 1}]
)
async def test_a_malformed_key_is_refused(api: APIBench, body: dict[str, Any]) -> None:
    response = await api.operator("POST", "/api/v1/keys", json=body)

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")


async def test_keys_are_listed_in_pages_newest_first(api: APIBench) -> None:
    made = [(await create(api, f"key {number}"))["id"] for number in range(5)]

    seen: list[str] = []
    cursor: str | None = None
    pages = 0
    while cursor is not None or pages == 0:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await api.operator("GET", "/api/v1/keys", params=query)).json()
        seen += [key["id"] for key in page["items"]]
        cursor, pages = page["next_cursor"], pages + 1

    assert (seen, pages) == (made[::-1], 3)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "cursor=x", "cursor=%00"])
async def test_a_malformed_page_is_refused(api: APIBench, query: str) -> None:
    response = await api.operator("GET", f"/api/v1/keys?{query}")

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")


async def test_an_edit_changes_what_it_names_and_moves_the_tag(api: APIBench) -> None:
    made = await create(api)

    disabled = await api.operator("PATCH", f"/api/v1/keys/{made['id']}", json={"enabled": False})

    assert disabled.json()["enabled"] is False
    assert disabled.json()["name"] == "reporting"
    assert disabled.headers["etag"] == disabled.json()["etag"] != made["etag"]
    assert await works(api, made["secret"]) == 403


async def test_an_edit_of_what_has_changed_meanwhile_is_refused(api: APIBench) -> None:
    made = await create(api)
    path = f"/api/v1/keys/{made['id']}"
    await api.operator("PATCH", path, json={"may_explain": True}, headers={"if-match": made["etag"]})

    late = await api.operator("PATCH", path, json={"name": "x"}, headers={"if-match": made["etag"]})

    assert (late.status_code, error_of(late)["code"]) == (412, "precondition_failed")


@pytest.mark.parametrize(("overlap_s", "old_works"), [(0, 401), (60, 200)])
async def test_rotation_lets_old_secrets_live_for_the_overlap(
    api: APIBench, overlap_s: int, old_works: int
) -> None:
    made = await create(api)

    rotated = await api.operator("POST", f"/api/v1/keys/{made['id']}/secrets", json={"overlap_s": overlap_s})

    assert rotated.status_code == 201
    assert await works(api, rotated.json()["secret"]) == 200
    assert await works(api, made["secret"]) == old_works
    assert len(rotated.json()["secrets"]) == 2


async def test_a_deleted_key_is_gone(api: APIBench) -> None:
    made = await create(api)

    deleted = await api.operator("DELETE", f"/api/v1/keys/{made['id']}")
    again = await api.operator("DELETE", f"/api/v1/keys/{made['id']}")

    assert (deleted.status_code, deleted.content) == (204, b"")
    assert again.status_code == 404
    assert await works(api, made["secret"]) == 401
    assert await changes(api) == ["create_key", "delete_key"]


async def test_the_documents_own_example_configures_a_key(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan(name="knowledge_base", tools={"search": {}, "delete": {}}))
    await api.database.write(add_connection, ConnectionPlan(name="ticketing", tools={"open": {}}))
    await api.database.write(add_connection, ConnectionPlan(name="other", tools={"read": {}}))
    config = [
        {"client": "knowledge_base", "tools_to_execute": ["search", "get_article"]},
        {"client": "ticketing", "tools_to_execute": ["*"]},
    ]
    path = f"/api/v1/mcp/keys/{agent.key_id}/tools"

    put = await api.operator("PUT", path, json={"mcp_configs": config})
    got = await api.operator("GET", path)

    assert put.status_code == 200
    assert put.json() == got.json()
    assert put.json() == {
        "mcp_configs": config,
        "unmatched": [{"client": "knowledge_base", "tool": "get_article"}],
        "etag": put.headers["etag"],
    }
    assert await listed(api, agent) == ["knowledge_base-search", "ticketing-open"]


async def test_an_empty_configuration_grants_nothing(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())

    await api.operator("PUT", f"/api/v1/mcp/keys/{agent.key_id}/tools", json={"mcp_configs": []})

    assert await listed(api, agent) == []


async def test_removing_a_configuration_widens_and_needs_if_match(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())
    path = f"/api/v1/mcp/keys/{agent.key_id}/tools"
    etag = (await api.operator("PUT", path, json={"mcp_configs": []})).headers["etag"]

    without = await api.operator("DELETE", path)
    wrong = await api.operator("DELETE", path, headers={"if-match": '"other"'})
    right = await api.operator("DELETE", path, headers={"if-match": etag})

    assert (without.status_code, error_of(without)["code"]) == (428, "precondition_failed")
    assert (wrong.status_code, error_of(wrong)["details"]["etag"]) == (412, etag)
    assert (right.status_code, right.json()["mcp_configs"]) == (200, None)
    assert await listed(api, agent) == ["files-read", "files-write"]


@pytest.mark.parametrize(
    ("config", "where", "reason"),
    [
        ([{"client": "unknown", "tools_to_execute": []}], "mcp_configs[0].client", "unknown_client"),
        (
            [{"client": "files", "tools_to_execute": []}, {"client": "files", "tools_to_execute": []}],
            "mcp_configs[1].client",
            "duplicate_client",
        ),
        ([{"client": "files", "tools_to_execute": ["re*"]}], "mcp_configs[0].tools_to_execute", None),
        ([{"client": "files", "tools_to_execute": ["*", "read"]}], "mcp_configs[0].tools_to_execute", None),
        ([{"client": "files", "tools_to_execute": "read"}], "mcp_configs[0].tools_to_execute", None),
        ([{"client": "files", "tools_to_execute": [1]}], "mcp_configs[0].tools_to_execute", None),
        ([{"client": "files", "tools_to_execute": ["a\x00"]}], "mcp_configs[0].tools_to_execute", None),
    ],
)
async def test_a_configuration_that_cannot_be_meant_is_refused(
    api: APIBench, config: list[Any], where: str, reason: str | None
) -> None:
    agent = await api.agent(ConnectionPlan())

    response = await api.operator(
        "PUT", f"/api/v1/mcp/keys/{agent.key_id}/tools", json={"mcp_configs": config}
    )

    error = error_of(response)
    assert (response.status_code, error["code"], error["details"]["where"]) == (422, "invalid_filter", where)
    assert reason in (None, error["details"]["reason"])
    assert await listed(api, agent) == ["files-read", "files-write"]


@pytest.mark.parametrize("body", [{}, {"mcp_configs": None}, {"mcp_configs": [{"client": "files"}]}, []])
async def test_a_malformed_configuration_is_refused(api: APIBench, body: Any) -> None:
    agent = await api.agent(ConnectionPlan())

    response = await api.operator("PUT", f"/api/v1/mcp/keys/{agent.key_id}/tools", json=body)

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")


async def test_an_unknown_key_is_not_found(api: APIBench) -> None:
    for method, path, body in (
        ("GET", f"/api/v1/keys/{UNKNOWN}", None),
        ("PATCH", f"/api/v1/keys/{UNKNOWN}", {}),
        ("POST", f"/api/v1/keys/{UNKNOWN}/secrets", {}),
        ("GET", f"/api/v1/mcp/keys/{UNKNOWN}/tools", None),
        ("PUT", f"/api/v1/mcp/keys/{UNKNOWN}/tools", {"mcp_configs": []}),
    ):
        response = await api.operator(method, path, json=body)
        assert (response.status_code, error_of(response)["code"]) == (404, "not_found"), path
