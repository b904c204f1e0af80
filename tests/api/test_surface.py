"""The surface: credentials that are not interchangeable, limits, and headers on every answer."""

import ast
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

import api as api_package
from api.console.auth_failures import AuthFailureLimit
from api.console.security_headers import HEADERS
from models.base import utc_now
from models.database import WriteSession
from models.key import KeySecret
from tests.api.bench import ADMIN_TOKEN, APIBench, api_bench, error_of, execute, make_settings, tool_call
from tests.support.world import ConnectionPlan

pytestmark = pytest.mark.anyio

ROOT = Path(api_package.__file__).parents[1]


@pytest.fixture
async def strict_api(database_url: str, tmp_path: Path) -> AsyncIterator[APIBench]:
    """An app in which three failures a minute are enough."""
    settings = make_settings(tmp_path, database_url, auth_failures_per_minute=3)
    async with api_bench(settings, None) as bench:
        yield bench


async def test_no_credential_is_good_for_the_other_plane(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())
    admin = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    tried = 0
    for path, operations in api.app.openapi()["paths"].items():
        headers = agent.headers if path.startswith("/api/v1/") else admin
        if not path.startswith(("/api/v1/", "/v1/")) or path == "/api/v1/console/session":
            continue
        for method in operations:
            answer = await api.http.request(method, path.replace("{", "").replace("}", ""), headers=headers)
            assert (answer.status_code, error_of(answer)["code"]) == (403, "forbidden"), (method, path)
            tried += 1
    mcp = await api.http.post("/mcp", json={}, headers=admin)
    assert (mcp.status_code, error_of(mcp)["code"]) == (403, "forbidden")
    assert tried > 20


@pytest.mark.parametrize("spoiled", ["{}x", "x{}", "{} {}", "{}\x00"])
async def test_a_secret_that_is_nearly_right_is_wrong(api: APIBench, spoiled: str) -> None:
    agent = await api.agent(ConnectionPlan())
    token = spoiled.format(agent.secret, agent.secret)
    headers: Any = {"authorization": f"Bearer {token}".encode()}
    assert (await api.http.get("/v1/mcp/tools", headers=headers)).status_code == 401


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Basic {}", "{}", "Token {}", "bearer  {}"],
    ids=["empty", "no token", "blank token", "another scheme", "no scheme", "unknown scheme", "lower case"],
)
async def test_only_a_bearer_token_says_who_calls(api: APIBench, value: str) -> None:
    agent = await api.agent(ConnectionPlan())
    headers = {"authorization": value.format(agent.secret)}
    answer = await api.http.get("/v1/mcp/tools", headers=headers)
    assert answer.status_code == (200 if value.startswith("bearer ") else 401)
    elsewhere: Mapping[str, str] = {"x-api-key": agent.secret, "cookie": f"key={agent.secret}"}
    assert (await api.http.get("/v1/mcp/tools", headers=elsewhere)).status_code == 401
    assert (await api.http.get(f"/v1/mcp/tools?key={agent.secret}")).status_code == 401


async def test_rotation_lets_both_secrets_in_until_the_overlap_ends(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())
    rotated = await api.operator("POST", f"/api/v1/keys/{agent.key_id}/secrets", json={"overlap_s": 60})
    fresh = {"authorization": f"Bearer {rotated.json()['secret']}"}

    async def statuses() -> list[int]:
        tools = [await api.http.get("/v1/mcp/tools", headers=headers) for headers in (agent.headers, fresh)]
        return [answer.status_code for answer in tools]

    assert await statuses() == [200, 200]

    def overlap_ends(session: WriteSession) -> None:
        ended = utc_now() - timedelta(seconds=1)
        session.execute(update(KeySecret).where(KeySecret.expires_at.is_not(None)).values(expires_at=ended))

    await api.database.write(overlap_ends)
    assert await statuses() == [401, 200]


async def test_a_rotation_without_overlap_ends_the_old_secret_at_once(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())
    await api.operator("POST", f"/api/v1/keys/{agent.key_id}/secrets", json={})
    assert (await api.http.get("/v1/mcp/tools", headers=agent.headers)).status_code == 401
    assert (await api.http.post("/mcp", json={}, headers=agent.headers)).status_code == 401


def comparisons(tree: ast.AST) -> Iterator[ast.Compare]:
    """Yield `==`, `!=` and `in` of Python; those that SQLAlchemy turns into SQL stand in a `where`."""
    for node in ast.iter_child_nodes(tree):
        is_where = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"where", "join"}
        )
        if isinstance(node, ast.Compare):
            yield node
        if not is_where:
            yield from comparisons(node)
        else:
            yield from comparisons(node.func)  # type: ignore[attr-defined]


def is_secret(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.endswith(("secret", "secret_hash", "token_hash", "token", "hint_hash"))


def test_secrets_are_compared_in_constant_time_alone() -> None:
    looked_at = 0
    wrong: list[str] = []
    # Verification searches texts for a secret of its own making, which decides about nobody's access.
    sources = [*(ROOT / "api").rglob("*.py"), *(ROOT / "models").rglob("*.py")]
    for path in (path for path in sources if "verification" not in path.parts):
        for compare in comparisons(ast.parse(path.read_text("utf-8"))):
            operands = [compare.left, *compare.comparators]
            looked_at += 1
            of_itself = any(ast.unparse(compare.left) in ast.unparse(other) for other in compare.comparators)
            # What stands in the source is no secret: its form may be looked at.
            of_itself = of_itself or isinstance(compare.left, ast.Constant)
            by_value = not of_itself and any(
                isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in compare.ops
            )
            if by_value and any(map(is_secret, operands)) and "lease_token" not in ast.unparse(compare):
                wrong.append(f"{path.relative_to(ROOT)}:{compare.lineno} {ast.unparse(compare)}")
    assert wrong == []
    assert looked_at > 100
    assert "compare_digest" in (ROOT / "models" / "key.py").read_text("utf-8")
    assert is_secret(ast.parse("row.secret_hash", mode="eval").body)


BODY_ROUTES = (
    ("POST", "/v1/mcp/tool/execute"),
    ("POST", "/v1/rounds"),
    ("POST", "/mcp"),
    ("POST", "/api/v1/console/session"),
    ("POST", "/api/v1/keys"),
    ("POST", "/api/v1/mcp/clients"),
    ("PUT", "/api/v1/policies/tool-overlays"),
)


@pytest.mark.parametrize(("method", "path"), BODY_ROUTES)
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in chunks"])
async def test_a_body_is_read_up_to_the_limit_and_no_further(
    database_url: str, tmp_path: Path, method: str, path: str, *, announced: bool
) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1024
            yield b" " * 1024

    async with api_bench(make_settings(tmp_path, database_url, body_max_bytes=4096), None) as api:
        agent = await api.agent(ConnectionPlan())
        plane = {"authorization": f"Bearer {ADMIN_TOKEN}"} if path.startswith("/api") else agent.headers
        length = {"content-length": "102400"} if announced else {}
        headers = {**plane, **length, "content-type": "application/json"}
        answer = await api.http.request(method, path, headers=headers, content=chunks())

    assert (answer.status_code, error_of(answer)["code"]) == (413, "body_too_large")
    assert sent <= (1024 if announced else 6 * 1024)


def refused_by_limit(answer: httpx.Response) -> bool:
    return answer.status_code == 429 and error_of(answer)["code"] == "too_many_failures"


async def test_an_address_that_fails_too_often_waits_while_known_callers_go_on(strict_api: APIBench) -> None:
    api = strict_api
    known, late = await api.agent(ConnectionPlan()), await api.agent(None, name="late")
    assert (await api.http.get("/v1/mcp/tools", headers=known.headers)).status_code == 200
    wrong = {"authorization": "Bearer sgk_wrong"}
    guesses = [await api.http.get("/v1/mcp/tools", headers=wrong) for _ in range(4)]

    assert [answer.status_code for answer in guesses] == [401, 401, 401, 429]
    assert refused_by_limit(guesses[-1])
    assert int(guesses[-1].headers["retry-after"]) == error_of(guesses[-1])["details"]["retry_after_s"]
    login = await api.http.post("/api/v1/console/session", json={"admin_token": "sga_guess"})
    assert refused_by_limit(login)
    assert refused_by_limit(await api.http.post("/mcp", json={}, headers=wrong))
    assert refused_by_limit(await api.http.get("/v1/mcp/tools", headers=late.headers))
    assert (await api.http.get("/v1/mcp/tools", headers=known.headers)).status_code == 200


async def test_a_guess_that_a_public_page_saw_is_not_known(strict_api: APIBench) -> None:
    api = strict_api
    guess = {"authorization": "Bearer sgk_guess"}
    assert (await api.http.get("/healthz", headers=guess)).status_code == 200
    for _ in range(3):
        await api.http.get("/v1/mcp/tools", headers={"authorization": "Bearer sgk_wrong"})
    assert refused_by_limit(await api.http.get("/v1/mcp/tools", headers=guess))


async def served(limit: AuthFailureLimit, address: str, status: int, *, actor: str | None = None) -> int:
    """Send one request through the limit to an app that answers `status`."""
    seen: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen.append(message["status"])

    headers = [(b"authorization", b"Bearer of " + address.encode())]
    state = {"request_id": "r", "actor": actor}
    scope = {"type": "http", "client": (address, 1), "headers": headers, "state": state, "answers": status}
    await limit(scope, receive, send)
    return seen[0]


async def answering(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": scope["answers"], "headers": []})


async def test_failures_come_back_with_time_and_count_for_each_address_alone() -> None:
    now = [0.0]
    limit = AuthFailureLimit(answering, 6, clock=lambda: now[0])

    assert [await served(limit, "192.0.2.1", 401) for _ in range(7)] == [401] * 6 + [429]
    assert await served(limit, "192.0.2.2", 401) == 401
    now[0] = 9.9
    assert await served(limit, "192.0.2.1", 401) == 429
    now[0] = 10.1
    assert [await served(limit, "192.0.2.1", 401) for _ in range(2)] == [401, 429]
    now[0] = 1000.0
    assert [await served(limit, "192.0.2.1", 401) for _ in range(7)] == [401] * 6 + [429]


async def test_one_network_of_ipv6_is_one_address_and_a_403_is_no_failure() -> None:
    limit = AuthFailureLimit(answering, 2, clock=lambda: 0.0)
    assert [await served(limit, f"2001:db8::{n}", 401) for n in range(3)] == [401, 401, 429]
    assert await served(limit, "2001:db8:0:1::1", 401) == 401
    assert [await served(limit, "192.0.2.1", 403) for _ in range(3)] == [403, 403, 403]


async def test_a_credential_that_was_valid_is_known_for_a_while_only() -> None:
    now = [0.0]
    limit = AuthFailureLimit(answering, 1, clock=lambda: now[0])
    assert await served(limit, "192.0.2.1", 200, actor="key") == 200
    assert await served(limit, "192.0.2.1", 401) == 401
    assert await served(limit, "192.0.2.1", 200, actor="key") == 200
    now[0] = 10.0
    assert await served(limit, "192.0.2.1", 401) == 401


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/docs", 200),
        ("GET", "/console", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/v1/mcp/tools", 401),
        ("GET", "/api/v1/keys", 401),
        ("POST", "/mcp", 401),
        ("GET", "/nowhere", 404),
        ("DELETE", "/healthz", 405),
    ],
)
async def test_every_answer_carries_the_security_headers(
    api: APIBench, method: str, path: str, status: int
) -> None:
    answer = await api.http.request(method, path)
    assert answer.status_code == status
    for name, value in HEADERS.items():
        if name == "content-security-policy":
            assert answer.headers[name].startswith(value)
        else:
            assert answer.headers[name] == value
    assert "strict-transport-security" not in answer.headers
    secure = await api.http.request(method, f"https://gateway{path}")
    assert secure.headers["strict-transport-security"].startswith("max-age=")
    assert "server" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


async def test_an_answer_that_nobody_expected_carries_them_too(api: APIBench) -> None:
    @api.app.get("/breaks")
    async def breaks() -> None:
        raise ZeroDivisionError

    answer = await api.http.get("/breaks")
    assert (answer.status_code, error_of(answer)["code"]) == (500, "internal_error")
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_no_refusal_repeats_the_secret_that_was_sent(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())
    await api.disable(agent)
    answers = [
        await execute(api, agent, tool_call("files-read")),
        await api.http.get("/api/v1/keys", headers=agent.headers),
        await api.http.get(f"/v1/rounds/{agent.secret}", headers=agent.headers),
    ]
    audit = (await api.operator("GET", "/api/v1/audit")).text
    for text in [audit, *(answer.text for answer in answers[:2])]:
        assert agent.secret not in text
