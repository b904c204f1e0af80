"""How a connection proves itself to its server: nothing, or headers that the operator gave for all keys.

What the headers hold is stored sealed. Shown are their names and a fingerprint, by which a configuration file
that names the same values is told from one that names others.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from governance.canonical import JSON, digest_of

MOST_HEADERS: Final = 20
LONGEST_VALUE: Final = 8192

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_OWNED: Final = frozenset(
    {
        *("accept", "accept-charset", "accept-encoding", "connection", "content-encoding", "content-length"),
        *("content-type", "expect", "host", "keep-alive", "last-event-id", "origin", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers of HTTP framing and of the protocol: the transport sets them."""


class AuthKind(StrEnum):
    """Whose credential calls of a connection carry."""

    NONE = "none"
    SHARED = "shared"
    """The operator's, the same for every key."""


NO_AUTH: Final[Mapping[str, JSON]] = {"kind": AuthKind.NONE.value}
"""What is shown of a connection that sends no credential."""


def headers_problem(headers: Mapping[str, str]) -> str | None:
    """Say why headers cannot be sent with each request, or None; never repeats a value."""
    if not 1 <= len(headers) <= MOST_HEADERS:
        return f"give 1 to {MOST_HEADERS} headers"
    if len({name.lower() for name in headers}) != len(headers):
        return "a header is named twice; upper and lower case are the same"
    return next(filter(None, (_problem(name, value) for name, value in headers.items())), None)


def _problem(name: str, value: str) -> str | None:
    lowered = name.lower()
    if not _TOKEN.fullmatch(name):
        return f"{name[:40]!r} is not the name of a header"
    if lowered in _OWNED or lowered.startswith("mcp-"):
        return f"header {name!r} belongs to the protocol and cannot be set"
    if len(value) > LONGEST_VALUE or not _VALUE.fullmatch(value):
        return f"the value of {name!r} must be 1 to {LONGEST_VALUE} characters of printable ASCII"
    return None


def shown_auth(connection_id: str, headers: Mapping[str, str]) -> dict[str, JSON]:
    """Return what is stored in the open and shown of shared headers: their names and a fingerprint.

    The fingerprint depends on the connection, so that equal values of two connections do not look equal.
    """
    lowered: dict[str, JSON] = {name.lower(): headers[name] for name in headers}
    return {
        "kind": AuthKind.SHARED.value,
        "headers": sorted(headers),
        "fingerprint": digest_of({"connection": connection_id, "headers": lowered}),
    }


def auth_purpose(connection_id: str) -> str:
    """Return what a connection's headers are sealed for, so that they open for no other connection."""
    return f"connection-auth:{connection_id}"
