"""Servers with a certificate of an authority that only their connection trusts."""

import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from activities.client_pool import ClientPool
from activities.drift import frozen_target
from activities.session_sweep import SessionSweeper
from governance.snapshots import ToolSnapshot
from models.connection import Connection, Elicitation, Network, Transport
from tests.api.bench import ADMIN_TOKEN, tool_call
from tests.api.test_apply import run
from tests.gateway.authorities import Authority
from tests.gateway.stage import Stage
from workflows.engine import TemporalEngine

pytestmark = pytest.mark.anyio

CLIENTS = "/api/v1/mcp/clients"


@dataclass(frozen=True)
class Certified:
    """A server that speaks TLS, and who certifies it."""

    url: str
    authority: Authority


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    authority = Authority.make("authority of the tests")
    file = tmp_path_factory.mktemp("certificate") / "server.pem"
    file.write_text(authority.server_pem())
    command = [sys.executable, "-m", "tests.support.mcp_servers.sdk_server", "--certificate", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Certified(f"https://127.0.0.1:{int(process.stdout.readline())}/mcp", authority)
        finally:
            # A listening stream is still open, and a server that is asked to end waits for it.
            process.kill()


async def add(gateway: Stage, name: str, url: str, **settings: Any) -> dict[str, Any]:
    body = {"name": name, "url": url, "network": "loopback", "tools_to_execute": ["*"], **settings}
    made: dict[str, Any] = (await gateway.operator("POST", CLIENTS, json=body)).json()
    return made


async def change(gateway: Stage, name: str, **changes: Any) -> dict[str, Any]:
    await gateway.operator("PATCH", f"{CLIENTS}/{name}", json=changes)
    found: dict[str, Any] = (await gateway.operator("POST", f"{CLIENTS}/{name}/refresh")).json()
    return found


def failure(connection: dict[str, Any]) -> tuple[str, str] | None:
    last = connection["last_failure"]
    return last and (last["stage"], last["code"])


REFUSED = ("connect", "tls_failed")


async def test_a_server_is_trusted_by_the_connection_that_names_its_authority_and_by_no_other(
    gateway: Stage, certified: Certified
) -> None:
    bundle = certified.authority.pem
    without = await add(gateway, "without", certified.url)
    trusted = await add(gateway, "trusted", certified.url, ca_bundle=bundle)
    foreign = await add(gateway, "foreign", certified.url, ca_bundle=Authority.make("another").pem)
    agent = await gateway.key()
    echo = tool_call("trusted-echo", '{"text": "through TLS"}')
    answer = await gateway.http.post("/v1/mcp/tool/execute", headers=agent.headers, json=echo)

    assert (failure(without), failure(trusted), failure(foreign)) == (REFUSED, None, REFUSED)
    assert (without["ca_bundle"], trusted["ca_bundle"]) == (None, bundle)
    assert (answer.status_code, answer.json()["content"]) == (200, "through TLS"), answer.text
    assert failure(await change(gateway, "without")) == REFUSED


async def test_a_bundle_that_is_given_or_taken_away_counts_from_the_next_contact_on(
    gateway: Stage, certified: Certified
) -> None:
    made = await add(gateway, "edited", certified.url)
    given = await change(gateway, "edited", ca_bundle=certified.authority.pem)
    agent = await gateway.key()
    echo = tool_call("edited-echo", '{"text": "once"}')
    called = await gateway.http.post("/v1/mcp/tool/execute", headers=agent.headers, json=echo)
    taken = await change(gateway, "edited", ca_bundle=None)
    late = await gateway.http.post("/v1/mcp/tool/execute", headers=agent.headers, json=echo)

    assert (failure(made), failure(given), failure(taken)) == (REFUSED, None, REFUSED)
    assert (called.status_code, late.status_code) == (200, 502), late.text
    assert late.json()["error"]["code"] == "upstream_unavailable"


async def test_the_session_of_a_deleted_connection_is_ended_at_a_server_that_only_its_bundle_trusts(
    gateway: Stage, certified: Certified
) -> None:
    settings = {"ca_bundle": certified.authority.pem, "protocol_version": "2025-11-25"}
    await add(gateway, "deleted", certified.url, **settings)
    agent = await gateway.key()
    echo = tool_call("deleted-echo", '{"text": "once"}')
    await gateway.http.post("/v1/mcp/tool/execute", headers=agent.headers, json=echo)
    before = await ended_sessions(certified)
    await gateway.operator("DELETE", f"{CLIENTS}/deleted")
    deps = gateway.api.deps
    engine = TemporalEngine(gateway.api.temporal, deps.settings.task_queue, 1.0, 4.0)
    async with ClientPool(1024, deps.vault) as clients:
        report = await SessionSweeper(deps.database, deps.vault, clients, engine).sweep_sessions()

    assert report.farewells == await ended_sessions(certified) - before == 1


async def ended_sessions(server: Certified) -> int:
    trusting = ssl.create_default_context(cadata=server.authority.pem)
    async with httpx.AsyncClient(verify=trusting, trust_env=False) as http:
        counters: dict[str, int] = (await http.get(server.url.replace("/mcp", "/counters"))).json()
    return counters.get("DELETE", 0)


def unusable() -> dict[str, str]:
    authority = Authority.make("planted")
    return {
        "no certificate": "planted",
        "empty": "",
        "broken": authority.pem.replace("MII", "MIIplanted", 1),
        "cut": authority.pem[:100],
        "with a key": authority.pem + authority.key_pem,
        "too large": authority.pem * 200,
    }


@pytest.mark.parametrize("kind", unusable())
async def test_a_bundle_that_cannot_be_used_is_refused_where_it_stands(gateway: Stage, kind: str) -> None:
    bundle = unusable()[kind]
    body = {"name": "refused", "url": gateway.probe_url, "network": "loopback", "ca_bundle": bundle}
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    answer = await gateway.http.post(CLIENTS, headers=headers, json=body)

    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert [problem["path"] for problem in error["details"]["problems"]] == ["ca_bundle"]
    assert (error["code"], "planted" in answer.text, "BEGIN" in answer.text) == (
        "invalid_request",
        False,
        False,
    )


async def test_only_the_certificates_of_a_bundle_are_kept(gateway: Stage) -> None:
    first, second = Authority.make("first").pem, Authority.make("second").pem
    made = await add(gateway, "kept", gateway.probe_url, ca_bundle=f"# ours\n{first}\n\n# theirs\n{second}")

    assert made["ca_bundle"] == first + second


async def test_a_file_gives_a_bundle_and_the_command_line_gives_and_takes_one(
    gateway: Stage, certified: Certified, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text(f"# of the tests\n{certified.authority.pem}")
    (tmp_path / "config.yaml").write_text(f"""
version: 1
connections:
  applied: {{url: "{certified.url}", network: loopback, ca_bundle: "file:ca.pem"}}
""")
    apply = ("apply", "-f", str(tmp_path / "config.yaml"))
    made = await run(gateway, tmp_path, *apply)
    same = await run(gateway, tmp_path, *apply)
    assert (made.status, same.out) == (0, "Nothing to change.\n"), made.err
    assert failure((await gateway.operator("GET", f"{CLIENTS}/applied")).json()) is None

    named = ("connections", "set", "applied")
    taken = await run(gateway, tmp_path, *named, "--no-ca-bundle")
    drift = await run(gateway, tmp_path, *apply, "--dry-run")
    given = await run(gateway, tmp_path, *named, "--ca-bundle", str(tmp_path / "ca.pem"))
    missing = await run(gateway, tmp_path, *named, "--ca-bundle", str(tmp_path / "not-there"))
    again = await run(gateway, tmp_path, *apply)

    assert "whom the system trusts" in taken.out, taken.err
    assert (drift.status, "ca_bundle" in drift.out) == (1, True), drift.out
    assert "one of 1 in its own bundle" in given.out, given.err
    assert "cannot be read: No such file" in missing.err
    assert again.out == "Nothing to change.\n"


@pytest.mark.parametrize(
    ("frozen", "keeps"),
    [("https://new.example/old", True), ("https://old.example/mcp", False)],
)
def test_a_round_that_froze_another_server_trusts_no_bundle_there(frozen: str, *, keeps: bool) -> None:
    connection = Connection(
        id="c1",
        name="guarded",
        url="https://new.example/mcp",
        network=Network.PUBLIC,
        transport=Transport.STREAMABLE_HTTP,
        elicitation=Elicitation.NONE,
        protocol_version="auto",
        refusal_statuses=[],
        enabled=True,
        version=1,
        ca_bundle="bundle",
    )
    snapshot = ToolSnapshot("guarded-read", "read", "c1", "guarded", "mcp", None, {}, server_url=frozen)

    assert (frozen_target(connection, snapshot).ca_bundle == "bundle") == keeps
