"""Which URLs, headers and addresses may be dialled, and that the dialled address is the judged one."""

import ipaddress
import socket
from typing import Any

import httpcore
import pytest

from activities.mcp_http.client import build_http_client
from activities.mcp_http.errors import EndpointRefused, Outcome
from activities.mcp_http.guard import (
    GuardedBackend,
    check_endpoint,
    judge_addresses,
    refusal_of_address,
    same_origin,
)
from activities.mcp_http.types import Endpoint, Network
from tests.activities.mcp_http.connecting import client_of, ssl_context
from tests.support.raw_server import Peer, RawRequest, http, raw_server

PUBLIC = [
    "93.184.216.34",
    "8.8.8.8",
    "2606:4700::1111",
    "64:ff9b::8.8.8.8",
    "::ffff:8.8.8.8",
    "2002:808:808::1",
]
PRIVATE = [
    "10.0.0.1",
    "172.16.5.5",
    "192.168.1.1",
    "100.64.0.1",
    "fd12:3456::1",
    "::ffff:10.0.0.1",
    "64:ff9b::10.0.0.1",
]
LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
NEVER = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
    "240.0.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "192.0.2.1",
    "198.18.0.1",
    "2001:db8::1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "::169.254.169.254",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "fec0::1",
    "0.0.0.1",
    "64:ff9b:1::a9fe:a9fe",
]

CASES = [
    *((text, "public") for text in PUBLIC),
    *((text, "private") for text in PRIVATE),
    *((text, "loopback") for text in LOOPBACK),
    *((text, "never") for text in NEVER),
]


@pytest.mark.parametrize(("text", "kind"), CASES)
def test_an_address_is_allowed_only_on_the_networks_it_belongs_to(text: str, kind: str) -> None:
    address = ipaddress.ip_address(text)
    allowed: list[Network] = [
        network
        for network in ("public", "private", "loopback")
        if refusal_of_address(address, network) is None
    ]
    expected = {
        "public": ["public", "private"],
        "private": ["private"],
        "loopback": ["loopback"],
        "never": [],
    }
    assert allowed == expected[kind]


def test_one_refused_address_refuses_the_name() -> None:
    with pytest.raises(EndpointRefused) as caught:
        judge_addresses("rebind.example", ["8.8.8.8", "127.0.0.1"], "public")
    assert (caught.value.code, caught.value.outcome) == ("address_refused", Outcome.NOT_SENT)
    assert judge_addresses("two.example", ["8.8.8.8", "8.8.4.4", "8.8.8.8"], "public") == [
        "8.8.8.8",
        "8.8.4.4",
    ]
    with pytest.raises(EndpointRefused):
        judge_addresses("zone.example", ["fe80::1%eth0"], "private")


REFUSED_URLS: list[tuple[str, Network]] = [
    ("http://mcp.example/mcp", "public"),
    ("ftp://mcp.example/", "private"),
    ("file:///etc/passwd", "loopback"),
    ("https://user:pw@mcp.example/", "public"),
    ("https://user@mcp.example/", "public"),
    ("https://mcp.example/#f", "public"),
    ("https:///mcp", "public"),
    ("//mcp.example/mcp", "public"),
    ("mcp.example", "public"),
    ("", "public"),
    ("https://mcp.example:99999/", "public"),
    ("https://mcp.example:0/", "public"),
    ("https://[::1/", "public"),
]


@pytest.mark.parametrize(("url", "network"), REFUSED_URLS)
def test_a_url_that_must_not_be_dialled_is_refused_before_any_lookup(url: str, network: Network) -> None:
    endpoint = Endpoint(url, network=network)
    with pytest.raises(EndpointRefused) as caught:
        build_http_client(endpoint, ssl_context())
    assert "pw" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Host", "x"),
        ("content-type", "x"),
        ("Content-Length", "0"),
        ("Accept", "x"),
        ("Mcp-Session-Id", "x"),
        ("MCP-Protocol-Version", "x"),
        ("mcp-param-a", "x"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close"),
        ("Upgrade", "h2c"),
        ("Last-Event-ID", "1"),
        ("Accept-Encoding", "gzip"),
        ("Origin", "x"),
        ("TE", "trailers"),
        ("X-A", "a\r\nX-Evil: 1"),
        ("X-A", "a\nb"),
        ("X-A", "a\x00b"),
        ("X-A", "é"),
        ("X-A", " a"),
        ("X\r\n", "a"),
        ("", "a"),
        ("X A", "a"),
        ("X:A", "a"),
    ],
)
def test_a_configured_header_may_not_break_framing_or_the_protocol(name: str, value: str) -> None:
    with pytest.raises(EndpointRefused) as caught:
        check_endpoint(Endpoint("https://mcp.example/", headers={name: value}))
    assert caught.value.code == "header_refused"


def test_ordinary_headers_and_urls_pass() -> None:
    headers = {"Authorization": "Bearer a.b-c", "X-Api-Key": "k k", "Empty": "", "Cookie": "a=b"}
    check_endpoint(Endpoint("https://mcp.example:8443/mcp?tenant=1", headers=headers))
    assert "Bearer" not in repr(Endpoint("https://mcp.example/", headers=headers))


def test_origins_are_compared_with_default_ports() -> None:
    assert same_origin("https://a/x", "https://A:443/y")
    assert not same_origin("https://a/", "http://a/")
    assert not same_origin("https://a/", "https://a:444/")
    assert not same_origin("https://a/", "https://[")


@pytest.mark.anyio
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1"])
async def test_names_and_odd_spellings_of_loopback_are_refused_on_other_networks(host: str) -> None:
    for network in ("public", "private"):
        with pytest.raises(EndpointRefused):
            await GuardedBackend(network).connect_tcp(host, 1, timeout=2)


@pytest.mark.anyio
async def test_a_call_to_a_refused_address_sends_nothing() -> None:
    async def script(_request: RawRequest, peer: Peer) -> None:
        await peer.send(http(200))

    async with raw_server(script) as server:
        async with client_of(server.url, network="private") as client:
            with pytest.raises(EndpointRefused) as caught:
                await client.open_session()
        assert caught.value.outcome is Outcome.NOT_SENT
        assert server.connections == 0


class Recording(httpcore.AsyncNetworkBackend):
    """Notes where connections would go."""

    def __init__(self) -> None:
        self.dialled: list[tuple[str, int]] = []

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        self.dialled.append((host, port))
        if len(self.dialled) == 1:
            raise httpcore.ConnectError("first address is down")
        return httpcore.AsyncMockStream([])


@pytest.mark.anyio
async def test_the_name_is_resolved_once_and_only_judged_addresses_are_dialled() -> None:
    lookups: list[str] = []

    async def resolve(host: str, _port: int) -> list[str]:
        lookups.append(host)
        return ["8.8.8.8", "8.8.4.4"] if len(lookups) == 1 else ["127.0.0.1"]

    recording = Recording()
    backend = GuardedBackend("public", connector=recording, resolve=resolve)
    await backend.connect_tcp("rebind.example", 443, timeout=2)
    assert recording.dialled == [("8.8.8.8", 443), ("8.8.4.4", 443)]
    assert lookups == ["rebind.example"]
    with pytest.raises(EndpointRefused):
        await backend.connect_tcp("rebind.example", 443, timeout=2)


@pytest.mark.anyio
async def test_a_name_that_does_not_resolve_is_a_failed_connection() -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        raise socket.gaierror("unknown")

    with pytest.raises(httpcore.ConnectError):
        await GuardedBackend("public", resolve=resolve).connect_tcp("nowhere.example", 443, timeout=2)
