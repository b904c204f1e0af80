"""Connections as the control plane edits and shows them; each function is one transaction."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.changes import record_change
from api.errors import APIProblem, malformed, not_found
from api.etags import check_if_match, etag_of
from api.pages import page_of
from api.schemas.connections import (
    ConnectionFields,
    ConnectionSettings,
    CreateConnectionBody,
    NoAuth,
    SharedAuth,
)
from api.tool_lists import checked_tool_list
from governance.canonical import JSON, canonical_bytes
from governance.codes import ErrorCode
from governance.connection_auth import NO_AUTH, auth_purpose, shown_auth
from governance.names import CONNECTION_NAME, check_connection_name
from models.base import new_id, utc_now
from models.connection import Connection, find_connection, target_of
from models.database import ReadSession, WriteSession
from models.mcp_farewell import end_sessions
from models.projection import reproject_connection, retire_connection
from models.tool import ImplementationSource, ToolImplementation, load_catalog, load_snapshots
from models.vault import Vault

SETTINGS = (
    "url",
    "network",
    "enabled",
    "tools_to_execute",
    "open_to_all_keys",
    "session_scope",
    "on_session_loss",
    "event_stream",
    "protocol_version",
    "transport",
    "elicitation",
    "tool_timeout_s",
    "idempotency",
    "refusal_statuses",
    "max_concurrency",
    "queue_timeout_s",
    "tool_prices",
    "auth",
    "ca_bundle",
    "audit_arguments",
)
"""What an operator sets; the entity tag is made from these."""

CLEARABLE = frozenset({"max_concurrency", "tool_prices", "ca_bundle"})
"""Settings that null takes away."""

DIALLING = frozenset({"url", "network", "protocol_version", "transport", "elicitation", "auth", "ca_bundle"})
"""Settings after whose change the server is contacted again."""

PROJECTED = frozenset({"url", "tool_timeout_s", "idempotency"})
"""Settings that stand in the snapshots of the connection's tools."""


@dataclass(frozen=True)
class EditedConnection:
    """A connection after an edit, and whether its server must be contacted again."""

    connection_id: str
    shown: dict[str, JSON]
    needs_sync: bool


def create_connection(
    session: WriteSession, vault: Vault, body: CreateConnectionBody, request_id: str
) -> tuple[str, str]:
    """Insert a connection; return its id and name.

    Raises:
        APIProblem: invalid_request for its name, invalid_filter for its tool list, conflict.
    """
    if problem := check_connection_name(body.name):
        raise malformed(f"name: {problem.rstrip('.')}", problems=[{"path": "name", "problem": problem}])
    connection_id = new_id()
    values = _values(vault, connection_id, body)
    connection = Connection(id=connection_id, name=body.name, **values)
    session.add(connection)
    try:
        session.flush()
    except IntegrityError as error:
        raise APIProblem(ErrorCode.CONFLICT, {"what": "connection", "name": body.name}) from error
    record_change(
        session,
        request_id,
        "create_connection",
        connection=connection.id,
        name=body.name,
        settings=_settings(connection),
    )
    return connection.id, connection.name


def edit_connection(
    session: WriteSession,
    vault: Vault,
    name: str,
    body: ConnectionSettings,
    if_match: str | None,
    request_id: str,
) -> EditedConnection:
    """Change a connection's settings and, where they are part of its tools' snapshots, its tools."""
    connection = load_connection(session, name, for_update=True)
    before = _settings(connection)
    check_if_match(if_match, etag_of(before), "connection")
    values = _values(vault, connection.id, body)
    sealed = values.pop("sealed_auth", None)
    changed = {field for field, value in values.items() if getattr(connection, field) != value}
    if changed & DIALLING:
        end_sessions(session, target_of(connection))
    for field in changed:
        setattr(connection, field, values[field])
    if "auth" in changed:
        # Sealing the same value again gives other bytes; the fingerprint says whether it is another.
        connection.sealed_auth = sealed
    if changed:
        connection.updated_at = utc_now()
    session.flush()
    if changed & PROJECTED:
        reproject_connection(session, connection)
    record_change(
        session,
        request_id,
        "edit_connection",
        connection=connection.id,
        name=name,
        before={field: before[field] for field in sorted(changed)},
        after={field: _settings(connection)[field] for field in sorted(changed)},
    )
    return EditedConnection(connection.id, _show(session, connection), bool(changed & DIALLING))


def delete_connection(
    session: WriteSession, name: str, if_match: str | None, request_id: str
) -> dict[str, JSON]:
    """Retire a connection's tools, and delete it with every grant and session on it."""
    connection = load_connection(session, name, for_update=True)
    check_if_match(if_match, etag_of(_settings(connection)), "connection")
    retired = retire_connection(session, connection.id)
    connection_id = connection.id
    end_sessions(session, target_of(connection))
    session.delete(connection)
    record_change(
        session,
        request_id,
        "delete_connection",
        connection=connection_id,
        name=name,
        retired_tools=list(retired),
    )
    return {"id": connection_id, "retired_tools": list(retired)}


def load_connection(session: Session, name: str, *, for_update: bool = False) -> Connection:
    """Return a connection by name, locked against other edits if asked; raises not_found."""
    connection = find_connection(session, name) if CONNECTION_NAME.fullmatch(name) else None
    if connection is None:
        raise not_found("connection", name[:100])
    if for_update:
        session.refresh(connection, with_for_update=True)
    return connection


def read_connection(session: ReadSession, name: str) -> dict[str, JSON]:
    """Return a connection as the control plane shows it."""
    return _show(session, load_connection(session, name))


def list_connections(session: ReadSession, limit: int, cursor: str | None) -> dict[str, JSON]:
    """Return a page of connections by name."""
    query = select(Connection).order_by(Connection.name).limit(limit + 1)
    if cursor is not None:
        if not CONNECTION_NAME.fullmatch(cursor):
            raise malformed("cursor is the next_cursor of an earlier page")
        query = query.where(Connection.name > cursor)
    rows = session.scalars(query).all()
    return page_of(rows, limit, lambda row: _show(session, row), lambda row: row.name)


def list_tools(session: ReadSession, name: str) -> dict[str, JSON]:
    """Return the live tools of a connection as rounds would freeze them, and the dropped ones."""
    connection = load_connection(session, name)
    admitted = connection.rules().tools
    live = [tool for tool in load_catalog(session) if tool.connection_name == name]
    snapshots = load_snapshots(session, {tool.snapshot_digest for tool in live})
    shown: list[JSON] = []
    for tool in live:
        snapshot = json.loads(snapshots[tool.snapshot_digest])
        shown.append(
            {
                "name": tool.exposed_name,
                "upstream_name": tool.upstream_name,
                "description": snapshot["description"],
                "input_schema": snapshot["input_schema"],
                "parallel_safe": snapshot["parallel_safe"],
                "policy_provenance": snapshot["policy_provenance"],
                "timeout_s": snapshot["timeout_s"],
                "idempotency": snapshot["idempotency"],
                "on_connection_list": admitted.admits(tool.upstream_name),
            }
        )
    return {"tools": shown, "dropped_tools": connection.dropped_tools}


def _values(vault: Vault, connection_id: str, body: ConnectionFields) -> dict[str, Any]:
    """Return the columns that a body sets; absent and null leave a field alone, unless null means none."""
    given = body.model_dump(exclude_unset=True, exclude={"name", "auth"})
    values = {field: value for field, value in given.items() if value is not None or field in CLEARABLE}
    if body.auth is not None:
        values |= _auth(vault, connection_id, body.auth)
    if "tools_to_execute" in given:
        raw = given["tools_to_execute"]
        values["tools_to_execute"] = None if raw is None else list(checked_tool_list(raw, "tools_to_execute"))
    return values


def _auth(vault: Vault, connection_id: str, auth: NoAuth | SharedAuth) -> dict[str, Any]:
    if isinstance(auth, NoAuth):
        return {"auth": None, "sealed_auth": None}
    headers = auth.revealed()
    sealed = vault.seal(canonical_bytes(headers), auth_purpose(connection_id))
    return {"auth": shown_auth(connection_id, headers), "sealed_auth": sealed}


def _settings(connection: Connection) -> dict[str, JSON]:
    settings = {field: getattr(connection, field) for field in SETTINGS}
    return {**settings, "auth": connection.auth or dict(NO_AUTH)}


def _show(session: Session, connection: Connection) -> dict[str, JSON]:
    tool_count = session.scalar(
        select(func.count())
        .select_from(ToolImplementation)
        .join(ImplementationSource, ImplementationSource.id == ToolImplementation.implementation_source_id)
        .where(ImplementationSource.connection_id == connection.id, ToolImplementation.retired_at.is_(None))
    )
    return {
        "id": connection.id,
        "name": connection.name,
        **_settings(connection),
        "health": connection.health.value,
        "last_failure": connection.last_failure,
        "dropped_tools": connection.dropped_tools,
        "tool_count": tool_count,
        "synced_at": None if connection.synced_at is None else connection.synced_at.isoformat(),
        "created_at": connection.created_at.isoformat(),
        "updated_at": connection.updated_at.isoformat(),
        "etag": etag_of(_settings(connection)),
    }
