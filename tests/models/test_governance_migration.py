"""The migration to owned bindings keeps every row of a database that is in use."""

from contextlib import closing
from datetime import datetime
from typing import Any

from sqlalchemy import MetaData, Table, func, insert, select

from models.base import new_id, utc_now
from models.database import Database
from models.migration import downgrade, migrate

BEFORE, AFTER = "0003", "0004"
DIGEST = "0" * 64
TABLES = (
    "payloads",
    "tool_snapshots",
    "implementation_sources",
    "tool_definitions",
    "tool_implementations",
    "rounds",
    "tool_bindings",
    "tool_invocations",
    "round_calls",
    "tool_sends",
    "round_events",
)


def rows() -> dict[str, dict[str, Any]]:
    """Return one row of each table, tied together as a round in use is."""
    now = utc_now()
    source, tool, code, round_id = (new_id() for _ in range(4))
    return {
        "payloads": {"digest": DIGEST, "size": 2, "content": b"{}", "created_at": now},
        "tool_snapshots": {"digest": DIGEST, "content": b"{}", "created_at": now},
        "implementation_sources": {"id": source, "source_kind": "mcp", "source_ref": "x", "created_at": now},
        "tool_definitions": {
            "id": tool,
            "scope": "gateway",
            "tool_name": "files-read",
            "tool_kind": "mcp_tool",
            "governance_mode": "replaceable",
            "created_at": now,
        },
        "tool_implementations": {
            "id": code,
            "tool_definition_id": tool,
            "implementation_source_id": source,
            "implementation_ref": "mcp/x/read",
            "upstream_name": "read",
            "is_default": True,
            "declared": {},
            "snapshot_digest": DIGEST,
            "created_at": now,
            "updated_at": now,
        },
        "rounds": {
            "id": round_id,
            "workflow_id": "round:1",
            "key_id": new_id(),
            "round_key": "1",
            "body_digest": DIGEST,
            "request_id": "1",
            "state": "running",
            "request_filter": {},
            "has_unknown": False,
            "on_unknown": "fail",
            "repeat_count": 0,
            "call_count": 1,
            "event_count": 1,
            "created_at": now,
        },
        **_call_rows(round_id, {"tool_definition_id": tool, "tool_implementation_id": code}, now),
        "round_events": {"round_id": round_id, "number": 1, "kind": "round_requested", "data": {}, "at": now},
    }


def _call_rows(round_id: str, references: dict[str, str], now: datetime) -> dict[str, dict[str, Any]]:
    """Return one row of each table about a call of a round, from its binding to its send."""
    binding, call, send = (new_id() for _ in range(3))
    return {
        "tool_bindings": {
            "id": binding,
            "round_id": round_id,
            "tool_name": "files-read",
            **references,
            "snapshot_digest": DIGEST,
            "governance_mode": "replaceable",
            "binding_reason": "snapshot_default",
            "created_at": now,
        },
        "tool_invocations": {
            "id": call,
            "tool_binding_id": binding,
            **references,
            "round_id": round_id,
            "attempt_no": 1,
            "status": "running",
            "outcome": "known",
            "request_digest": DIGEST,
            "is_error": False,
            "started_at": now,
        },
        "round_calls": {
            "round_id": round_id,
            "position": 0,
            "call_id": "c1",
            "tool_name": "files-read",
            "binding_id": binding,
            "invocation_id": call,
        },
        "tool_sends": {
            "id": send,
            "invocation_id": call,
            "number": 1,
            "worker": "w",
            "lease_token": "t",
            "created_at": now,
        },
    }


def counts(database: Database) -> dict[str, int]:
    metadata = MetaData()
    metadata.reflect(database.engine)
    with database.engine.connect() as connection:
        return {
            name: connection.scalar(select(func.count()).select_from(metadata.tables[name])) or 0
            for name in TABLES
        }


def table(database: Database, name: str) -> Table:
    return Table(name, MetaData(), autoload_with=database.engine)


def test_a_round_in_use_survives_the_change_and_its_undoing(empty_database_url: str) -> None:
    with closing(Database(empty_database_url)) as database:
        migrate(database, BEFORE)
        wanted = rows()
        tables = {name: table(database, name) for name in TABLES}
        with database.engine.begin() as connection:
            for name in TABLES:
                stored = {column: _stored(database, value) for column, value in wanted[name].items()}
                connection.execute(insert(tables[name]).values(**stored))

        migrate(database, AFTER)
        owned = table(database, "tool_bindings")
        with database.engine.connect() as connection:
            found = connection.execute(select(owned.c.owner_id, owned.c.round_id)).one()
        assert found.owner_id == found.round_id
        assert counts(database) == dict.fromkeys(TABLES, 1)

        downgrade(database, BEFORE)
        assert counts(database) == dict.fromkeys(TABLES, 1)


def _stored(database: Database, value: object) -> object:
    """SQLite has no type of its own for ids: reflected columns take them as they are written there."""
    is_id = isinstance(value, str) and len(value) == 36 and value.count("-") == 4
    return str(value).replace("-", "") if is_id and database.is_sqlite else value
