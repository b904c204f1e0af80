"""Guardrails on the control plane and through HTTP: a real server's own counter is the judge."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from temporalio.client import Client

from api.mcp_server.probe import serving
from tests.api.bench import APIBench, error_of
from tests.gateway.stage import Stage, stage
from tests.support.databases import sqlite_copy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

PATH = "/api/v1/guardrails"
SECRET = "s" * 40
PII: dict[str, Any] = {"name": "no-pii", "kind": "redaction", "settings": {"find": ["personal"]}}
HOOK: dict[str, Any] = {
    "name": "judge",
    "kind": "webhook",
    "settings": {"url": "https://guard.example/judge"},
    "secret": SECRET,
}


async def put(api: APIBench, guardrails: Any, **options: Any) -> Any:
    return await api.operator("PUT", PATH, json={"guardrails": guardrails}, **options)


async def test_guardrails_are_set_in_order_and_their_secrets_never_shown(api: APIBench) -> None:
    empty = await api.operator("GET", PATH)
    made = await put(api, [HOOK, PII], headers={"if-match": empty.headers["etag"]})
    late = await put(api, [], headers={"if-match": empty.headers["etag"]})
    unsaid = {name: value for name, value in HOOK.items() if name != "secret"}
    kept = await put(api, [unsaid, PII])
    moved = await put(api, [{**unsaid, "settings": {"url": "https://other.example/"}}])
    removed = await put(api, [])

    assert (empty.json()["guardrails"], empty.json()["revision"]) == ([], 0)
    shown = made.json()["guardrails"]
    assert [one["name"] for one in shown] == ["judge", "no-pii"]
    assert shown[0]["secret_hash"] == hashlib.sha256(SECRET.encode()).hexdigest()
    assert SECRET not in made.text
    assert "sealed" not in made.text
    assert late.status_code == 412
    assert (kept.json()["revision"], kept.headers["etag"]) == (1, made.headers["etag"])
    # A secret is never sent to another address than the one that it was given for.
    assert (moved.status_code, error_of(moved)["details"]["problems"][0]["path"]) == (
        422,
        "guardrails[0].secret",
    )
    assert (removed.json()["guardrails"], removed.json()["revision"]) == ([], 2)


@pytest.mark.parametrize(
    ("guardrail", "path"),
    [
        ({}, "guardrails[0]"),
        ({**PII, "name": "No"}, "guardrails[0].name"),
        ({**PII, "kind": "magic"}, "guardrails[0].kind"),
        ({**PII, "kind": ["size"]}, "guardrails[0].kind"),
        ({**PII, "stages": []}, "guardrails[0].stages"),
        ({**PII, "stages": [{}]}, "guardrails[0].stages"),
        ({**PII, "selector": {"users": ["a"]}}, "guardrails[0].selector.users"),
        ({**PII, "selector": {"tools": "a"}}, "guardrails[0].selector.tools"),
        ({**PII, "timeout_s": True}, "guardrails[0].timeout_s"),
        ({**PII, "timeout_s": 60}, "guardrails[0].timeout_s"),
        ({**PII, "settings": {"find": ["names"]}}, "guardrails[0].settings.find"),
        ({**PII, "settings": {"action": "drop"}}, "guardrails[0].settings.action"),
        ({**PII, "sealed_secret": "x"}, "guardrails[0].sealed_secret"),
        ({**PII, "secret": SECRET}, "guardrails[0].secret"),
        ({"name": "a", "kind": "size"}, "guardrails[0].settings.max_bytes"),
        ({"name": "a", "kind": "patterns"}, "guardrails[0].settings"),
        ({"name": "a", "kind": "patterns", "settings": {"deny": ["(?=a)b"]}}, "guardrails[0].settings"),
        ({"name": "a", "kind": "patterns", "settings": {"allow": ["a"]}}, "guardrails[0].settings.fields"),
        ({"name": "a", "kind": "plugin"}, "guardrails[0].settings.plugin"),
        ({**HOOK, "secret": "short"}, "guardrails[0].secret"),
        ({**HOOK, "settings": {"url": "ftp://a"}}, "guardrails[0].settings.url"),
        ({**HOOK, "settings": {"url": "https://a", "network": "moon"}}, "guardrails[0].settings.network"),
        ({"name": "a", "kind": "webhook", "settings": {"url": "https://a"}}, "guardrails[0].secret"),
    ],
)
async def test_a_guardrail_that_cannot_be_meant_is_refused_with_its_place(
    guardrail: Any, path: str, api: APIBench
) -> None:
    refused = await put(api, [guardrail])

    assert (refused.status_code, error_of(refused)["code"]) == (422, "invalid_request")
    assert error_of(refused)["details"]["problems"][0]["path"] == path
    assert (await api.operator("GET", PATH)).json()["guardrails"] == []


async def test_a_list_that_is_none_or_names_one_twice_is_refused(api: APIBench) -> None:
    assert error_of(await put(api, {}))["details"]["problems"][0]["path"] == "guardrails"
    assert error_of(await put(api, [PII, PII]))["details"]["problems"][0]["path"] == "guardrails[1].name"


class Judge:
    """A webhook that answers what it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Any = {"verdict": "allow"}
        self.raw: Response | None = None
        self.asked: list[dict[str, Any]] = []
        self.genuine: list[bool] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        body = await request.body()
        self.asked.append(json.loads(body))
        signed = request.headers["x-sluicegate-timestamp"].encode() + b"." + body
        expected = "v1=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        self.genuine.append(hmac.compare_digest(expected, request.headers["x-sluicegate-signature"]))
        await (self.raw or JSONResponse(self.answer))(scope, receive, send)


@pytest.fixture
async def gateway(
    sqlite_template_path: Path, tmp_path: Path, temporal_client: Client
) -> AsyncIterator[Stage]:
    url = sqlite_copy(sqlite_template_path, tmp_path)
    async with stage(tmp_path, url, temporal_client, f"test-{uuid4().hex}") as built:
        yield built


async def execute(gateway: Stage, secret: str, arguments: Any, tool: str = "read") -> Any:
    call = {"id": "c", "type": "function", "function": {"name": f"files-{tool}", "arguments": arguments}}
    headers = {"authorization": f"Bearer {secret}"}
    return await gateway.http.post("/v1/mcp/tool/execute", headers=headers, json=call)


FAULTS: dict[str, Any] = {
    "not found": Response(b"{}", 404),
    "redirect": Response(b"", 307, {"location": "/elsewhere"}),
    "not JSON": Response(b"allow"),
    "two meanings": Response(b'{"verdict":"block","verdict":"allow"}'),
    "no verdict": JSONResponse({"ok": True}),
    "another verdict": JSONResponse({"verdict": "maybe"}),
    "more than a verdict": JSONResponse({"verdict": "allow", "value": {}}),
    "compressed": Response(b"\x1f\x8b", 200, {"content-encoding": "gzip"}),
    "no arguments": JSONResponse({"verdict": "redact", "value": ["x"]}),
    "too much": Response(b'{"verdict":"allow"' + b" " * (5 * 1024 * 1024) + b"}"),
}


async def test_a_webhook_is_asked_with_a_signature_and_whatever_is_no_verdict_blocks(gateway: Stage) -> None:
    judge = Judge()
    await gateway.connect("files")
    agent = await gateway.key()
    async with serving(judge) as port:
        settings = {"url": f"http://127.0.0.1:{port}/judge", "network": "loopback"}
        hook = {**HOOK, "settings": settings, "stages": ["before"], "selector": {"connections": ["files"]}}
        await gateway.operator("PUT", PATH, json={"guardrails": [hook]})

        allowed = await execute(gateway, agent.secret, {"nonce": "one"})
        judge.answer = {"verdict": "redact", "value": {"nonce": "two", "clean": True}, "notes": {"n": 1}}
        redacted = await execute(gateway, agent.secret, {"nonce": "secret"})
        judge.answer = {"verdict": "block", "reason": "not\nthis one"}
        blocked = await execute(gateway, agent.secret, {"nonce": "three"})
        faults = {}
        for name, answer in FAULTS.items():
            judge.raw = answer
            faults[name] = await execute(gateway, agent.secret, {"nonce": name})
    gone = await execute(gateway, agent.secret, {"nonce": "gone"})

    assert (allowed.status_code, redacted.status_code) == (200, 200)
    assert [gateway.probe.count(nonce) for nonce in ("one", "two", "secret")] == [1, 1, 0]
    assert all(judge.genuine)
    first = judge.asked[0]
    assert (first["guardrail"], first["stage"], first["value"]) == ("judge", "before", {"nonce": "one"})
    assert (first["call"]["key_id"], first["call"]["tool"]) == (agent.key_id, "files-read")
    assert (blocked.status_code, blocked.json()["error"]["code"]) == (403, "guardrail_blocked")
    assert blocked.json()["error"]["details"] == {
        "tool": "files-read",
        "guardrail": "judge",
        "stage": "before",
        "reason": "not this one",
    }
    assert gateway.probe.count("three") == 0
    for name, answer in {**faults, "gone": gone}.items():
        assert (answer.status_code, gateway.probe.count(name)) == (403, 0), name
        assert answer.json()["error"]["details"]["reason"] == "guardrail_failed", name


async def test_a_webhook_outside_of_its_network_is_not_dialled(gateway: Stage) -> None:
    judge = Judge()
    await gateway.connect("files")
    agent = await gateway.key()
    async with serving(judge) as port:
        for network in ("public", "private"):
            settings = {"url": f"http://127.0.0.1:{port}/", "network": network}
            await gateway.operator("PUT", PATH, json={"guardrails": [{**HOOK, "settings": settings}]})
            answer = await execute(gateway, agent.secret, {"nonce": network})
            assert (answer.status_code, gateway.probe.count(network)) == (403, 0)

    assert judge.asked == []


async def test_built_in_guardrails_stop_and_redact_over_every_way_in(gateway: Stage) -> None:
    await gateway.connect("files", audit_arguments=True)
    agent, free = await gateway.key(), await gateway.key()
    only = {"keys": [agent.key_id]}
    guardrails = [
        {**PII, "stages": ["before"], "selector": only},
        {"name": "small", "kind": "size", "settings": {"max_bytes": 200}, "selector": only},
        {
            "name": "paths",
            "kind": "patterns",
            "settings": {"allow": ["^/srv/"], "fields": ["path"], "deny": ["DROP TABLE"]},
            "stages": ["before"],
            "selector": only,
        },
    ]
    await gateway.operator("PUT", PATH, json={"guardrails": guardrails})

    mail = "nina.okafor@kranich.example"
    fine = await execute(gateway, agent.secret, {"nonce": "fine", "to": mail, "path": "/srv/a"})
    large = await execute(gateway, agent.secret, {"nonce": "large", "text": "x" * 300})
    outside = await execute(gateway, agent.secret, {"nonce": "outside", "path": "/etc/passwd"})
    other = await execute(gateway, free.secret, {"nonce": "other", "path": "/etc/passwd", "to": mail})
    body = {"tool_calls": [{"id": "a", "function": {"name": "files-read", "arguments": '{"path": "/x"}'}}]}
    headers = {"authorization": f"Bearer {agent.secret}"}
    as_round = (await gateway.http.post("/v1/rounds", headers=headers, json=body)).json()

    assert [answer.status_code for answer in (fine, large, outside, other)] == [200, 403, 403, 200]
    assert [gateway.probe.count(nonce) for nonce in ("fine", "large", "outside", "other")] == [1, 0, 0, 1]
    sent = [request for request in gateway.probe.received if request.holds("fine")]
    assert [request.holds(mail) for request in sent] == [False]
    reasons = [answer.json()["error"]["details"]["reason"] for answer in (large, outside)]
    assert reasons == ["larger than 200 bytes", "not_an_allowed_pattern"]
    refused = as_round["results"][0]
    assert (refused["status"], refused["error"]["code"]) == ("refused", "guardrail_blocked")
    rows = (await gateway.operator("GET", "/api/v1/audit", params={"kind": "call_sent"})).json()["items"]
    texts = [row["data"]["arguments"] for row in rows]
    assert [mail in text for text in texts] == [True, False]
    kept = (await gateway.operator("GET", "/api/v1/audit", params={"kind": "call_refused"})).json()["items"]
    assert {(row["data"]["rule"], row["data"]["level"], row["data"]["revision"]) for row in kept} == {
        ("small", "guardrail", 1),
        ("paths", "guardrail", 1),
    }
