"""What stands around a call that is about to be made: key, connection, tool and sessions of now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from activities.drift import StoredTool
from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import Classification, ErrorCode
from governance.decision import DecisionContext, Denied, GovernedTool, Level, NeedsApproval, decide
from governance.failures import CallError
from governance.filters import RequestFilter
from governance.snapshots import ToolSnapshot
from models.binding import BindingRef
from models.catalog import CHANGED_SINCE_PINNED
from models.connection import Connection, SessionScope
from models.key import ApiKey, load_key_rules
from models.mcp_session import STORED_SESSION, McpSession, StoredSession
from models.tool import IS_CHANGED, ToolDefinition, ToolImplementation

MOST_SCOPES = 2 * len(SessionScope)
"""Session scopes that a call may turn out to use: one a kind, at the address of now or the frozen one."""


@dataclass(frozen=True)
class Surroundings:
    """What stands around a call now, whatever stood there when its round was frozen."""

    key: ApiKey | None
    connection: Connection | None
    tool: StoredTool
    broke_pin: bool
    """Whether an operator pinned the tool and what is stored of it now is not what was pinned."""
    is_programs: bool
    """Whether the tool is of a program version's catalog, which only its own callers are bound to."""
    requires_approval: bool
    """Whether an operator wants each call of the tool approved, since before the round or not."""
    sessions: Mapping[str, StoredSession]
    """The stored sessions that the call may turn out to use, by scope."""


_AROUND = (
    select(
        ApiKey,
        Connection,
        ToolImplementation.snapshot_digest,
        ToolImplementation.retired_at,
        IS_CHANGED,
        ToolDefinition.program_version_id,
        ToolDefinition.requires_approval,
        *STORED_SESSION,
    )
    .select_from(ToolImplementation)
    .join(ToolDefinition, ToolDefinition.id == ToolImplementation.tool_definition_id)
    .outerjoin(ApiKey, ApiKey.id == bindparam("key"))
    .outerjoin(Connection, Connection.id == bindparam("connection"))
    .outerjoin(
        McpSession,
        (McpSession.connection_id == Connection.id)
        & McpSession.scope.in_([bindparam(f"scope_{number}") for number in range(MOST_SCOPES)]),
    )
    .where(ToolImplementation.id == bindparam("implementation"))
)


def look_around(
    session: Session, key_id: str, binding: BindingRef, snapshot: ToolSnapshot, scopes: Sequence[str]
) -> Surroundings:
    """Read in one statement what a call meets now; `scopes` are the `MOST_SCOPES` that it may come to use.

    Asked for after the locks, so that nothing of it is older than they are.
    """
    found = session.execute(
        _AROUND,
        {
            "key": key_id,
            "connection": snapshot.connection,
            "implementation": binding.tool_implementation_id,
            **{f"scope_{number}": scope for number, scope in enumerate(scopes)},
        },
    ).all()
    key, connection, digest, retired_at, broke_pin, version_id, requires_approval = found[0][:7]
    stored: list[tuple[Any, ...]] = [row[7:] for row in found]
    sessions = {scope: StoredSession(*columns) for scope, *columns in stored if scope is not None}
    return Surroundings(
        key=key,
        connection=connection,
        tool=StoredTool(digest, retired_at),
        broke_pin=broke_pin,
        is_programs=version_id is not None,
        requires_approval=requires_approval,
        sessions=sessions,
    )


def judge_again(session: Session, snapshot: ToolSnapshot, now: Surroundings) -> CallError | None:
    """Decide over rows as they are now; return why a call that was frozen may not be sent any more."""
    key, connection = now.key, now.connection
    details: dict[str, JSON] = {"tool": snapshot.exposed_name, "outcome": "not_sent"}
    if key is None:
        return call_error(ErrorCode.KEY_DISABLED, details, Classification.AUTHORIZATION)
    if connection is None and snapshot.connection is not None:
        return call_error(ErrorCode.TOOL_NOT_FOUND, details, Classification.AUTHORIZATION)
    context = DecisionContext(
        key=load_key_rules(session, key),
        connections={} if connection is None else {connection.name: connection.rules()},
        request=RequestFilter(),
        is_program=now.is_programs,
    )
    name = None if connection is None else connection.name
    withheld = CHANGED_SINCE_PINNED if now.broke_pin else None
    tool = GovernedTool(
        exposed_name=snapshot.exposed_name,
        connection=name,
        upstream_name=snapshot.upstream_name,
        requires_approval=now.requires_approval or snapshot.requires_approval,
        withheld=withheld,
    )
    match decide(context, tool):
        case Denied(level, code, reason):
            if level is Level.CATALOG:
                # Frozen as it was accepted, so the caller could not have known: it is told what to wait for.
                details["reason"] = reason
            return call_error(code, details, Classification.AUTHORIZATION)
        case NeedsApproval():
            return call_error(ErrorCode.APPROVAL_UNAVAILABLE, details, Classification.AUTHORIZATION)
        case _:
            return None
