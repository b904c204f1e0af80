"""Which web pages may send requests: our own, and for MCP those of this machine or of the settings.

Browsers name the page that a request comes from; programs do not, and need not. Pure: no I/O.

Source: MCP 2025-11-25, Transports, Security Warning (Origin); W3C, Fetch Metadata Request Headers.
"""

import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

SAME_SITE_ENOUGH = frozenset({"same-origin", "none"})
"""What `Sec-Fetch-Site` says of requests of our own pages, and of addresses that a person typed."""


def is_own_page(headers: Mapping[str, str]) -> bool:
    """Say whether a request with a cookie comes from one of our pages, or from no page at all.

    The port counts: another server on this machine is another site. The scheme does not, since a proxy may
    have ended TLS; a cookie of `SameSite=Strict` does not cross schemes anyway.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site not in SAME_SITE_ENOUGH:
        return False
    origin = headers.get("origin")
    return origin is None or _authority(origin) == headers.get("host", "").lower()


def may_speak_mcp(headers: Mapping[str, str], allowed: Collection[str]) -> bool:
    """Say whether a request to the MCP endpoint may be served, by the page that it comes from.

    Pages of this machine may reach a server of this machine; any other origin must be among `allowed`. That
    the page's host equals ours is not enough: a name that leads to this machine for a moment (DNS rebinding)
    would pass.
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed:
        return True
    authority = _authority(origin)
    return authority is not None and _is_loopback(authority) and _is_loopback(headers.get("host", ""))


def _authority(origin: str) -> str | None:
    """Return host and port of an origin in lower case, None for `null` and for what is no web origin."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query:
        return None
    return parts.netloc.lower()


def _is_loopback(authority: str) -> bool:
    try:
        host = urlsplit(f"//{authority}").hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
