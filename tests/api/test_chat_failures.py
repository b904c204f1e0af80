"""What callers are told when a provider fails: a code for each kind, whether to try again, no secrets."""

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import select, text

from models.audit import AuditEvent, AuditKind
from models.database import WriteSession
from models.provider import Provider
from tests.api.bench import APIBench, error_of
from tests.api.chat_bench import CREDENTIAL, chat, register
from tests.support.fake_provider import answer, answers, completion, error, fake_provider
from tests.support.raw_server import Peer, RawRequest, http

pytestmark = pytest.mark.anyio

REFUSALS = [
    (429, error("slow down", "rate_limit_exceeded"), 429, "provider_rate_limited", True),
    (
        429,
        error("You exceeded your current quota", "insufficient_quota"),
        502,
        "provider_credits_exhausted",
        False,
    ),
    (402, error("pay"), 502, "provider_credits_exhausted", False),
    (400, error("Your credit balance is too low"), 502, "provider_credits_exhausted", False),
    (401, error("bad key", "invalid_api_key"), 502, "provider_auth_expired", False),
    (403, error("no"), 502, "provider_auth_expired", False),
    (500, error("oops"), 503, "provider_overloaded", True),
    (503, "text", 503, "provider_overloaded", True),
    (529, {}, 503, "provider_overloaded", True),
    (408, error("slow"), 502, "provider_unreachable", True),
    (400, error("maximum context length is 8192", "context_length_exceeded"), 400, "prompt_too_large", False),
    (413, error("prompt is too long"), 400, "prompt_too_large", False),
    (400, error("temperature must be at most 2"), 400, "provider_rejected", False),
    (422, {"message": "field required"}, 400, "provider_rejected", False),
    (404, error("The model does not exist"), 502, "provider_rejected", False),
    (301, {}, 502, "invalid_provider_response", True),
]


@pytest.mark.parametrize(("status", "body", "told", "code", "retryable"), REFUSALS)
async def test_each_refusal_has_its_code(
    api: APIBench, status: int, body: Any, told: int, code: str, retryable: object
) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(body, status, "Location: /elsewhere"))) as provider:
        await register(api, provider.base_url)
        response = await chat(api, agent)

    shown = error_of(response)
    assert (response.status_code, shown["code"], shown["retryable"]) == (told, code, retryable)
    assert len(provider.requests) == 1
    assert response.headers["x-sluicegate-tools"] == "0"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (http(200, b"", None), "invalid_provider_response"),
        (http(200, b"<html>login</html>", "text/html"), "invalid_provider_response"),
        (answer([]), "invalid_provider_response"),
        (answer({"choices": []}), "invalid_provider_response"),
        (answer({"choices": [{"index": 0}]}), "invalid_provider_response"),
        (answer({"choices": None}), "invalid_provider_response"),
        (http(200, b'{"choices":' + b"[" * 5000 + b"]" * 5000 + b"}"), "invalid_provider_response"),
        (http(200, b"not gzip", "application/json", "Content-Encoding: gzip"), "invalid_provider_response"),
        (answer(error("quota", "insufficient_quota")), "provider_credits_exhausted"),
    ],
    ids=["empty", "html", "array", "no choice", "no message", "null", "deep", "coding", "error"],
)
async def test_an_answer_that_is_none_is_told_as_such(api: APIBench, body: bytes, code: str) -> None:
    agent = await api.agent()
    async with fake_provider(answers(body)) as provider:
        await register(api, provider.base_url)
        response = await chat(api, agent)

    assert (response.status_code, error_of(response)["code"]) == (502, code)


@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [("reset", 502, "connection_lost"), ("close", 502, "connection_lost"), ("silence", 504, "read_timeout")],
)
async def test_a_provider_that_never_answers(api: APIBench, ending: str, status: int, reason: str) -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        if ending == "reset":
            peer.reset()
        elif ending == "close":
            peer.close()
        else:
            await peer.wait_closed()

    agent = await api.agent()
    async with fake_provider(script) as provider:
        await register(api, provider.base_url, answer_timeout_s=0.2 if ending == "silence" else 60)
        response = await chat(api, agent)

    shown = error_of(response)
    assert (response.status_code, shown["code"]) == (status, "provider_unreachable")
    assert shown["details"]["reason"] in (reason, "answer_timeout")
    assert shown["retryable"] is True


async def test_a_provider_that_is_not_there(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(b"")) as provider:
        url = provider.base_url
    await register(api, url)

    response = await chat(api, agent)

    shown = error_of(response)
    assert (response.status_code, shown["code"], shown["retryable"]) == (502, "provider_unreachable", True)
    assert shown["details"]["reason"] == "connect_failed"


async def test_an_address_of_another_network_is_never_dialled(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url, network="private")
        response = await chat(api, agent)

    shown = error_of(response)
    assert (response.status_code, shown["code"], shown["retryable"]) == (502, "provider_unreachable", False)
    assert shown["details"]["reason"] == "address_refused"
    assert provider.server.connections == 0


async def test_a_credential_that_cannot_be_opened_sends_nothing(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)

        def spoil(session: WriteSession) -> None:
            row = session.query(Provider).one()
            row.sealed_credential = b"v1" + bytes(60)

        await api.database.write(spoil)
        response = await chat(api, agent)

    assert error_of(response)["details"]["reason"] == "credential_unreadable"
    assert provider.requests == []


@pytest.mark.parametrize(
    ("given", "told"), [("3", "3"), ("0.5", None), ("Thu, 01 Jan 2015 00:00:00 GMT", "0"), ("soon", None)]
)
async def test_retry_after_is_passed_on_where_it_can_be_read(
    api: APIBench, given: str, told: str | None
) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(error("later"), 429, f"Retry-After: {given}"))) as provider:
        await register(api, provider.base_url)
        response = await chat(api, agent)

    assert response.headers["retry-after"] == (told or "1")


async def test_what_a_provider_says_of_our_credential_is_not_passed_on(api: APIBench) -> None:
    agent = await api.agent()
    for status, message in ((400, f"bad header Bearer {CREDENTIAL}"), (401, f"key {CREDENTIAL} is revoked")):
        async with fake_provider(answers(answer(error(message), status))) as provider:
            slug = f"p{status}"
            await register(api, provider.base_url, slug=slug)
            response = await chat(api, agent)
            await api.operator("DELETE", f"/api/v1/providers/{slug}")
        assert CREDENTIAL not in response.text

    query = select(AuditEvent)
    rows = await api.database.read(lambda session: [row.data for row in session.scalars(query)])
    assert CREDENTIAL not in str(rows)


async def test_what_the_caller_did_wrong_is_passed_on_and_what_we_did_is_not(api: APIBench) -> None:
    agent = await api.agent()
    cases: Mapping[int, bool] = {400: True, 422: True, 404: False}
    for status, is_callers in cases.items():
        async with fake_provider(answers(answer(error("temperature is 9"), status))) as provider:
            await register(api, provider.base_url, slug=f"p{status}")
            response = await chat(api, agent)
            await api.operator("DELETE", f"/api/v1/providers/p{status}")
        assert ("temperature is 9" in error_of(response)["message"]) == is_callers


async def test_a_failure_is_audited_with_what_an_operator_needs(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(error("no such model: secret-name"), 404))) as provider:
        await register(api, provider.base_url)
        await chat(api, agent)

    query = select(AuditEvent).order_by(AuditEvent.id)
    rows = await api.database.read(lambda session: list(session.scalars(query)))
    kinds = [row.kind for row in rows]
    assert kinds == [
        AuditKind.CONTROL_CHANGE,
        AuditKind.CHAT_SENT,
        AuditKind.CHAT_SETTLED,
        AuditKind.REQUEST_REFUSED,
    ]
    assert [row.code for row in rows[2:]] == ["provider_rejected"] * 2
    refused = rows[3].data
    assert (refused["provider"], refused["http_status"]) == ("fake", 404)
    assert refused["provider_message"] == "no such model: secret-name"


async def test_a_chat_that_cannot_be_written_down_is_not_sent(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        await api.database.write(lambda session: session.execute(text("DROP TABLE audit_events")))
        response = await chat(api, agent)

    # SQLite takes a missing table for a database that is away, PostgreSQL for a mistake of ours.
    assert (response.status_code, error_of(response)["code"]) in (
        (503, "database_busy"),
        (500, "internal_error"),
    )
    assert provider.requests == []
