"""What a binding shows beside its decision: the MCP session of its calls, as the core document writes it.

Composed when it is read. Source: core document, MCP session state (`binding_payload.mcp`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from governance.canonical import JSON, is_object
from governance.snapshots import ToolSnapshot
from models.binding import ToolBinding
from models.connection import Connection
from models.mcp_session import McpSession, SessionState
from models.session_scope import ScopeOwner, scope_at
from models.tool import ImplementationSource, ToolImplementation, load_snapshots

MASKED = "********"
"""What is shown of a session id: that there is one. Whoever has the id can speak in its session."""


@dataclass(frozen=True)
class _Bound:
    """A binding to a tool of a connection, and the scope of its sessions."""

    binding: ToolBinding
    upstream_name: str
    server_url: str
    connection: Connection
    scope: str


def load_binding_payloads(
    session: Session, bindings: Iterable[ToolBinding], key_id: str, conversation_id: str | None
) -> dict[str, dict[str, JSON]]:
    """Return the payload of each binding of one owner by id; {} for one whose session was never opened."""
    wanted = {binding.id: binding for binding in bindings}
    payloads: dict[str, dict[str, JSON]] = {name: {} for name in wanted}
    bound = _bound(session, wanted, key_id, conversation_id)
    stored = _sessions(session, bound)
    for one in bound:
        row = stored.get((one.connection.id, one.scope))
        # A row without a session is the claim of a worker that never got one.
        if row is not None and row.negotiated is not None:
            payloads[one.binding.id] = {"mcp": _shown(one, row, row.negotiated)}
    return payloads


def _bound(
    session: Session, wanted: Mapping[str, ToolBinding], key_id: str, conversation_id: str | None
) -> list[_Bound]:
    implementation_ids = {binding.tool_implementation_id for binding in wanted.values()}
    rows = session.execute(
        select(ToolImplementation, Connection)
        .join(ImplementationSource, ImplementationSource.id == ToolImplementation.implementation_source_id)
        .join(Connection, Connection.id == ImplementationSource.connection_id)
        .where(ToolImplementation.id.in_(sorted(implementation_ids)))
    ).all()
    found = {implementation.id: (implementation, connection) for implementation, connection in rows}
    moved = {
        binding.snapshot_digest
        for binding in wanted.values()
        if binding.tool_implementation_id in found
        and found[binding.tool_implementation_id][0].snapshot_digest != binding.snapshot_digest
    }
    snapshots = {
        digest: ToolSnapshot.from_json(json.loads(content))
        for digest, content in load_snapshots(session, moved).items()
    }
    return [
        _of(
            binding,
            *found[binding.tool_implementation_id],
            snapshots,
            ScopeOwner(key_id, name, conversation_id),
        )
        for name, binding in wanted.items()
        if binding.tool_implementation_id in found
    ]


def _of(
    binding: ToolBinding,
    implementation: ToolImplementation,
    connection: Connection,
    snapshots: Mapping[str, ToolSnapshot],
    owner: ScopeOwner,
) -> _Bound:
    frozen = snapshots.get(binding.snapshot_digest)
    # What is stored now was projected from the connection as it is.
    url = connection.url if frozen is None or frozen.server_url is None else frozen.server_url
    upstream_name = implementation.upstream_name if frozen is None else frozen.upstream_name
    scope = scope_at(owner.scope(connection.session_scope), url, connection.url)
    return _Bound(binding, upstream_name, url, connection, scope)


def _sessions(session: Session, bound: Sequence[_Bound]) -> dict[tuple[str, str], McpSession]:
    scopes = sorted({one.scope for one in bound})
    found: dict[tuple[str, str], McpSession] = {}
    # SQLite before 3.32 allows 999 parameters in a statement.
    for start in range(0, len(scopes), 500):
        rows = session.scalars(select(McpSession).where(McpSession.scope.in_(scopes[start : start + 500])))
        found |= {(row.connection_id, row.scope): row for row in rows}
    return found


def _shown(bound: _Bound, row: McpSession, negotiated: Mapping[str, JSON]) -> dict[str, JSON]:
    is_open = row.state is SessionState.OPEN
    shown: dict[str, JSON] = {
        "transport_kind": bound.connection.transport.value,
        "server_url": bound.server_url,
        "tool_name": bound.upstream_name,
        "session_id": MASKED if is_open and negotiated.get("hasSessionId", True) else None,
        "session_state": row.state.value,
    }
    if row.last_event is not None:
        # What an event says may name its session, so only its kind and time are shown.
        message = row.last_event.get("message")
        method = message.get("method") if is_object(message) else None
        shown["last_sse_event"] = {"method": method, "at": row.last_event.get("at")}
    if is_open:
        shown["initialize_result"] = {
            name: negotiated.get(name) for name in ("protocolVersion", "serverInfo")
        }
    return shown
