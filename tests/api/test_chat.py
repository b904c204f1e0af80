"""Chat completions over HTTP: what the provider gets, what the caller gets back, and that nothing runs."""

import hashlib
import json
from typing import Any

import pytest
from sqlalchemy import select

from models.audit import AuditEvent, AuditKind
from models.invocation import ToolInvocation
from models.round import Round
from tests.api.bench import APIBench, error_of
from tests.api.chat_bench import CREDENTIAL, HELLO, MODEL, chat, register
from tests.support.fake_provider import (
    UPSTREAM_MODEL,
    answer,
    answers,
    completion,
    fake_provider,
    tool_call,
    usage,
)
from tests.support.world import ConnectionPlan

pytestmark = pytest.mark.anyio

RICH_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}}}},
    "type": "object",
    "properties": {
        "at": {"$ref": "#/$defs/place"},
        "amount": {"oneOf": [{"type": "integer", "maximum": 12345678901234567890}, {"const": "all"}]},
        "unit": {"enum": ["kg", "磅"], "default": "kg"},
    },
    "required": ["amount"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {"type": "string"}},
    "dependentRequired": {"unit": ["amount"]},
}
FILES = ConnectionPlan(name="files", tools={"read": RICH_SCHEMA, "write": {"type": "object"}})


def names(body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in body["tools"]]


async def test_the_caller_gets_the_answer_under_the_name_it_asked_for(api: APIBench) -> None:
    agent = await api.agent(FILES)
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        response = await chat(api, agent, temperature=0.25, seed=12345678901234567890, user="u-1")

    assert response.status_code == 200
    assert response.json() == {**completion(), "model": MODEL}
    [sent] = provider.bodies
    tools = sent.pop("tools")
    assert sent == {
        "model": UPSTREAM_MODEL,
        "messages": HELLO,
        "temperature": 0.25,
        "seed": 12345678901234567890,
        "user": "u-1",
    }
    assert [tool["function"]["name"] for tool in tools] == ["files-read", "files-write"]
    assert response.headers["x-sluicegate-tools"] == "2"
    assert "x-sluicegate-no-tools" not in response.headers


async def test_a_tool_reaches_the_provider_exactly_as_it_is_listed(api: APIBench) -> None:
    agent = await api.agent(FILES)
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        await chat(api, agent)

    listed = await api.http.get("/v1/mcp/tools", headers=agent.headers)
    assert provider.bodies[0]["tools"] == listed.json()["tools"]
    assert provider.bodies[0]["tools"][0]["function"]["parameters"] == RICH_SCHEMA


async def test_the_same_request_gives_the_provider_the_same_bytes_also_after_a_sync(api: APIBench) -> None:
    agent = await api.agent(FILES)
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        for _ in range(10):
            await chat(api, agent)
            # As after a restart: nothing is remembered.
            api.deps.functions.__init__()  # type: ignore[misc]

    assert len({hashlib.sha256(request.body).digest() for request in provider.requests}) == 1


async def test_tools_are_filtered_as_in_listing_and_an_empty_result_is_told(api: APIBench) -> None:
    agent = await api.agent(FILES)
    cases = {
        ("x-mcp-include-tools", "files-read"): (["files-read"], None),
        ("x-mcp-include-clients", "other"): ([], "none_visible"),
        ("x-mcp-include-clients", "none"): ([], "request_asks_for_none"),
        ("x-mcp-include-tools", " , "): ([], "request_asks_for_none"),
    }
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        for (header, value), (expected, reason) in cases.items():
            response = await chat(api, agent, {header: value})
            sent = provider.bodies[-1]
            assert (names(sent) if expected else sent.get("tools")) == (expected or None)
            assert response.headers["x-sluicegate-tools"] == str(len(expected))
            assert response.headers.get("x-sluicegate-no-tools") == reason


async def test_the_callers_own_tools_and_choice_are_kept_and_come_first(api: APIBench) -> None:
    agent = await api.agent(FILES)
    own = [
        {
            "type": "function",
            "function": {"name": "my_tool", "parameters": {"type": "object"}, "strict": True},
        }
    ]
    choice = {"type": "function", "function": {"name": "my_tool"}}
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        await chat(api, agent, tools=own, tool_choice=choice, parallel_tool_calls=False)

    [sent] = provider.bodies
    assert sent["tools"][0] == own[0]
    assert names(sent) == ["my_tool", "files-read", "files-write"]
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == (choice, False)


@pytest.mark.parametrize(
    "spelling", ["files-read", "files_read", "mcp__files__read", "mcp_files_read", "Files.Read"]
)
async def test_a_tool_that_the_caller_brought_is_not_added_again(api: APIBench, spelling: str) -> None:
    agent = await api.agent(FILES)
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        own = [{"type": "function", "function": {"name": spelling}}]
        await chat(api, agent, tools=own)
        response = await chat(api, agent, {"x-mcp-include-tools": "files-read"}, tools=own)

    assert names(provider.bodies[0]) == [spelling, "files-write"]
    assert names(provider.bodies[1]) == [spelling]
    assert response.headers["x-sluicegate-no-tools"] == "all_given_by_caller"


async def test_tools_that_differ_in_separators_alone_are_told_apart_by_their_exact_names(
    api: APIBench,
) -> None:
    plan = ConnectionPlan(name="crm", tools={"get-user": {}, "get_user": {}})
    agent = await api.agent(plan)
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        await chat(api, agent, tools=[{"type": "function", "function": {"name": "crm-get-user"}}])

    assert names(provider.bodies[0]) == ["crm-get-user", "crm-get_user"]


async def test_a_model_without_tools_gets_none(api: APIBench) -> None:
    agent = await api.agent(FILES)
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url, model={"supports_tools": False})
        response = await chat(api, agent)

    assert "tools" not in provider.bodies[0]
    assert response.headers["x-sluicegate-no-tools"] == "model_without_tools"


async def test_a_request_with_functions_of_the_old_form_is_left_alone(api: APIBench) -> None:
    agent = await api.agent(FILES)
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        response = await chat(api, agent, functions=[{"name": "old"}])

    assert "tools" not in provider.bodies[0]
    assert response.headers["x-sluicegate-no-tools"] == "legacy_functions"


async def test_suggestions_are_returned_and_nothing_is_executed(api: APIBench) -> None:
    agent = await api.agent(FILES)
    calls = [tool_call("files-read", '{"amount": 1}'), tool_call("files-read", "{}", "call_2")]
    async with fake_provider(answers(answer(completion(None, calls)))) as provider:
        await register(api, provider.base_url)
        response = await chat(api, agent)

    [choice] = response.json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": None, "tool_calls": calls}
    assert choice["finish_reason"] == "tool_calls"
    stored = await api.database.read(
        lambda session: [*session.scalars(select(Round)), *session.scalars(select(ToolInvocation))]
    )
    assert stored == []


async def test_an_unknown_model_is_not_found_and_nobody_is_asked(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        for name in ("other", UPSTREAM_MODEL, MODEL.upper(), "a\x00b"):
            response = await chat(api, agent, model=name)
            assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")
            assert error_of(response)["details"] == {"model": name}

    assert provider.requests == []


async def test_a_disabled_provider_serves_no_model(api: APIBench) -> None:
    agent = await api.agent()
    await register(api, "http://127.0.0.1:9/v1", enabled=False)

    response = await chat(api, agent)
    listed = await api.http.get("/v1/models", headers=agent.headers)

    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")
    assert listed.json() == {"object": "list", "data": []}


async def test_models_are_listed_by_their_neutral_names(api: APIBench) -> None:
    agent = await api.agent()
    await register(api, "http://127.0.0.1:9/v1")

    [model] = (await api.http.get("/v1/models", headers=agent.headers)).json()["data"]

    assert (model["id"], model["object"], model["owned_by"]) == (MODEL, "model", "fake")
    assert isinstance(model["created"], int)


async def test_no_header_of_the_caller_reaches_the_provider(api: APIBench) -> None:
    agent = await api.agent()
    marked = [
        "cookie",
        "proxy-authorization",
        "x-api-key",
        "traceparent",
        "x-request-id",
        "user-agent",
        "referer",
        "forwarded",
        "x-forwarded-for",
        "openai-organization",
        "x-mcp-include-clients",
        "accept-language",
        "connection",
        "te",
        "x-anything",
    ]
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        headers = {name: f"mark-{number}" for number, name in enumerate(marked)}
        response = await chat(api, agent, {**headers, "x-mcp-include-clients": "markclient"})

    assert response.status_code == 200
    [request] = provider.requests
    assert "mark" not in json.dumps(request.raw_headers).lower()
    assert agent.secret not in json.dumps(request.raw_headers) + request.body.decode()
    assert {name: value for name, value in request.headers.items() if name != "content-length"} == {
        "host": provider.base_url.removeprefix("http://").removesuffix("/v1"),
        "accept": "application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": "sluicegate",
        "authorization": f"Bearer {CREDENTIAL}",
    }


async def test_no_header_of_the_provider_reaches_the_caller(api: APIBench) -> None:
    agent = await api.agent()
    extra = ["Set-Cookie: mark=1", "X-Provider: mark", "X-Request-Id: mark", "OpenAI-Organization: mark"]
    async with fake_provider(answers(answer(completion(), 200, *extra))) as provider:
        await register(api, provider.base_url)
        response = await chat(api, agent)

    assert "mark" not in str(response.headers.raw)


async def test_a_credential_goes_into_the_header_that_the_provider_wants(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url, credential_header="api-key")
        await chat(api, agent)

    [request] = provider.requests
    assert request.headers["api-key"] == CREDENTIAL
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {"max_completion_tokens": 100}),
        ({"max_tokens": 50}, {"max_tokens": 50}),
        ({"max_completion_tokens": 100}, {"max_completion_tokens": 100}),
    ],
)
async def test_an_answers_length_is_bounded(
    api: APIBench, given: dict[str, int], sent: dict[str, int]
) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url, model={"max_output_tokens": 100})
        await chat(api, agent, None, **given)

    body = provider.bodies[0]
    assert {name: body[name] for name in ("max_tokens", "max_completion_tokens") if name in body} == sent


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_longer_answer_than_the_model_may_give_is_refused(api: APIBench, field: str) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url, model={"max_output_tokens": 100})
        response = await chat(api, agent, None, **{field: 101})

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")
    assert provider.requests == []


async def test_more_tools_than_a_model_takes_are_refused_and_never_cut(api: APIBench) -> None:
    agent = await api.agent(FILES)
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url, model={"max_tools": 1})
        response = await chat(api, agent)
        narrowed = await chat(api, agent, {"x-mcp-include-tools": "files-write"})

    error = error_of(response)
    assert (response.status_code, error["details"]["limit"], error["details"]["count"]) == (400, 1, 2)
    assert narrowed.status_code == 200
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model": MODEL},
        {"model": MODEL, "messages": []},
        {"model": MODEL, "messages": "hello"},
        {"model": 1, "messages": HELLO},
        {"model": MODEL, "messages": HELLO, "stream": "yes"},
        {"model": MODEL, "messages": HELLO, "tools": {}},
        {"model": MODEL, "messages": HELLO, "max_tokens": "5"},
    ],
)
async def test_a_malformed_request_is_refused_with_the_place(api: APIBench, body: dict[str, Any]) -> None:
    agent = await api.agent()

    response = await api.http.post("/v1/chat/completions", headers=agent.headers, json=body)

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")
    assert error_of(response)["details"]["problems"]


async def test_a_request_that_is_too_long_is_refused(api: APIBench) -> None:
    agent = await api.agent()

    response = await chat(api, agent, padding="x" * api.deps.settings.body_max_bytes)

    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")


async def test_answers_are_metered_with_key_model_and_cost(api: APIBench) -> None:
    agent = await api.agent()
    prices = {"input_price": "2", "cached_input_price": "0.5", "output_price": "8.25"}
    told = usage(prompt=1000, completion=100, cached=400)
    async with fake_provider(answers(answer(completion(told=told)))) as provider:
        await register(api, provider.base_url, model=prices)
        response = await chat(api, agent, {"x-request-id": "r-1"})

    assert response.json()["usage"] == told
    query = select(AuditEvent).where(AuditEvent.kind.in_([AuditKind.CHAT_SENT, AuditKind.CHAT_SETTLED]))
    sent, settled = await api.database.read(
        lambda session: session.scalars(query.order_by(AuditEvent.id)).all()
    )
    assert (sent.actor, sent.request_id, sent.data["model"]) == (agent.key_id, "r-1", MODEL)
    assert (settled.actor, settled.request_id, settled.code) == (agent.key_id, "r-1", None)
    assert settled.data == {
        "model": MODEL,
        "provider": "fake",
        "upstream_model": UPSTREAM_MODEL,
        "streamed": False,
        "prompt_tokens": 1000,
        "cached_tokens": 400,
        "completion_tokens": 100,
        "reasoning_tokens": 0,
        # (600 x 2 + 400 x 0.5 + 100 x 8.25) / 10**6 of the currency
        "cost_billionths": 2_225_000,
    }


async def test_a_chat_takes_one_read_and_two_writes(api: APIBench) -> None:
    agent = await api.agent(FILES)
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        before = (api.database.counts.reads, api.database.counts.writes)
        await chat(api, agent)

    assert (api.database.counts.reads - before[0], api.database.counts.writes - before[1]) == (1, 2)


async def test_an_edited_credential_is_used_by_the_next_request(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        await chat(api, agent)
        await api.operator("PATCH", "/api/v1/providers/fake", json={"credential": "renewed-secret"})
        await chat(api, agent)

    sent = [request.headers["authorization"] for request in provider.requests]
    assert sent == [f"Bearer {CREDENTIAL}", "Bearer renewed-secret"]


async def test_connections_to_a_provider_are_kept(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await register(api, provider.base_url)
        for _ in range(3):
            await chat(api, agent)

    assert provider.server.connections == 1
