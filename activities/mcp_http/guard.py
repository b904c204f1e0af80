"""The outbound guard: which URLs and addresses may be dialled, and connections pinned to a checked address.

A name is resolved once per connection, every address it has is judged, and the connection goes to one of the
judged addresses, so that a second resolution cannot lead elsewhere. TLS still verifies the name.
"""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, cast
from urllib.parse import urljoin, urlsplit

import anyio
import httpcore
import httpx

from activities.mcp_http.errors import EndpointRefused, MCPError
from activities.mcp_http.headers import refusal_of_header
from activities.mcp_http.types import Endpoint, Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_METADATA_ADDRESSES: Final = frozenset(
    ipaddress.ip_address(text)
    for text in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
"""Cloud metadata services that sit outside the link-local range; refused on every network."""

_SHARED: Final = ipaddress.ip_network("100.64.0.0/10")
_NAT64: Final = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_PRIVATE: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)


def check_endpoint(endpoint: Endpoint) -> None:
    """Refuse an endpoint that must never be dialled, before any name is resolved.

    ``public`` demands https; ``private`` and ``loopback`` allow http.

    Raises:
        EndpointRefused: The URL or a configured header is not allowed.
    """
    try:
        parts = urlsplit(endpoint.url)
        port = parts.port
    except ValueError as exc:
        raise EndpointRefused(
            "The endpoint URL cannot be read; configure an absolute http or https URL."
        ) from exc
    schemes = {"https"} if endpoint.network == "public" else {"https", "http"}
    if parts.scheme not in schemes:
        raise EndpointRefused(
            f"The URL scheme {parts.scheme[:20]!r} is not allowed on the {endpoint.network} network; "
            f"use {' or '.join(sorted(schemes))}."
        )
    if not parts.hostname or port == 0:
        raise EndpointRefused("The endpoint URL names no host; configure an absolute URL.")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise EndpointRefused("The endpoint URL carries a user, a password or a fragment; remove it.")
    for name, value in endpoint.headers.items():
        reason = refusal_of_header(name, value)
        if reason is not None:
            raise EndpointRefused(f"A configured header is refused: {reason}.", "header_refused")


def same_origin(first: str, second: str) -> bool:
    """Say whether two absolute URLs share scheme, host and port; False if either cannot be read."""
    try:
        return _origin(first) == _origin(second)
    except ValueError:
        return False


def allowed_redirect(error: MCPError, url: str) -> str | None:
    """Return where a refused redirect may be followed to, or None.

    Only 307 and 308, which keep method and body, and only within the origin of `url`: a trailing slash more
    or less is what servers redirect for.
    """
    location = error.details.get("location")
    if error.code != "redirect_refused" or error.http_status not in {307, 308}:
        return None
    if not isinstance(location, str):
        return None
    try:
        target = urljoin(url, location)
    except ValueError:
        return None
    return target if is_plain(target) and same_origin(target, url) and target != url else None


def is_plain(url: str) -> bool:
    """Say whether a URL that a server chose can be requested and names neither a user nor a fragment."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return False
    return not parsed.userinfo and not parsed.fragment


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname or "", parts.port or default


def refusal_of_address(address: Address, network: Network) -> str | None:
    """Say why a connection to `address` is not allowed on `network`, or None if it is.

    Addresses that carry an IPv4 address (mapped, 6to4, NAT64) are judged as that address too.
    """
    inner = _embedded(address)
    if inner is not None:
        return refusal_of_address(inner, network)
    if address in _METADATA_ADDRESSES:
        return "it is a metadata service"
    if network == "loopback":
        return None if address.is_loopback else "it is not a loopback address"
    if address.is_loopback or address.is_unspecified:
        return "it is a loopback address"
    if address.is_link_local or address.is_multicast:
        return "it is link-local or multicast"
    allowed = _is_public(address) or (network == "private" and any(address in block for block in _PRIVATE))
    return None if allowed else "it is not a public address"


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_reserved or address in _SHARED:
        return False
    return isinstance(address, ipaddress.IPv4Address) or not (address.is_site_local or address.teredo)


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if any(address in block for block in _NAT64):
        return ipaddress.IPv4Address(address.packed[-4:])
    # ::a.b.c.d, the old compatible form; :: and ::1 themselves are judged as IPv6.
    if address.packed[:12] == bytes(12) and int(address) > 1:
        return ipaddress.IPv4Address(address.packed[-4:])
    return None


def judge_addresses(host: str, texts: Iterable[str], network: Network) -> list[str]:
    """Return the addresses to try, in order; one refused address refuses the name.

    Raises:
        EndpointRefused: Any address of the name is not allowed on this network.
    """
    chosen: list[str] = []
    for text in texts:
        # A zone index names an interface of this host; only link-local addresses carry one.
        reason = refusal_of_address(ipaddress.ip_address(text.partition("%")[0]), network)
        if reason is not None:
            raise EndpointRefused(
                f"An address of the host {host!r} is refused on the {network} network: {reason}.",
                "address_refused",
            )
        if text not in chosen:
            chosen.append(text)
    return chosen


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens TCP connections only to addresses that `judge_addresses` accepted."""

    def __init__(
        self,
        network: Network,
        connector: httpcore.AsyncNetworkBackend | None = None,
        resolve: Callable[[str, int], Awaitable[list[str]]] | None = None,
    ) -> None:
        self._network: Network = network
        self._connector = connector or cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())
        self._resolve = resolve or _resolve

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve, judge and connect within `timeout` seconds, trying the addresses in order.

        Raises:
            EndpointRefused: An address is not allowed.
            httpcore.ConnectError: No address answers, or the name has none.
            httpcore.ConnectTimeout: Time ran out.
        """
        try:
            with anyio.fail_after(timeout):
                addresses = judge_addresses(host, await self._lookup(host, port), self._network)
                return await self._connect_first(addresses, port, local_address, socket_options)
        except TimeoutError as exc:
            raise httpcore.ConnectTimeout(f"connecting to {host} took too long") from exc

    async def _lookup(self, host: str, port: int) -> list[str]:
        try:
            return await self._resolve(host, port)
        except OSError as exc:
            raise httpcore.ConnectError(f"the name {host!r} cannot be resolved") from exc

    async def _connect_first(
        self,
        addresses: list[str],
        port: int,
        local_address: str | None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None,
    ) -> httpcore.AsyncNetworkStream:
        failure: httpcore.ConnectError | None = None
        for address in addresses:
            try:
                return await self._connector.connect_tcp(address, port, None, local_address, socket_options)
            except httpcore.ConnectError as exc:
                failure = exc
        raise failure or httpcore.ConnectError("the name has no address")


async def _resolve(host: str, port: int) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]  # No lookup for what is an address already.
    except ValueError:
        pass
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
