"""Which era of MCP a request speaks, and what each demands of its headers and metadata. Pure: no I/O.

Legacy (2025-03-26 to 2025-11-25): `initialize` gives a session, named by a header ever after. Modern
(2026-07-28): no handshake; every request carries its version and the client's capabilities itself.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from api.mcp_server.frames import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    Notification,
    Request,
    RPCProblem,
)
from governance.canonical import JSON, is_object

MODERN: Final = "2026-07-28"
"""The version of the modern era."""

LEGACY: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
"""The versions of the legacy era that have Streamable HTTP, newest first."""

WITH_BATCHES: Final = "2025-03-26"
"""The one version whose clients may send several messages at once."""

WITH_RESUMPTION: Final = "2025-11-25"
"""The version whose clients fetch an answer again by the id of the event that began its stream."""

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
SESSION_HEADER: Final = "mcp-session-id"

META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"

_ENCODED: Final = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)


@dataclass(frozen=True)
class Fields:
    """The header fields of a request by which its era is told; None where one was not sent."""

    version: str | None
    method: str | None
    name: str | None
    session: str | None


def fields_of(headers: Mapping[str, str]) -> Fields:
    """Read the fields; `headers` finds names in any case."""
    return Fields(
        version=headers.get(VERSION_HEADER),
        method=headers.get(METHOD_HEADER),
        name=headers.get(NAME_HEADER),
        session=headers.get(SESSION_HEADER),
    )


def is_modern(fields: Fields, frame: Request | Notification | None) -> bool:
    """Say whether a request is to be read by the rules of the modern era.

    Whoever names a version that is not of the legacy era, in the header or in the metadata, speaks the
    modern one; a session is of the legacy era only.
    """
    if frame is not None and META_VERSION in _meta_of(frame):
        return True
    return fields.version is not None and fields.version not in LEGACY and fields.session is None


def check_modern(fields: Fields, frame: Request | Notification) -> None:
    """Let a modern message through only if its metadata is whole and its headers say the same as its body.

    Source: MCP 2026-07-28, Basic, Per-request metadata; Transports, Standard headers.

    Raises:
        RPCProblem: with 400, as the specification demands of each case.
    """
    meta = _meta_of(frame)
    version, capabilities = meta.get(META_VERSION), meta.get(META_CAPABILITIES)
    if isinstance(frame, Request) and not (isinstance(version, str) and is_object(capabilities)):
        raise RPCProblem(
            INVALID_PARAMS, f"params._meta must hold {META_VERSION} and {META_CAPABILITIES}", status=400
        )
    if isinstance(version, str) and fields.version != version:
        raise _mismatch(VERSION_HEADER)
    if fields.version != MODERN:
        data: JSON = {"supported": [MODERN], "requested": fields.version}
        raise RPCProblem(UNSUPPORTED_VERSION, "Unsupported protocol version", data, status=400)
    if fields.method != frame.method:
        raise _mismatch(METHOD_HEADER)
    if frame.method == "tools/call" and (
        fields.name is None or decoded(fields.name) != frame.params.get("name")
    ):
        raise _mismatch(NAME_HEADER)


def check_legacy_version(fields: Fields) -> None:
    """Refuse a version header that names no version of the legacy era; its absence means 2025-03-26.

    Source: MCP 2025-11-25, Transports, Protocol Version Header.

    Raises:
        RPCProblem: with 400.
    """
    if fields.version is not None and fields.version not in LEGACY:
        data: JSON = {"supported": list(LEGACY), "requested": fields.version}
        raise RPCProblem(UNSUPPORTED_VERSION, "Unsupported protocol version", data, status=400)


def negotiated(wanted: JSON) -> str:
    """Return the version that `initialize` is answered with: the one asked for, else our newest.

    Source: MCP 2025-11-25, Lifecycle, Version Negotiation.
    """
    return wanted if isinstance(wanted, str) and wanted in LEGACY else LEGACY[0]


def decoded(value: str) -> str | None:
    """Return the value of an `Mcp-Name` header, None where it is encoded wrongly.

    Source: MCP 2026-07-28, Transports, Header value encoding.
    """
    encoded = _ENCODED.fullmatch(value)
    if encoded is None:
        return value
    try:
        return base64.b64decode(encoded.group(1), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None


def _meta_of(frame: Request | Notification) -> dict[str, JSON]:
    meta = frame.params.get("_meta")
    return meta if is_object(meta) else {}


def _mismatch(header: str) -> RPCProblem:
    return RPCProblem(
        HEADER_MISMATCH, f"The header {header} is missing or differs from the message", status=400
    )
