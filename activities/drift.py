"""What became of a tool since a round froze it: the round keeps what it froze, and says so.

A running round never follows an edit of a schema or of an address. It goes on with what it froze, and the
difference is written to the audit trail and to the round's events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from activities.mcp_http.guard import same_origin
from governance.canonical import JSON
from governance.snapshots import ToolSnapshot
from models.audit import AuditFact, AuditKind, append_audit
from models.binding import BindingRef
from models.connection import Connection, ConnectionTarget, target_of
from models.database import WriteSession
from models.round import NewEvent, append_events


@dataclass(frozen=True)
class DriftingCall:
    """A call whose frozen tool is compared with what is stored now."""

    round_id: str
    position: int
    tool_call_id: str
    key_id: str
    invocation_id: str
    binding: BindingRef
    snapshot: ToolSnapshot


@dataclass(frozen=True)
class StoredTool:
    """The implementation that a call is bound to, as it is stored now."""

    snapshot_digest: str
    retired_at: datetime | None


def target_at(target: ConnectionTarget, url: str) -> ConnectionTarget:
    """Return how to dial a connection at an earlier address.

    A credential goes only to the server that it was given for, and so does the trust in authorities of its
    own: an address elsewhere gets neither.
    """
    if url == target.url:
        return target
    if same_origin(url, target.url):
        return replace(target, url=url)
    return replace(target, url=url, sealed_auth=None, ca_bundle=None)


def frozen_target(connection: Connection, snapshot: ToolSnapshot) -> ConnectionTarget:
    """Return how to dial a connection: as it is now, but at the address that was frozen."""
    target = target_of(connection)
    return target if snapshot.server_url is None else target_at(target, snapshot.server_url)


def report_drift(
    session: WriteSession, call: DriftingCall, now: StoredTool, connection: Connection | None
) -> None:
    """Tell where the stored tool is not what the call's round froze any more; nothing else changes."""
    drifted = _drift(call, now, connection)
    if not drifted:
        return
    append_audit(
        session,
        AuditFact(
            AuditKind.TOOL_DRIFTED,
            actor=call.key_id,
            round_id=call.round_id,
            invocation_id=call.invocation_id,
            tool_name=call.snapshot.exposed_name,
            data={"position": call.position, "frozen": call.binding.snapshot_digest, **drifted},
        ),
    )
    data: dict[str, JSON] = {
        "position": call.position,
        "tool_call_id": call.tool_call_id,
        "tool": call.snapshot.exposed_name,
        "changed": sorted(drifted),
    }
    append_events(session, call.round_id, [NewEvent("tool_drifted", data)])


def _drift(call: DriftingCall, now: StoredTool, connection: Connection | None) -> Mapping[str, JSON]:
    drifted: dict[str, JSON] = {}
    if now.snapshot_digest != call.binding.snapshot_digest:
        drifted["snapshot"] = now.snapshot_digest
    if now.retired_at is not None:
        drifted["retired"] = True
    if connection is not None and call.snapshot.server_url not in (None, connection.url):
        drifted["server_url"] = True
    return drifted
