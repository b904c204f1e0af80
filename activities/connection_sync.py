"""Verify a connection and discover its tools: dial, initialize, list, project."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.client_pool import ClientPool
from activities.mcp_http.errors import MCPError, Outcome
from activities.mcp_http.types import ListedTool, ToolListing
from governance.schemas import SchemaProblem, compile_schema
from models.base import utc_now
from models.connection import Connection, ConnectionHealth, ConnectionTarget, clear_stale, target_of
from models.database import Database, WriteSession
from models.projection import DeclaredTool, ProjectionReport, project_connection

LISTINGS = 3
"""Times that one sync lists at most, when the server announces changes while it does."""

CONNECTION_GONE = "ConnectionGone"
"""Failure type: the connection was deleted meanwhile."""


@dataclass(frozen=True)
class SyncConnection:
    """Which connection to contact."""

    connection_id: str


def _nothing() -> list[str]:
    return []


def _no_drops() -> list[list[str]]:
    return []


@dataclass(frozen=True)
class SyncReport:
    """What contact with the server showed; `failure` has stage, code and message when it failed."""

    ok: bool
    tools: int = 0
    added: list[str] = field(default_factory=_nothing)
    changed: list[str] = field(default_factory=_nothing)
    retired: list[str] = field(default_factory=_nothing)
    dropped: list[list[str]] = field(default_factory=_no_drops)
    """[name, reason] of tools that cannot be used."""
    failure: dict[str, str] | None = None


@dataclass(frozen=True)
class _Contact:
    listing: ToolListing | None
    failure: dict[str, str] | None


class ConnectionSyncer:
    """Holds what contacting servers needs."""

    def __init__(self, database: Database, clients: ClientPool) -> None:
        """Use a database and a pool of clients."""
        self._database = database
        self._clients = clients

    @activity.defn(name="sync_connection")
    async def sync_connection(self, request: SyncConnection) -> SyncReport:
        """List the server's tools and project them; idempotent. A failure keeps the last good list."""
        recorded = await self._list(request.connection_id)
        for _ in range(LISTINGS - 1):
            if not recorded.again:
                break
            recorded = await self._list(request.connection_id)
        return recorded.report

    async def _list(self, connection_id: str) -> "_Recorded":
        begun = await self._database.write(_begin, connection_id)
        if begun is None:
            raise ApplicationError(
                f"Connection {connection_id!r} does not exist.", type=CONNECTION_GONE, non_retryable=True
            )
        return await self._database.write(_record, begun, await _contact(self._clients, begun.target))


@dataclass(frozen=True)
class _Begun:
    target: ConnectionTarget
    was_stale: bool


@dataclass(frozen=True)
class _Recorded:
    report: SyncReport
    again: bool
    """Whether the server announced another change while its tools were listed."""


def _begin(session: WriteSession, connection_id: str) -> _Begun | None:
    """Read how to dial, and take the mark away before listing: a later notice sets it again."""
    connection = session.get(Connection, connection_id)
    if connection is None:
        return None
    begun = _Begun(target_of(connection), connection.stale_at is not None)
    clear_stale(session, connection_id)
    return begun


async def _contact(clients: ClientPool, target: ConnectionTarget) -> _Contact:
    """Open a session of its own, list the tools and close it again."""
    stage = "initialize"
    try:
        # An address that may not be dialled is refused here already.
        client = clients.client(target)
        session = await client.open_session()
        stage = "tools/list"
        try:
            return _Contact(await client.list_tools(session), None)
        finally:
            await client.close_session(session)
    except MCPError as error:
        unreachable = error.outcome is Outcome.NOT_SENT and stage == "initialize"
        failure = {
            "stage": "connect" if unreachable else stage,
            "code": error.code,
            "message": error.message,
            "at": utc_now().isoformat(),
        }
        return _Contact(None, failure)


def _record(session: WriteSession, begun: _Begun, contact: _Contact) -> _Recorded:
    connection = session.get(Connection, begun.target.id)
    if connection is None:
        raise ApplicationError(
            f"Connection {begun.target.id!r} was deleted.", type=CONNECTION_GONE, non_retryable=True
        )
    if contact.listing is None:
        # A catalog that was stale still is; the sweep asks again.
        since = connection.stale_at or (utc_now() if begun.was_stale else None)
        _note(session, begun, health=ConnectionHealth.FAILING, last_failure=contact.failure, stale_at=since)
        return _Recorded(SyncReport(ok=False, failure=contact.failure), again=False)
    usable, dropped = _usable_tools(contact.listing.tools)
    dropped += [[drop.name, drop.reason] for drop in contact.listing.dropped]
    report = project_connection(session, connection, usable)
    dropped += [list(drop) for drop in report.dropped]
    _note(
        session,
        begun,
        health=ConnectionHealth.HEALTHY,
        last_failure=None,
        synced_at=utc_now(),
        dropped_tools=[{"name": name, "reason": reason} for name, reason in dropped],
    )
    told = _report(report, len(usable) - len(report.dropped), dropped)
    return _Recorded(told, again=connection.stale_at is not None)


def _note(session: WriteSession, begun: _Begun, **values: Any) -> None:
    """Store what contact showed, without a new version of the connection: its open sessions stay good."""
    session.execute(update(Connection).where(Connection.id == begun.target.id).values(**values))


def _report(report: ProjectionReport, tools: int, dropped: list[list[str]]) -> SyncReport:
    return SyncReport(
        ok=True,
        tools=tools,
        added=list(report.added),
        changed=list(report.changed),
        retired=list(report.retired),
        dropped=dropped,
    )


def _usable_tools(listed: Iterable[ListedTool]) -> tuple[list[DeclaredTool], list[list[str]]]:
    """Leave out tools whose schema cannot be used: one bad tool never loses the others."""
    usable: list[DeclaredTool] = []
    dropped: list[list[str]] = []
    for tool in listed:
        schema = compile_schema(tool.input_schema)
        if isinstance(schema, SchemaProblem):
            dropped.append([tool.name, schema.reason])
            continue
        usable.append(
            DeclaredTool(
                tool.name,
                {
                    "title": tool.title,
                    "description": tool.description,
                    "input_schema": tool.input_schema,
                    "output_schema": tool.output_schema,
                    "annotations": tool.annotations,
                },
            )
        )
    return usable, dropped
