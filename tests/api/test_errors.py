"""Every way of refusing a request has one form, on every route."""

import uuid
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from sqlalchemy import select

from api.errors import RETRYABLE, STATUSES, APIProblem
from governance.codes import ErrorCode
from models.audit import AuditEvent, AuditKind
from models.base import new_id
from tests.api.bench import ADMIN_TOKEN, APIBench, error_of, execute, start_round, tool_call
from tests.support.world import ConnectionPlan

ANY_ID = "0190d5a0-0000-7000-8000-000000000000"
OPEN = {"/healthz", "/readyz"}
LOGIN = ("POST", "/api/v1/console/session")
"""Reads its token from the body, and has tests of its own."""

pytestmark = pytest.mark.anyio


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    """Return every documented route as method and a path with ids filled in."""
    paths = app.openapi()["paths"]
    return [
        (
            method.upper(),
            path.replace("{name}", "files")
            .replace("{", "")
            .replace("}", "")
            .replace("round_id", ANY_ID)
            .replace("key_id", ANY_ID)
            .replace("invocation_id", ANY_ID),
        )
        for path, operations in paths.items()
        for method in operations
    ]


def guarded_routes(app: FastAPI) -> list[tuple[str, str]]:
    return [route for route in routes_of(app) if route[1] not in OPEN and route != LOGIN]


async def refusals(api: APIBench) -> list[AuditEvent]:
    query = select(AuditEvent).where(AuditEvent.kind == AuditKind.REQUEST_REFUSED).order_by(AuditEvent.id)
    return list(await api.database.read(lambda session: session.scalars(query).all()))


def test_every_code_has_a_status() -> None:
    assert set(STATUSES) == set(ErrorCode)
    assert set(STATUSES) >= RETRYABLE


def test_a_status_that_a_code_does_not_have_cannot_be_answered() -> None:
    with pytest.raises(ValueError, match="never answered with 418"):
        APIProblem(ErrorCode.NOT_FOUND, status=418)


async def test_every_route_refuses_strangers(api: APIBench) -> None:
    for method, path in guarded_routes(api.app):
        for headers in ({}, {"authorization": "Bearer wrong"}):
            response = await api.http.request(method, path, headers=headers)
            assert (response.status_code, error_of(response)["code"]) == (401, "invalid_key"), (method, path)
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Basic abc", "Bearer sgk_wrong", "Bearer é", "bearer x", "Bearer \x00"],
)
@pytest.mark.parametrize("path", ["/v1/mcp/tools", "/api/v1/audit"])
async def test_a_malformed_token_is_refused(api: APIBench, path: str, authorization: str) -> None:
    response = await api.http.get(path, headers=[(b"authorization", authorization.encode())])

    assert response.status_code in (401, 403)
    assert error_of(response)["code"] in ("invalid_key", "forbidden")


async def test_tokens_are_refused_on_the_other_plane(api: APIBench) -> None:
    agent = await api.agent()

    for method, path in guarded_routes(api.app):
        admin_plane = path.startswith("/api/v1")
        token = agent.secret if admin_plane else ADMIN_TOKEN
        response = await api.http.request(method, path, headers={"authorization": f"Bearer {token}"})
        assert (response.status_code, error_of(response)["code"]) == (403, "forbidden"), (method, path)


async def test_a_disabled_key_is_refused_on_every_route(api: APIBench) -> None:
    agent = await api.agent()
    await api.disable(agent)

    for method, path in guarded_routes(api.app):
        if path.startswith("/v1/"):
            response = await api.http.request(method, path, headers=agent.headers)
            assert (response.status_code, error_of(response)["code"]) == (403, "key_disabled"), (method, path)


async def test_a_malformed_filter_is_refused_on_every_route(api: APIBench) -> None:
    agent = await api.agent()
    headers = {**agent.headers, "x-mcp-include-tools": "files-re*"}

    for method, path in guarded_routes(api.app):
        if path.startswith("/v1/"):
            content = b"not json" if method == "POST" else None
            response = await api.http.request(method, path, headers=headers, content=content)
            assert (response.status_code, error_of(response)["code"]) == (400, "invalid_filter"), path


async def test_a_malformed_filter_reveals_nothing_to_strangers(api: APIBench) -> None:
    headers = {"authorization": "Bearer sgk_wrong", "x-mcp-include-tools": "files-re*"}

    response = await api.http.get("/v1/mcp/tools?explain=maybe", headers=headers)

    assert (response.status_code, error_of(response)["code"]) == (401, "invalid_key")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/mcp/tools/", "/api/v1/nothing", "/v2/%00", "/docs/x"])
async def test_an_unknown_path_is_not_found(api: APIBench, path: str) -> None:
    response = await api.http.get(path)

    assert (response.status_code, error_of(response)["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/rounds"), ("DELETE", "/v1/mcp/tools"), ("PUT", "/healthz")]
)
async def test_an_unknown_method_is_not_allowed(api: APIBench, method: str, path: str) -> None:
    response = await api.http.request(method, path)

    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"]
    assert error_of(response)["details"] == {"path": path, "method": method}


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b"", 0),
        (b"{", 1),
        (b'{"a":1,"a":2}', 7),
        (b'{"a":NaN}', 5),
        (b"{} {}", 3),
        (b'{"a":"\xff"}', 6),
        (b"[" * 100 + b"]" * 100, 64),
        (b'{"a":"\\ud800"}', 5),
    ],
)
async def test_malformed_json_is_refused_with_its_position(api: APIBench, body: bytes, position: int) -> None:
    agent = await api.agent()

    response = await api.http.post("/v1/mcp/tool/execute", headers=agent.headers, content=body)

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")
    assert error_of(response)["details"]["position"] == position


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_a_body_of_another_type_is_refused(api: APIBench, media_type: str) -> None:
    agent = await api.agent()

    response = await api.http.post(
        "/v1/rounds", headers={**agent.headers, "content-type": media_type}, content=b"{}"
    )

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")


async def test_a_request_id_is_kept_if_well_formed_and_made_otherwise(api: APIBench) -> None:
    kept = await api.http.get("/healthz", headers={"x-request-id": "abc-1.2_3"})
    made = [
        (await api.http.get("/nothing", headers={"x-request-id": value})).headers["x-request-id"]
        for value in ("", "a b", "x" * 65, "<script>")
    ]

    assert kept.headers["x-request-id"] == "abc-1.2_3"
    assert all(str(uuid.UUID(value)) == value for value in made)


@pytest.mark.parametrize(
    ("language", "begins", "content_language"),
    [
        (None, "There is no tool", "en"),
        ("fr", "There is no tool", "en"),
        ("zh-CN", "本次请求中不存在工具", "zh-CN"),
        ("en;q=0.1, zh;q=0.9", "本次请求中不存在工具", "zh-CN"),
        ("zh-CN;q=0.2, en", "There is no tool", "en"),
    ],
)
async def test_messages_follow_accept_language(
    api: APIBench, language: str | None, begins: str, content_language: str
) -> None:
    agent = await api.agent()
    headers = {} if language is None else {"accept-language": language}

    response = await execute(api, agent, tool_call("a-b"), headers)

    assert error_of(response)["message"].startswith(begins)
    assert response.headers["content-language"] == content_language
    assert "accept-language" in response.headers["vary"].lower()


async def test_the_documents_own_example_of_a_refusal(api: APIBench) -> None:
    plan = ConnectionPlan(name="business_search", tools={"delete_record": {}}, tools_to_execute=[])
    agent = await api.agent(plan)

    response = await execute(
        api, agent, tool_call("business_search-delete_record"), {"accept-language": "zh-CN"}
    )

    error = error_of(response)
    assert response.status_code == 403
    assert (error["code"], error["message"]) == (
        "tool_not_allowed",
        "工具 business_search-delete_record 不在本次请求的可用范围内",
    )


async def test_refusals_are_audited_with_actor_tool_level_and_reason(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan(tools_to_execute=["read"]))
    await execute(api, agent, tool_call("files-write"), {"x-request-id": "r-1"})

    [row] = await refusals(api)

    assert (row.actor, row.request_id, row.tool_name, row.code) == (
        agent.key_id,
        "r-1",
        "files-write",
        "tool_not_allowed",
    )
    assert (row.data["level"], row.data["reason"]) == ("connection", "not_on_connection_list")
    assert (row.data["status"], row.data["path"]) == (403, "/v1/mcp/tool/execute")


async def test_what_strangers_cause_to_be_written_is_bounded(api: APIBench) -> None:
    for _ in range(40):
        await api.http.get("/v1/mcp/tools")

    rows = await refusals(api)

    assert 10 <= len(rows) < 40
    assert {row.actor for row in rows} == {"unknown"}


async def test_what_nobody_expected_is_a_plain_internal_error(
    api: APIBench, caplog: pytest.LogCaptureFixture
) -> None:
    @api.app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a secret that must not be shown")

    response = await api.http.get("/broken", headers={"x-request-id": "r-9", "accept-language": "zh-CN"})

    assert (response.status_code, error_of(response)["code"]) == (500, "internal_error")
    assert error_of(response)["message"].startswith("内部错误")
    assert "secret" not in response.text
    assert "r-9" in caplog.text


async def test_ids_with_odd_characters_never_reach_the_database(api: APIBench) -> None:
    agent = await api.agent()
    for text in ("%00", "x", "..", "'", "%F0%9F%98%80", "1" * 3000):
        for path in (f"/v1/rounds/{text}", f"/v1/invocations/{text}/result"):
            response = await api.http.get(path, headers=agent.headers)
            assert response.status_code == 404, (path, response.text)
        for path in (f"/api/v1/keys/{text}", f"/api/v1/mcp/clients/{text}", f"/api/v1/rounds/{text}"):
            response = await api.operator("GET", path)
            assert response.status_code == 404, (path, response.text)


async def test_an_unknown_but_well_formed_id_is_not_found(api: APIBench) -> None:
    agent, unknown = await api.agent(), new_id()

    response = await api.http.get(f"/v1/rounds/{unknown}", headers=agent.headers)

    assert error_of(response)["details"] == {"what": "round", "name": unknown}


async def test_every_route_documents_its_refusals(api: APIBench) -> None:
    document: dict[str, Any] = api.app.openapi()
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path == "/healthz":
                continue
            statuses = set(operation["responses"])
            assert {"503"} <= statuses, (method, path)
            if path not in OPEN:
                assert {"400", "401", "403", "500"} <= statuses, (method, path)
            for status, answer in operation["responses"].items():
                if status >= "400":
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/ErrorBody"}, (method, path, status)


async def test_every_reference_of_the_document_resolves(api: APIBench) -> None:
    document: dict[str, Any] = api.app.openapi()
    names = set(document["components"]["schemas"])

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                assert value["$ref"].removeprefix("#/components/schemas/") in names, value
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(document)


async def test_operation_ids_are_unique(api: APIBench) -> None:
    ids = [
        route.operation_id
        for route in api.app.routes
        if isinstance(route, APIRoute) and route.include_in_schema
    ]
    assert len(ids) == len(set(ids))
    assert None not in ids


async def test_the_documentation_page_loads_nothing_from_elsewhere(api: APIBench) -> None:
    page = await api.http.get("/docs")
    document = await api.http.get("/openapi.json")

    assert page.status_code == 200
    assert "<script" not in page.text
    assert "://" not in page.text
    assert all(path in page.text for path in document.json()["paths"])


async def test_a_body_longer_than_the_limit_is_refused(api: APIBench) -> None:
    agent = await api.agent()
    too_long = b" " * (api.deps.settings.body_max_bytes + 1)

    response = await api.http.post("/v1/rounds", headers=agent.headers, content=too_long)

    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
    assert error_of(response)["details"] == {"limit_bytes": api.deps.settings.body_max_bytes}


async def test_a_chunked_body_is_given_up_as_soon_as_it_is_too_long(api: APIBench) -> None:
    agent, sent = await api.agent(), 0

    async def chunks() -> Any:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b" " * 1_000_000

    response = await api.http.post("/v1/rounds", headers=agent.headers, content=chunks())

    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
    assert sent <= api.deps.settings.body_max_bytes // 1_000_000 + 2


async def test_filters_apply_to_rounds_as_to_listing(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())

    response = await execute(api, agent, tool_call("files-read"), {"x-mcp-include-tools": "files-write"})
    empty = await start_round(
        api, agent, [tool_call("files-read")], headers={"x-mcp-include-tools": "files-re*"}
    )

    assert (response.status_code, error_of(response)["code"]) == (403, "tool_not_allowed")
    assert (empty.status_code, error_of(empty)["code"]) == (400, "invalid_filter")
