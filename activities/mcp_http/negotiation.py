"""Which era and version to speak with a server: decisions over its answers. Pure: no I/O.

``auto`` asks ``server/discover`` first. A modern server answers it; "modern, but no version in common" fails;
what a server of the legacy era answers to an unknown method (anything) leads to ``initialize``. Overload and
silence are no verdict: pinning a server to the legacy era because it was slow would never be undone, as a
server of both eras goes on answering ``initialize``. At most three requests are spent.
Source: MCP 2026-07-28, Transports, Backward compatibility.
"""

from dataclasses import dataclass
from typing import Final

from activities.mcp_http import wire
from activities.mcp_http.errors import MCPError, Outcome, ProtocolError, TransportError
from activities.mcp_http.headers import is_session_id
from activities.mcp_http.types import JSON, OpenSession

MAX_REQUESTS: Final = 3

_NO_VERDICT_STATUSES: Final = frozenset({401, 403, 407, 429, 502, 503, 504})
"""Answers of something in front of the server, or of a server that cannot work now."""


@dataclass(frozen=True, slots=True)
class Discover:
    """Next: POST ``server/discover``."""


@dataclass(frozen=True, slots=True)
class Initialize:
    """Next: POST ``initialize``, offering `version`."""

    version: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Done: the server is modern."""

    session: OpenSession


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Done: no way to speak with this server, or none now."""

    error: MCPError


Move = Discover | Initialize | Adopt | GiveUp


def first_move(protocol_version: str) -> Move:
    """Return what to send first for a configured ``protocol_version``."""
    if protocol_version in {"auto", wire.MODERN_VERSION}:
        return Discover()
    if protocol_version in wire.LEGACY_VERSIONS:
        return Initialize(protocol_version)
    known = ", ".join(("auto", wire.MODERN_VERSION, *wire.LEGACY_VERSIONS))
    return GiveUp(
        ProtocolError(
            "unsupported_protocol_version",
            f"The protocol version {protocol_version!r} is not one this client speaks; use one of: {known}.",
            Outcome.NOT_SENT,
        )
    )


def after_discover(answer: dict[str, JSON] | MCPError, configured: str, spent: int) -> Move:
    """Return the next move after an answer to ``server/discover``.

    Args:
        answer: The result object, or the error the request ended with.
        configured: The endpoint's ``protocol_version``.
        spent: Requests sent so far, this one included.
    """
    pinned = configured != "auto"
    if not isinstance(answer, MCPError):
        session = _discovered(answer)
        if session is not None:
            return Adopt(session)
        return GiveUp(_no_common_version([])) if pinned else Initialize(wire.LEGACY_VERSIONS[0])
    if answer.code == "unsupported_protocol_version":
        supported = wire.as_list(answer.details.get("supported")) or []
        if wire.MODERN_VERSION in supported:
            # A server that refuses the version it supports is starting up, or broken: ask once more.
            return Discover() if spent < MAX_REQUESTS - 1 else GiveUp(answer)
        if supported and not any(version in wire.LEGACY_VERSIONS for version in supported):
            return GiveUp(_no_common_version(supported))
    return GiveUp(answer) if pinned or _is_no_verdict(answer) else Initialize(wire.LEGACY_VERSIONS[0])


def _is_no_verdict(error: MCPError) -> bool:
    if error.http_status is not None:
        return error.http_status in _NO_VERDICT_STATUSES
    # Without a status nothing usable arrived at all, or a JSON-RPC error on 200, which is a verdict.
    return isinstance(error, TransportError)


def after_initialize_error(error: MCPError, configured: str, spent: int) -> Move:
    """Return the next move after ``initialize`` failed: discover again if the server says it is modern."""
    if (
        configured == "auto"
        and error.code == "unsupported_protocol_version"
        and spent < MAX_REQUESTS
        and wire.MODERN_VERSION in (wire.as_list(error.details.get("supported")) or [])
    ):
        return Discover()
    return GiveUp(error)


def _discovered(result: dict[str, JSON]) -> OpenSession | None:
    versions = wire.as_list(result.get("supportedVersions")) or []
    if wire.MODERN_VERSION not in versions:
        return None
    meta = wire.as_object(result.get("_meta")) or {}
    instructions = result.get("instructions")
    return OpenSession(
        session_id=None,
        protocol_version=wire.MODERN_VERSION,
        era="modern",
        server_info=wire.as_object(meta.get("io.modelcontextprotocol/serverInfo")) or {},
        capabilities=wire.as_object(result.get("capabilities")) or {},
        instructions=instructions if isinstance(instructions, str) else None,
    )


def read_initialized(result: dict[str, JSON], session_id: str | None) -> OpenSession:
    """Read the result of ``initialize`` and the session header of its response.

    Raises:
        ProtocolError: The server counter-offers a version this client does not speak (code
            ``unsupported_protocol_version``), or its session id may not go into a header
            (``invalid_session_id``).
    """
    if session_id is not None and not is_session_id(session_id):
        raise ProtocolError(
            "invalid_session_id",
            "The MCP server's session id holds characters other than visible ASCII, or is too long.",
            Outcome.REFUSED,
        )
    version = result.get("protocolVersion")
    if not isinstance(version, str) or version not in wire.LEGACY_VERSIONS:
        raise _no_common_version([version])
    instructions = result.get("instructions")
    return OpenSession(
        session_id=session_id,
        protocol_version=version,
        era="legacy",
        server_info=wire.as_object(result.get("serverInfo")) or {},
        capabilities=wire.as_object(result.get("capabilities")) or {},
        instructions=instructions if isinstance(instructions, str) else None,
    )


def _no_common_version(offered: list[JSON]) -> ProtocolError:
    named = [wire.clean_text(version, 40) for version in offered if isinstance(version, str)]
    return ProtocolError(
        "unsupported_protocol_version",
        f"The MCP server offers no protocol version this client speaks, but {', '.join(named) or 'none'}.",
        Outcome.REFUSED,
        details={"supported": named},
    )
