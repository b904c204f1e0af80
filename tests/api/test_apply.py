"""Configuration as code: files with one meaning, a plan, drift, and a second run that changes nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client
from typer.testing import CliRunner

from api.commands.failures import CommandFailed
from api.commands.root import root
from api.configuration.document import read_document
from api.configuration.loading import References, parse_yaml
from api.configuration.mcp_json import (
    HTTPEntry,
    StdioEntry,
    UnusableEntry,
    connection_names,
    network_of,
    read_servers,
)
from api.configuration.problems import DocumentProblem
from models.connection import Network, Transport
from tests.api.bench import ADMIN_TOKEN
from tests.gateway.stage import Stage, listed_names, stage
from tests.support.command_line import Done, sluicegate
from tests.support.databases import sqlite_copy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

SECRET = "sgk_" + "a1" * 24


@pytest.fixture(scope="module")
async def gateway(
    sqlite_template_path: Path, tmp_path_factory: pytest.TempPathFactory, temporal_client: Client
) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("apply")
    url = sqlite_copy(sqlite_template_path, folder)
    async with stage(folder, url, temporal_client, f"test-{uuid4().hex}") as built:
        yield built


async def run(
    gateway: Stage, tmp_path: Path, *arguments: str, extra: Mapping[str, str] | None = None
) -> Done:
    """Run a command in this process, in a thread of its own: starting another takes seconds."""
    environment = {"SLUICEGATE_URL": gateway.url, "SLUICEGATE_ADMIN_TOKEN": ADMIN_TOKEN, **(extra or {})}
    environment["SLUICEGATE_DATA_DIR"] = str(tmp_path)
    result = await asyncio.to_thread(CliRunner().invoke, root, list(arguments), env=environment)
    if isinstance(result.exception, CommandFailed):
        return Done(result.exception.status, result.stdout, f"error: {result.exception}")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return Done(result.exit_code, result.stdout, result.stderr)


def write(tmp_path: Path, text: str, name: str = "config.yaml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


async def test_a_file_is_applied_once_and_shows_drift_afterwards(gateway: Stage, tmp_path: Path) -> None:
    text = """
version: 1
connections:
  orders:
    url: file:orders.url
    network: loopback
    tools_to_execute: [read, write]
    tool_timeout_s: 20
keys:
  reader:
    request_filter: narrow
    may_explain: true
    secret: env:READER_SECRET
    tools:
      orders: [read]
  nobody:
    enabled: false
    tools: {}
overlays:
  - match: {server_slug: orders}
    execution_policy: {parallel_safe: true}
"""
    write(tmp_path, f"{gateway.probe_url}\n", "orders.url")
    file, extra = write(tmp_path, text), {"READER_SECRET": SECRET}

    planned = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run", extra=extra)
    applied = await run(gateway, tmp_path, "apply", "-f", file, extra=extra)
    again = await run(gateway, tmp_path, "apply", "-f", file, extra=extra)
    clean = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run", extra=extra)

    assert planned.status == 1, planned.err
    assert "+ connection orders" in planned.out
    assert applied.status == 0, applied.err
    assert "The secret of key nobody" in applied.out
    assert (again.status, again.out) == (0, "Nothing to change.\n")
    assert (clean.status, clean.out) == (0, "")
    for done in (planned, applied):
        assert SECRET not in done.out + done.err
        assert gateway.probe_url not in done.out + done.err

    reader = {"authorization": f"Bearer {SECRET}"}
    assert listed_names(await gateway.http.get("/v1/mcp/tools", headers=reader)) == {"orders-read"}

    await gateway.operator("PATCH", "/api/v1/mcp/clients/orders", json={"tools_to_execute": ["*"]})
    drift = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run", "--json", extra=extra)
    shown = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run", extra=extra)
    assert (drift.status, shown.status) == (1, 1)
    assert "~ connection orders\n    tools_to_execute: ['*'] -> ['read', 'write']" in shown.out
    await run(gateway, tmp_path, "apply", "-f", file, extra=extra)
    assert (await run(gateway, tmp_path, "apply", "-f", file, "--dry-run", extra=extra)).status == 0

    gone = "version: 1\nkeys:\n  reader: {}\n"
    pruned = await run(gateway, tmp_path, "apply", "-f", write(tmp_path, gone), "--prune")
    assert "- key nobody" in pruned.out
    names = [key["name"] for key in (await gateway.operator("GET", "/api/v1/keys")).json()["items"]]
    assert names == ["reader"]


async def test_what_a_file_does_not_say_stays_as_it_is(gateway: Stage, tmp_path: Path) -> None:
    await gateway.connect("kept", ["read"], open_to_all_keys=True)
    agent = await gateway.key("keeper", {"kept": ["read"]}, may_explain=True)
    file = write(tmp_path, "version: 1\nconnections:\n  kept: {tool_timeout_s: 5}\nkeys:\n  keeper: {}\n")

    assert (await run(gateway, tmp_path, "apply", "-f", file)).status == 0

    kept = (await gateway.operator("GET", "/api/v1/mcp/clients/kept")).json()
    assert (kept["tool_timeout_s"], kept["tools_to_execute"], kept["open_to_all_keys"]) == (5, ["read"], True)
    tools = (await gateway.operator("GET", f"/api/v1/mcp/keys/{agent.key_id}/tools")).json()
    assert tools["mcp_configs"] == [{"client": "kept", "tools_to_execute": ["read"]}]

    cleared = write(tmp_path, "version: 1\nkeys:\n  keeper: {tools: null}\n")
    assert "- tools keeper" in (await run(gateway, tmp_path, "apply", "-f", cleared)).out
    tools = (await gateway.operator("GET", f"/api/v1/mcp/keys/{agent.key_id}/tools")).json()
    assert tools["mcp_configs"] is None


async def test_a_file_that_grants_an_unknown_connection_changes_nothing(
    gateway: Stage, tmp_path: Path
) -> None:
    text = "version: 1\nkeys:\n  lost:\n    tools:\n      elsewhere: ['*']\n"
    done = await run(gateway, tmp_path, "apply", "-f", write(tmp_path, text))
    assert done.status == 2
    assert "keys.lost.tools.elsewhere: there is no such connection" in done.err
    keys = (await gateway.operator("GET", "/api/v1/keys")).json()["items"]
    assert all(key["name"] != "lost" for key in keys)


async def test_a_secret_is_registered_by_its_hash_and_belongs_to_one_key(gateway: Stage) -> None:
    mine, yours = await gateway.key(), await gateway.key()
    digest = "ab" * 32
    path = f"/api/v1/keys/{mine.key_id}/secrets/{digest}"
    assert (await gateway.operator("GET", path)).json() == {"registered": False}
    for _ in range(2):
        assert (await gateway.operator("PUT", path)).status_code == 204
    assert (await gateway.operator("GET", path)).json() == {"registered": True}
    shown = (await gateway.operator("GET", f"/api/v1/keys/{mine.key_id}")).json()
    assert [secret["hint"] for secret in shown["secrets"]][-1] == "declared …"
    assert len(shown["secrets"]) == 2

    taken = await gateway.api.operator("PUT", f"/api/v1/keys/{yours.key_id}/secrets/{digest}")
    malformed = await gateway.api.operator("PUT", f"/api/v1/keys/{mine.key_id}/secrets/{'AB' * 32}")
    assert (taken.status_code, malformed.status_code) == (409, 400)


async def test_a_preview_says_what_a_grant_change_would_do_and_does_nothing(gateway: Stage) -> None:
    await gateway.connect("shop", ["read", "write"])
    await gateway.connect("news", ["*"])
    agent = await gateway.key(grants={"shop": ["read"]})
    path = f"/api/v1/mcp/keys/{agent.key_id}/tools"
    before = (await gateway.operator("GET", path)).json()

    async def preview(configs: Any) -> dict[str, Any]:
        answer = await gateway.operator("POST", f"{path}/preview", json={"mcp_configs": configs})
        shown: dict[str, Any] = answer.json()
        return shown

    moved = await preview([{"client": "news", "tools_to_execute": ["read", "nothing"]}])
    widest = await preview(None)
    same = await preview(before["mcp_configs"])

    assert {name for name in moved["gained"] if not name.startswith("kept")} == {"news-read"}
    assert moved["lost"] == ["shop-read"]
    assert (moved["connections_gained"], moved["connections_lost"]) == (["news"], ["shop"])
    assert moved["unmatched"] == [{"client": "news", "tool": "nothing"}]
    assert moved["etag"] == before["etag"]
    assert {"shop-write", "news-delete"} <= set(widest["gained"])
    assert (widest["widens"], same["widens"], same["lost"]) == (True, False, [])
    assert (await gateway.operator("GET", path)).json() == before

    etag = {"if-match": moved["etag"]}
    body = {"mcp_configs": [{"client": "news", "tools_to_execute": ["read"]}]}
    await gateway.operator("PUT", path, json=body, headers=etag)
    late = await gateway.api.operator("PUT", path, json=body, headers=etag)
    assert late.status_code == 412
    unknown = await gateway.api.operator(
        "POST", f"{path}/preview", json={"mcp_configs": [{"client": "zz", "tools_to_execute": []}]}
    )
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (422, "invalid_filter")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not valid YAML"),
        ("a: 1\na: 2", "'a' stands here twice at line 2 column 1"),
        ("a: &x [1]\nb: *x", "aliases are not allowed"),
        ("no: 1", "the name False is not text"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("\x00", "not valid YAML"),
    ],
)
def test_yaml_with_more_than_one_meaning_is_refused(text: str, says: str) -> None:
    with pytest.raises(DocumentProblem) as raised:
        parse_yaml(text)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "version"),
        ("version: 2", "version"),
        ("[]", "the file"),
        ("version: 1\nkeyz: {}", "keyz"),
        ("version: 1\nkeys: {a: {toolz: {}}}", "keys.a.toolz"),
        ("version: 1\nkeys: {a: {tools: {b: ['x*']}}}", "tools.b"),
        ("version: 1\nkeys: {a: {tools: {b: yes}}}", "keys.a.tools.b"),
        ("version: 1\nconnections: {A: {}}", "'A'"),
        ("version: 1\nconnections: {a: {url: 'ftp://x'}}", "connections.a.url"),
        ("version: 1\nconnections: {a: {tools_to_execute: ['*', x]}}", "tools_to_execute"),
        ("version: 1\noverlays: [{match: {}, execution_policy: {x: 1}}]", "overlays[0]"),
        (f"version: 1\nkeys: {{a: {{secret: {SECRET}}}}}", "never the secret itself"),
        ("version: 1\nkeys: {a: {secret: env:SHORT}}", "shorter than 32"),
        ("version: 1\nkeys: {a: {secret: env:ADMIN}}", "as admin tokens do"),
        ("version: 1\nkeys: {a: {secret: env:NOTHING}}", "no variable 'NOTHING'"),
        ("version: 1\nkeys: {a: {secret: 'file:nothing'}}", "'nothing' cannot be read"),
        ("version: 1\nconnections: {a: {url: env:NOTHING}}", "connections.a.url"),
    ],
)
def test_a_document_that_cannot_be_meant_is_refused_at_its_place(
    text: str, says: str, tmp_path: Path
) -> None:
    variables = {"SHORT": "short", "ADMIN": "sga_" + "x" * 40}
    references = References(tmp_path, variables.get)
    with pytest.raises(DocumentProblem) as raised:
        read_document(references.resolve(parse_yaml(text)), references.found)
    assert says in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "x" * 40 not in str(raised.value)


def test_the_example_of_the_documentation_can_be_meant(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "support-agent.key").write_text(SECRET)
    references = References(tmp_path, {"ORDERS_URL": "https://orders.example/mcp"}.get)
    document = read_document(references.resolve(parse_yaml(text)), references.found)
    assert document.connections is not None
    assert document.connections["orders"].url == "https://orders.example/mcp"
    assert set(references.found) == {("connections", "orders", "url"), ("keys", "support-agent", "secret")}


MCP_JSON: dict[str, Any] = {
    "mcpServers": {
        "Orders API": {"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer abc-secret"}},
        "legacy": {"type": "sse", "url": "https://mcp.example/sse"},
        "core_matrix": {"type": "http", "url": "https://10.0.0.8/mcp"},
        "files": {
            "command": "npx",
            "args": ["-y", "server-filesystem", "/my docs"],
            "env": {"TOKEN": "file-secret"},
        },
        "ws": {"type": "websocket", "url": "https://mcp.example/ws"},
        "template": {"url": "https://mcp.example/${input:org}"},
        "broken": {"note": "nothing here"},
    }
}


async def test_headers_of_a_connection_are_applied_by_reference_and_told_apart(
    gateway: Stage, tmp_path: Path
) -> None:
    text = f"""
version: 1
connections:
  sealed:
    url: {gateway.probe_url}
    network: loopback
    auth: {{kind: shared, headers: {{Authorization: env:UPSTREAM_TOKEN}}}}
"""
    file = write(tmp_path, text)
    first, second = ({"UPSTREAM_TOKEN": f"Bearer planted-{number}"} for number in (1, 2))

    made = await run(gateway, tmp_path, "apply", "-f", file, extra=first)
    same = await run(gateway, tmp_path, "apply", "-f", file, extra=first)
    drift = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run", extra=second)
    literal = write(tmp_path, text.replace("env:UPSTREAM_TOKEN", "Bearer planted-3"), "literal.yaml")
    refused = await run(gateway, tmp_path, "apply", "-f", literal)

    assert made.status == 0, made.err
    assert same.out == "Nothing to change.\n"
    assert (drift.status, "auth: (by reference)" in drift.out) == (1, True), drift.out
    assert "connections.sealed.auth.headers.Authorization: write env:NAME or file:PATH" in refused.err
    assert [done for done in (made, same, drift, refused) if "planted" in done.out + done.err] == []
    assert dict(gateway.probe.received[-1].headers)["authorization"] == "Bearer planted-1"


async def test_headers_are_set_and_taken_away_on_the_command_line(gateway: Stage, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer planted-4\n")
    source = f"Authorization=file:{tmp_path / 'token'}"
    url = ("connections", "add", "told", gateway.probe_url, "--network", "loopback")

    made = await run(gateway, tmp_path, *url, "--header", source)
    literal = await run(gateway, tmp_path, "connections", "set", "told", "--header", "X-Key=planted-5")
    missing = await run(gateway, tmp_path, "connections", "set", "told", "--header", "X-Key=env:NOT_THERE")
    assert made.status == 0, made.err
    assert dict(gateway.probe.received[-1].headers)["authorization"] == "Bearer planted-4"
    assert "write X-Key=env:VARIABLE or X-Key=file:PATH" in literal.err
    assert "the environment has no variable 'NOT_THERE'" in missing.err
    assert [done for done in (made, literal, missing) if "planted" in done.out + done.err] == []

    cleared = await run(gateway, tmp_path, "connections", "set", "told", "--no-headers")
    assert (cleared.status, "Authorization" in cleared.out) == (0, False), cleared.err


def test_an_mcp_json_is_read_server_by_server() -> None:
    entries = {entry.listed_name: entry for entry in read_servers(MCP_JSON)}

    orders, legacy, reserved = entries["Orders API"], entries["legacy"], entries["core_matrix"]
    assert isinstance(orders, HTTPEntry)
    assert (orders.name, orders.network) == ("orders_api", Network.LOOPBACK)
    assert orders.body["auth"] == {"kind": "shared", "headers": {"Authorization": "Bearer abc-secret"}}
    assert orders.notes == ("its headers (Authorization) are sent with each request, and stored sealed",)
    assert "abc-secret" not in repr(orders)
    assert isinstance(legacy, HTTPEntry)
    assert (legacy.network, legacy.transport) == (Network.PUBLIC, Transport.HTTP_SSE)
    assert isinstance(reserved, HTTPEntry)
    assert (reserved.name, reserved.network) == ("mcp_core_matrix", Network.PRIVATE)
    files = entries["files"]
    assert isinstance(files, StdioEntry)
    assert files.bridge(8100) == (
        "mcp-proxy --host 127.0.0.1 --port 8100 -- npx -y server-filesystem '/my docs'",
        "sluicegate connections add files http://127.0.0.1:8100/mcp --network loopback",
    )
    assert files.variables == ("TOKEN",)
    assert all(isinstance(entries[name], UnusableEntry) for name in ("ws", "template", "broken"))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Authorization": "Bearer ${TOKEN}"}, "hold variables"),
        ({"Authorization": 7}, "hold variables"),
        ({"Mcp-Session-Id": "x"}, "belongs to the protocol"),
    ],
)
def test_headers_that_cannot_be_sent_as_they_stand_are_left_out(headers: dict[str, Any], why: str) -> None:
    (entry,) = read_servers({"mcpServers": {"a": {"url": "https://mcp.example/", "headers": headers}}})
    assert isinstance(entry, HTTPEntry)
    assert "auth" not in entry.body
    assert why in entry.notes[0]


def test_names_that_collide_get_names_of_their_own_whatever_the_order() -> None:
    listed = ["My Server", "my-server", "MY_SERVER", "other", "\u540d\u5b57", "x" * 80]
    names = connection_names(listed)
    assert len(set(names.values())) == len(listed)
    assert connection_names(listed[::-1]) == names
    assert names["other"] == "other"


@pytest.mark.parametrize(
    ("url", "network"),
    [
        ("http://localhost:1/", Network.LOOPBACK),
        ("http://[::1]/", Network.LOOPBACK),
        ("http://192.168.1.2/", Network.PRIVATE),
        ("https://mcp.example/", Network.PUBLIC),
        ("ftp://mcp.example/", None),
        ("http://", None),
        ("http://[", None),
    ],
)
def test_the_network_follows_from_the_host(url: str, network: Network | None) -> None:
    assert network_of(url) is network


async def test_importing_makes_connections_and_repeats_no_secret(gateway: Stage, tmp_path: Path) -> None:
    servers = {"The Probe": {"url": gateway.probe_url}, "files": MCP_JSON["mcpServers"]["files"]}
    file = write(tmp_path, json.dumps({"servers": servers}), "mcp.json")

    planned = await run(gateway, tmp_path, "import", file, "--dry-run")
    made = await run(gateway, tmp_path, "import", file, "--tools", "read")
    place = {"SLUICEGATE_URL": gateway.url, "SLUICEGATE_ADMIN_TOKEN": ADMIN_TOKEN}
    again = (await sluicegate("import", file, "--json", data_dir=tmp_path, extra=place)).json()

    assert "would become connection the_probe" in planned.out
    assert made.status == 0, made.err
    assert "is connection the_probe (healthy)" in made.out
    assert "put it behind a bridge" in made.out
    assert "file-secret" not in made.out + planned.out
    assert next(row["state"] for row in again).startswith("exists already")
    shown = (await gateway.operator("GET", "/api/v1/mcp/clients/the_probe")).json()
    assert (shown["tools_to_execute"], shown["network"]) == (["read"], "loopback")


async def test_a_file_that_is_no_mcp_json_is_refused(gateway: Stage, tmp_path: Path) -> None:
    done = await run(gateway, tmp_path, "import", write(tmp_path, "[]", "mcp.json"))
    assert (done.status, 'no object "mcpServers"' in done.err) == (2, True)
