"""Console sessions: the cookie in place of the admin token, and what it is not good for."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select, update

from api.console.sessions import COOKIE
from models.audit import AuditEvent, AuditKind
from models.base import utc_now
from models.console_session import ConsoleSession
from models.database import WriteSession
from tests.api.bench import ADMIN_TOKEN, APIBench, api_bench, error_of, make_settings
from tests.support.world import ConnectionPlan

pytestmark = pytest.mark.anyio

SESSION = "/api/v1/console/session"


async def log_in(api: APIBench, token: str = ADMIN_TOKEN) -> httpx.Response:
    answer = await api.http.post(SESSION, json={"admin_token": token})
    api.http.cookies.clear()
    return answer


async def cookie_of(api: APIBench) -> dict[str, str]:
    """Log in and return the header that a curl sends."""
    answer = await log_in(api)
    assert answer.status_code == 201, answer.text
    return {"cookie": f"{COOKIE}={answer.cookies[COOKIE]}"}


async def test_the_put_of_the_gateway_document_works_with_the_cookie_alone(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan("knowledge_base", {"search": {}, "get_article": {}}))
    await api.agent(ConnectionPlan("ticketing"), name="other")
    cookie = await cookie_of(api)
    configs = [
        {"client": "knowledge_base", "tools_to_execute": ["search", "get_article"]},
        {"client": "ticketing", "tools_to_execute": ["*"]},
    ]

    answer = await api.http.put(
        f"/api/v1/mcp/keys/{agent.key_id}/tools",
        headers={"content-type": "application/json", **cookie},
        json={"mcp_configs": configs},
    )

    assert (answer.status_code, answer.json()["mcp_configs"]) == (200, configs)


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(api: APIBench) -> None:
    answer = await log_in(api)
    parts = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"httponly", "samesite=strict", "path=/api/v1", "max-age=28800"} <= parts
    assert "secure" not in parts

    secure = await api.http.post("https://gateway" + SESSION, json={"admin_token": ADMIN_TOKEN})
    assert "secure" in secure.headers["set-cookie"].lower()


@pytest.mark.parametrize("token", ["sga_wrong", "", "x" * 513])
async def test_a_wrong_token_opens_nothing(api: APIBench, token: str) -> None:
    answer = await log_in(api, token)
    assert answer.status_code in (400, 401)
    assert "set-cookie" not in answer.headers
    assert ADMIN_TOKEN not in answer.text


async def test_logging_out_ends_the_session_for_every_holder(api: APIBench) -> None:
    cookie = await cookie_of(api)
    assert (await api.http.get(SESSION, headers=cookie)).status_code == 200

    out = await api.http.delete(SESSION, headers=cookie)

    assert out.status_code == 204
    assert 'sluicegate_console=""' in out.headers["set-cookie"]
    assert (await api.http.get("/api/v1/keys", headers=cookie)).status_code == 401


async def test_a_session_ends_by_itself(api: APIBench) -> None:
    cookie = await cookie_of(api)

    def expire(session: WriteSession) -> None:
        session.execute(update(ConsoleSession).values(expires_at=utc_now() - timedelta(seconds=1)))

    await api.database.write(expire)
    assert (await api.http.get("/api/v1/keys", headers=cookie)).status_code == 401
    # The next login sweeps what has expired.
    await cookie_of(api)
    rows = await api.database.read(lambda session: session.scalars(select(ConsoleSession)).all())
    assert len(rows) == 1


async def test_another_admin_token_ends_every_session(api: APIBench, tmp_path: Path) -> None:
    cookie = await cookie_of(api)

    def reopen(session: WriteSession) -> None:
        session.execute(update(ConsoleSession).values(admin_token_hash="0" * 64))

    await api.database.write(reopen)
    assert (await api.http.get("/api/v1/keys", headers=cookie)).status_code == 401


async def test_a_session_holds_in_every_process_on_the_database(api: APIBench, tmp_path: Path) -> None:
    cookie = await cookie_of(api)
    async with api_bench(make_settings(tmp_path, ""), None, api.database) as other:
        assert (await other.http.get("/api/v1/keys", headers=cookie)).status_code == 200


FOREIGN: Mapping[str, dict[str, str]] = {
    "another origin": {"origin": "https://evil.example"},
    "another port of this host": {"origin": "http://gateway:81"},
    "no origin that can be named": {"origin": "null"},
    "another site": {"sec-fetch-site": "cross-site"},
    "another host of the site": {"sec-fetch-site": "same-site"},
    "a form": {"content-type": "application/x-www-form-urlencoded"},
    "plain text": {"content-type": "text/plain"},
}


@pytest.mark.parametrize("case", FOREIGN)
async def test_a_page_of_another_site_can_do_nothing_with_the_cookie(api: APIBench, case: str) -> None:
    cookie = await cookie_of(api)
    body = b'{"name": "made by another site"}'
    headers = {"content-type": "application/json", **cookie, **FOREIGN[case]}

    answer = await api.http.post("/api/v1/keys", content=body, headers=headers)

    assert (answer.status_code, error_of(answer)["code"]) == (403, "forbidden")
    assert (await api.operator("GET", "/api/v1/keys")).json()["items"] == []
    if "content-type" not in FOREIGN[case]:
        read = await api.http.get("/api/v1/keys", headers={**cookie, **FOREIGN[case]})
        assert read.status_code == 403


async def test_our_own_page_and_programs_may_use_the_cookie(api: APIBench) -> None:
    cookie = await cookie_of(api)
    own: list[dict[str, str]] = [
        {"origin": "http://gateway", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {},
    ]
    for number, headers in enumerate(own):
        body = {"name": f"key {number}"}
        made = await api.http.post("/api/v1/keys", json=body, headers={**cookie, **headers})
        assert made.status_code == 201, made.text
        key_id = made.json()["id"]
        # No body and no kind of body: what a page of our own sends to delete something.
        deleted = await api.http.delete(f"/api/v1/keys/{key_id}", headers={**cookie, **headers})
        assert deleted.status_code == 204


async def test_another_site_cannot_log_somebody_in(api: APIBench) -> None:
    answer = await api.http.post(
        SESSION, json={"admin_token": ADMIN_TOKEN}, headers={"origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_the_cookie_is_nothing_on_the_data_plane_and_a_key_opens_no_session(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())
    cookie = await cookie_of(api)

    assert (await api.http.get("/v1/mcp/tools", headers=cookie)).status_code == 401
    assert (await api.http.post("/mcp", json={}, headers=cookie)).status_code == 401
    assert (await log_in(api, agent.secret)).status_code == 401
    both = await api.http.get("/api/v1/keys", headers={**cookie, **agent.headers})
    assert (both.status_code, error_of(both)["code"]) == (403, "forbidden")


async def test_logging_in_and_out_is_audited_without_the_secrets(api: APIBench) -> None:
    cookie = await cookie_of(api)
    await api.http.delete(SESSION, headers=cookie)
    await log_in(api, "sga_wrong-and-secret")

    rows = await api.database.read(lambda session: session.scalars(select(AuditEvent)).all())

    told = [(row.kind, row.data.get("change"), row.code) for row in rows]
    assert told == [
        (AuditKind.CONTROL_CHANGE, "console_login", None),
        (AuditKind.CONTROL_CHANGE, "console_logout", None),
        (AuditKind.REQUEST_REFUSED, None, "invalid_key"),
    ]
    text = str([row.data for row in rows])
    assert cookie["cookie"].partition("=")[2] not in text
    assert "sga_" not in text


async def test_the_page_loads_only_its_own_files(api: APIBench) -> None:
    page = await api.http.get("/console")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in ("console.js", "console.css"):
        assert f"/console/{name}" in page.text
        assert (await api.http.get(f"/console/{name}")).status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<style" not in page.text
    assert "onclick" not in page.text
