"""Headers that an operator gives a connection: sent to its server with each request, and shown to nobody."""

from typing import Any

import pytest

from activities.client_pool import ClientPool
from activities.drift import frozen_target
from activities.mcp_http.errors import EndpointRefused, Outcome
from activities.mcp_http.headers import refusal_of_header
from governance.canonical import canonical_bytes
from governance.connection_auth import auth_purpose, headers_problem
from governance.snapshots import ToolSnapshot
from models.connection import Connection, ConnectionTarget, Elicitation, Network, Transport, target_of
from models.vault import Vault
from tests.api.bench import ADMIN_TOKEN, tool_call
from tests.gateway.stage import Stage

pytestmark = pytest.mark.anyio

SECRET = "Bearer planted-connection-secret"


def shared(value: str = SECRET, name: str = "Authorization") -> dict[str, Any]:
    return {"kind": "shared", "headers": {name: value}}


async def patch(gateway: Stage, name: str, **changes: Any) -> dict[str, Any]:
    answer: dict[str, Any] = (
        await gateway.operator("PATCH", f"/api/v1/mcp/clients/{name}", json=changes)
    ).json()
    return answer


def sent(gateway: Stage, header: str = "authorization") -> list[str | None]:
    """Return the header's value in each request that the server got, in their order."""
    return [dict(request.headers).get(header) for request in gateway.probe.received]


async def test_every_request_to_the_server_carries_the_headers(gateway: Stage) -> None:
    gateway.probe.forget()
    made = await gateway.connect("guarded", auth=shared())
    agent = await gateway.key()
    call = tool_call("guarded-read", "{}")
    answer = await gateway.http.post("/v1/mcp/tool/execute", headers=agent.headers, json=call)

    assert answer.status_code == 200, answer.text
    assert len(gateway.probe.calls) == 1
    assert set(sent(gateway)) == {SECRET}
    assert (made["auth"]["kind"], made["auth"]["headers"]) == ("shared", ["Authorization"])


async def test_the_values_are_in_no_answer_no_audit_row_and_no_file(gateway: Stage) -> None:
    paths = ("mcp/clients", "mcp/clients/guarded", "mcp/clients/guarded/tools", "audit")
    shown = [(await gateway.operator("GET", f"/api/v1/{path}")).text for path in paths]
    assert [text for text in shown if "planted-connection-secret" in text] == []
    folder = gateway.api.deps.settings.data_dir
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".key"]
    assert files
    assert [file for file in files if b"planted-connection-secret" in file.read_bytes()] == []


async def test_new_headers_are_sent_from_the_next_call_on_and_equal_ones_change_nothing(
    gateway: Stage,
) -> None:
    agent = await gateway.key()
    before = await patch(gateway, "guarded", auth=shared())
    again = await patch(gateway, "guarded", auth=shared(name="authorization"))
    other = await patch(gateway, "guarded", auth=shared("Bearer other-planted-value"))
    assert before["auth"]["fingerprint"] == again["auth"]["fingerprint"] != other["auth"]["fingerprint"]
    assert before["etag"] != other["etag"]

    gateway.probe.forget()
    call = tool_call("guarded-read", "{}")
    answer = await gateway.http.post("/v1/mcp/tool/execute", headers=agent.headers, json=call)
    assert answer.status_code == 200, answer.text
    assert set(sent(gateway)) == {"Bearer other-planted-value"}

    shown = await patch(gateway, "guarded", auth={"kind": "none"})
    gateway.probe.forget()
    await gateway.http.post("/v1/mcp/tool/execute", headers=agent.headers, json=call)
    assert (shown["auth"], set(sent(gateway))) == ({"kind": "none"}, {None})


@pytest.mark.parametrize(
    "auth",
    [
        {"kind": "shared"},
        {"kind": "shared", "headers": {}},
        {"kind": "shared", "headers": {"Mcp-Session-Id": "planted"}},
        {"kind": "shared", "headers": {"Host": "planted"}},
        {"kind": "shared", "headers": {"A B": "planted"}},
        {"kind": "shared", "headers": {"X-Key": "planted\r\nX-Other: 1"}},
        {"kind": "shared", "headers": {"X-Key": ""}},
        {"kind": "shared", "headers": {"X-Key": "planted", "x-key": "planted"}},
        {"kind": "per_key_oauth"},
        {"headers": {"X-Key": "planted"}},
    ],
)
async def test_headers_that_cannot_be_sent_are_refused_without_their_values(
    gateway: Stage, auth: dict[str, Any]
) -> None:
    body = {"name": "refused", "url": gateway.probe_url, "network": "loopback", "auth": auth}
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    answer = await gateway.http.post("/api/v1/mcp/clients", headers=headers, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_request"
    assert "planted" not in answer.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, "v") for name in ("Authorization", "X-Key", "Host", "TE", "Mcp-Anything", "Last-Event-Id")],
        *[("X-Key", value) for value in ("a b", " a", "a\tb", "a\nb", "\u00e9")],
        ("", "v"),
        ("a b", "v"),
    ],
)
def test_what_the_control_plane_takes_the_transport_sends(name: str, value: str) -> None:
    assert (headers_problem({name: value}) is None) == (refusal_of_header(name, value) is None)


def target(vault: Vault) -> ConnectionTarget:
    sealed = vault.seal(canonical_bytes({"X-Key": "planted"}), auth_purpose("c1"))
    return target_of(connection_of(sealed))


def connection_of(sealed: bytes | None) -> Connection:
    return Connection(
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
        sealed_auth=sealed,
    )


async def test_headers_of_another_vault_key_stop_the_call_before_it_is_sent() -> None:
    async with ClientPool(1024, Vault(bytes(32))) as clients:
        with pytest.raises(EndpointRefused) as refused:
            clients.endpoint(target(Vault(b"x" * 32)))
    assert (refused.value.code, refused.value.outcome) == ("credential_unusable", Outcome.NOT_SENT)
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    ("frozen", "keeps"),
    [
        ("https://new.example/mcp", True),
        ("https://new.example/old", True),
        ("https://old.example/mcp", False),
    ],
)
def test_a_round_that_froze_another_server_sends_it_no_credential(frozen: str, *, keeps: bool) -> None:
    snapshot = ToolSnapshot("guarded-read", "read", "c1", "guarded", "mcp", None, {}, server_url=frozen)
    dialled = frozen_target(connection_of(b"sealed"), snapshot)
    assert (dialled.url, dialled.sealed_auth is not None) == (frozen, keeps)
