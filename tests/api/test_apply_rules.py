"""Rules, guardrails and tools in a configuration file: applied once, drift shown, secrets by reference."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from api.configuration.document import read_document
from api.configuration.loading import parse_yaml
from api.configuration.problems import DocumentProblem
from tests.api.test_apply import run, write
from tests.gateway.stage import Stage, stage
from tests.support.databases import sqlite_copy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

TEXT = """
version: 1
connections:
  orders:
    url: file:orders.url
    network: loopback
    tools_to_execute: ["*"]
keys:
  clerk: {}
argument_rules:
  keys:
    clerk:
      - {id: small, schema: {properties: {amount: {maximum: 500}}}, tools: [orders-write]}
  connections:
    orders:
      - {id: named, schema: {required: [nonce]}}
  tools:
    orders-delete:
      - {id: one, schema: {properties: {count: {maximum: 1}}}}
guardrails:
  - {name: no-pii, kind: redaction}
  - name: judge
    kind: webhook
    settings: {url: "https://guard.example/judge"}
    secret: env:HOOK_SECRET
    selector: {tools: [orders-delete]}
"""


@pytest.fixture
async def gateway(
    sqlite_template_path: Path, tmp_path: Path, temporal_client: Client
) -> AsyncIterator[Stage]:
    url = sqlite_copy(sqlite_template_path, tmp_path)
    async with stage(tmp_path, url, temporal_client, f"test-{uuid4().hex}") as built:
        yield built


async def test_rules_and_guardrails_are_applied_once_and_shown_as_drift(
    gateway: Stage, tmp_path: Path
) -> None:
    write(tmp_path, f"{gateway.probe_url}\n", "orders.url")
    file, extra = write(tmp_path, TEXT), {"HOOK_SECRET": "h" * 40}

    applied = await run(gateway, tmp_path, "apply", "-f", file, extra=extra)
    again = await run(gateway, tmp_path, "apply", "-f", file, extra=extra)
    await gateway.operator("PUT", "/api/v1/guardrails", json={"guardrails": []})
    await gateway.operator("PUT", "/api/v1/mcp/clients/orders/argument-rules", json={"rules": []})
    drift = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run", extra=extra)
    rotated = await run(gateway, tmp_path, "apply", "-f", file, extra={"HOOK_SECRET": "i" * 40})
    other = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run", extra=extra)

    assert applied.status == 0, applied.err
    assert "~ rules tools/orders-delete" in applied.out
    assert (again.status, again.out) == (0, "Nothing to change.\n")
    assert drift.status == 1
    assert "~ guardrails all" in drift.out
    assert "~ rules connections/orders" in drift.out
    assert "~ rules keys/clerk" not in drift.out
    assert rotated.status == 0, rotated.err
    assert "~ guardrails all" in other.out
    for done in (applied, drift, rotated, other):
        assert "h" * 40 not in done.out + done.err
    key = (await gateway.operator("GET", "/api/v1/keys")).json()["items"][0]
    shown = (await gateway.operator("GET", f"/api/v1/mcp/keys/{key['id']}/argument-rules")).json()
    assert [rule["id"] for rule in shown["rules"]] == ["small"]


async def test_settings_of_tools_are_applied_once_and_shown_as_drift(gateway: Stage, tmp_path: Path) -> None:
    write(tmp_path, f"{gateway.probe_url}\n", "orders.url")
    text = TEXT.partition("keys:")[0] + (
        "tools:\n"
        "  orders-delete: {idempotency: unsafe, timeout_s: 5, requires_approval: true}\n"
        "  orders-read: {timeout_s: null}\n"
    )
    file = write(tmp_path, text)

    applied = await run(gateway, tmp_path, "apply", "-f", file)
    again = await run(gateway, tmp_path, "apply", "-f", file)
    (tool,) = (await gateway.operator("GET", "/api/v1/tools?tool_name=orders-delete")).json()["items"]
    await gateway.operator("PUT", f"/api/v1/tools/{tool['id']}/timeout", json={"timeout_s": 60})
    drift = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run")
    repaired = await run(gateway, tmp_path, "apply", "-f", file)
    shown = (await gateway.operator("GET", f"/api/v1/tools/{tool['id']}")).json()

    assert applied.status == 0, applied.err
    assert "~ settings orders-delete" in applied.out
    assert "orders-read" not in applied.out
    assert (tool["idempotency"], tool["timeout_s"], tool["requires_approval"]) == ("unsafe", 5, True)
    assert (again.status, again.out) == (0, "Nothing to change.\n")
    assert (drift.status, drift.out.count("~ ")) == (1, 1), drift.out
    assert "timeout_s: 60.0 -> 5.0" in drift.out
    assert repaired.status == 0, repaired.err
    assert shown["etag"] == tool["etag"]


async def test_rules_of_what_is_nowhere_are_refused(gateway: Stage, tmp_path: Path) -> None:
    rules = write(tmp_path, "version: 1\nargument_rules:\n  tools:\n    a-b: [{id: x, schema: {}}]\n")
    done = await run(gateway, tmp_path, "apply", "-f", rules)
    settings = write(tmp_path, "version: 1\ntools: {a-b: {timeout_s: 5}}\n")
    other = await run(gateway, tmp_path, "apply", "-f", settings)

    assert (done.status, "there is no such tool" in done.err) == (1, True)
    assert (other.status, "there is no such tool" in other.err) == (1, True)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("argument_rules: {keys: {a: [{id: X, schema: {}}]}}", "keys.a.rules[0].id"),
        ("argument_rules: {teams: {}}", "argument_rules.teams"),
        ("tools: {a-b: {timeout_s: 0}}", "tools.a-b.timeout_s"),
        ("tools: {a-b: {timeout_s: .inf}}", "tools.a-b.timeout_s"),
        ("tools: {a-b: {idempotency: often}}", "tools.a-b.idempotency"),
        ("tools: {a-b: {requires_approval: null}}", "tools.a-b.requires_approval"),
        ("tools: {a-b: {pin: x}}", "tools.a-b.pin"),
        ("guardrails: [{name: a, kind: size}]", "guardrails[0].settings.max_bytes"),
        (
            f"guardrails: [{{name: a, kind: webhook, settings: {{url: 'https://a'}}, secret: {'s' * 40}}}]",
            "guardrails[0].secret: write env:NAME",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_place(text: str, place: str) -> None:
    with pytest.raises(DocumentProblem, match=r".") as refused:
        read_document(parse_yaml(f"version: 1\n{text}\n"), {})
    assert place in str(refused.value)
    assert "s" * 40 not in str(refused.value)
