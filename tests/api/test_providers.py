"""Providers on the control plane: what is stored, what is shown, and that a credential never is."""

from typing import Any

import pytest
from sqlalchemy import select, text

from models.audit import AuditEvent
from models.provider import Provider, credential_purpose
from tests.api.bench import APIBench, error_of
from tests.api.chat_bench import CREDENTIAL, MODEL, register
from tests.support.fake_provider import UPSTREAM_MODEL

pytestmark = pytest.mark.anyio

URL = "http://127.0.0.1:9/v1"
PATH = "/api/v1/providers"


async def test_a_provider_is_shown_with_its_models_and_without_its_credential(api: APIBench) -> None:
    prices = {"input_price": "0.150000", "output_price": "60", "cached_input_price": "0.000001"}
    made = await register(api, URL, model={**prices, "max_tools": 128}, answer_timeout_s=30)

    shown = made.json()
    assert made.headers["location"] == f"{PATH}/fake"
    assert made.headers["etag"] == shown["etag"]
    assert CREDENTIAL not in made.text
    assert {name: shown[name] for name in ("slug", "base_url", "network", "enabled", "has_credential")} == {
        "slug": "fake",
        "base_url": URL,
        "network": "loopback",
        "enabled": True,
        "has_credential": True,
    }
    assert (shown["answer_timeout_s"], shown["idle_timeout_s"]) == (30, 120)
    assert shown["model_aliases"] == {
        MODEL: {
            "upstream_model": UPSTREAM_MODEL,
            "supports_tools": True,
            "max_tools": 128,
            "max_output_tokens": None,
            "input_price": "0.15",
            "cached_input_price": "0.000001",
            "output_price": "60",
        }
    }
    assert (await api.operator("GET", f"{PATH}/fake")).json() == shown
    assert (await api.operator("GET", PATH)).json() == {"items": [shown], "next_cursor": None}


async def test_a_credential_is_sealed_for_its_row_and_stands_nowhere_in_clear(api: APIBench) -> None:
    await register(api, URL)
    await api.operator("PATCH", f"{PATH}/fake", json={"credential": "another-secret-value"})

    row = await api.database.read(lambda session: session.scalars(select(Provider)).one())
    audit = await api.database.read(
        lambda session: str([one.data for one in session.scalars(select(AuditEvent))])
    )
    assert row.sealed_credential is not None
    assert b"another-secret-value" not in row.sealed_credential
    opened = api.deps.vault.open(row.sealed_credential, credential_purpose(row.id))
    assert opened == b"another-secret-value"
    assert CREDENTIAL not in audit
    assert "another-secret-value" not in audit


async def test_an_edit_keeps_what_it_does_not_name(api: APIBench) -> None:
    before = (await register(api, URL)).json()

    # What was read is written back, as consoles do: nothing is lost by it.
    settings = {name: before[name] for name in ("base_url", "network", "enabled", "model_aliases")}
    same = await api.operator("PATCH", f"{PATH}/fake", json=settings)
    assert same.json()["etag"] == before["etag"]
    assert same.json()["has_credential"] is True

    removed = await api.operator("PATCH", f"{PATH}/fake", json={"credential": None, "model_aliases": {}})
    assert (removed.json()["has_credential"], removed.json()["model_aliases"]) == (False, {})


async def test_an_edit_of_something_older_is_refused(api: APIBench) -> None:
    before = (await register(api, URL)).json()
    match = {"if-match": before["etag"]}
    body = {"credential": "a-new-credential"}

    first = await api.operator("PATCH", f"{PATH}/fake", json=body, headers=match)
    second = await api.operator("PATCH", f"{PATH}/fake", json=body, headers=match)
    third = await api.operator("DELETE", f"{PATH}/fake", headers=match)

    assert (first.status_code, second.status_code, third.status_code) == (200, 412, 412)


async def test_a_neutral_name_belongs_to_one_provider(api: APIBench) -> None:
    await register(api, URL)
    body = {"slug": "other", "base_url": URL, "network": "loopback"}
    alias = {"model_aliases": {MODEL: {"upstream_model": "x"}}}

    taken = await api.operator("POST", PATH, json={**body, **alias})
    await api.operator("POST", PATH, json=body)
    edited = await api.operator("PATCH", f"{PATH}/other", json=alias)
    again = await api.operator("POST", PATH, json=body)

    for response, details in (
        (taken, {"what": "model", "name": MODEL}),
        (edited, {"what": "model", "name": MODEL}),
        (again, {"what": "provider", "name": "other"}),
    ):
        assert (response.status_code, error_of(response)["code"]) == (409, "conflict")
        assert error_of(response)["details"] == details
    assert (await api.operator("GET", f"{PATH}/other")).json()["model_aliases"] == {}


async def test_a_deleted_provider_takes_its_models_along(api: APIBench) -> None:
    made = (await register(api, URL)).json()

    gone = await api.operator("DELETE", f"{PATH}/fake")

    assert gone.json() == {"id": made["id"], "models": [MODEL]}
    assert (await api.operator("GET", f"{PATH}/fake")).status_code == 404
    left = await api.database.read(
        lambda session: session.execute(text("SELECT count(*) FROM model_aliases")).scalar_one()
    )
    assert left == 0


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("slug", "Upper", 400),
        ("slug", "", 400),
        ("base_url", "ftp://x/v1", 400),
        ("base_url", "http://user:pw@x/v1", 400),
        ("credential", "", 400),
        ("credential", "two\nlines", 400),
        ("credential", "schlüssel", 400),
        ("credential_header", "bad header", 400),
        ("credential_header", "content-length", 422),
        ("network", "moon", 400),
        ("network", "public", 422),
        ("answer_timeout_s", 0, 400),
        ("model_aliases", {"a b": {"upstream_model": "x"}}, 400),
        ("model_aliases", {"a": {}}, 400),
        ("model_aliases", {"a": {"upstream_model": "x", "input_price": "-1"}}, 400),
        ("model_aliases", {"a": {"upstream_model": "x", "input_price": "1e3"}}, 400),
        ("model_aliases", {"a": {"upstream_model": "x", "surprise": 1}}, 400),
        ("surprise", 1, 400),
    ],
)
async def test_what_cannot_be_used_is_refused(api: APIBench, field: str, value: Any, status: int) -> None:
    body = {"slug": "fake", "base_url": URL, "network": "loopback", field: value}

    response = await api.operator("POST", PATH, json=body)

    assert (response.status_code, error_of(response)["code"]) == (status, "invalid_request"), response.text
    assert (await api.operator("GET", PATH)).json()["items"] == []


async def test_providers_are_listed_in_pages(api: APIBench) -> None:
    for slug in ("c", "a", "b"):
        await api.operator("POST", PATH, json={"slug": slug, "base_url": URL, "network": "loopback"})

    first = (await api.operator("GET", f"{PATH}?limit=2")).json()
    rest = (await api.operator("GET", f"{PATH}?limit=2&cursor={first['next_cursor']}")).json()

    assert [one["slug"] for one in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["next_cursor"] is None
