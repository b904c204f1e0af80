"""Builds keys, connections, tools and rounds in a database, as the control plane and a sync would."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, select

from governance.canonical import JSON, canonical_bytes, digest_of
from governance.codes import IdempotencyClass
from governance.resolutions import OnUnknown
from models.base import new_id
from models.connection import Connection, Network
from models.database import Database, WriteSession
from models.key import ApiKey, replace_tool_grants
from models.payload import store_payload
from models.projection import DeclaredTool, project_connection
from models.round import RequestedCall, RequestedRound, insert_round
from models.tool import PolicyOverlayRow

ANY_OBJECT: Mapping[str, JSON] = {"type": "object"}


@dataclass(frozen=True)
class ConnectionPlan:
    """A connection to build: tools by upstream name with their schemas, and which run in parallel."""

    name: str = "files"
    tools: Mapping[str, JSON] = field(default_factory=lambda: {"read": ANY_OBJECT, "write": ANY_OBJECT})
    tools_to_execute: Sequence[str] | None = ("*",)
    parallel_safe: Sequence[str] = ()
    url: str = "http://127.0.0.1:9/mcp"
    idempotency: IdempotencyClass = IdempotencyClass.UNSAFE
    tool_timeout_s: float = 30.0
    open_to_all_keys: bool = False
    max_concurrency: int | None = None
    queue_timeout_s: float = 30.0
    tool_prices: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Call:
    """A call to ask for."""

    name: str
    arguments: JSON = field(default_factory=dict[str, JSON])
    id: str = ""


def add_connection(session: WriteSession, plan: ConnectionPlan) -> Connection:
    connection = Connection(
        id=new_id(),
        name=plan.name,
        url=plan.url,
        network=Network.LOOPBACK,
        tools_to_execute=None if plan.tools_to_execute is None else list(plan.tools_to_execute),
        idempotency=plan.idempotency,
        tool_timeout_s=plan.tool_timeout_s,
        open_to_all_keys=plan.open_to_all_keys,
        max_concurrency=plan.max_concurrency,
        queue_timeout_s=plan.queue_timeout_s,
        tool_prices=None if plan.tool_prices is None else dict(plan.tool_prices),
    )
    session.add(connection)
    session.flush()
    taken = session.scalar(select(func.count()).select_from(PolicyOverlayRow)) or 0
    for number, tool in enumerate(plan.parallel_safe):
        session.add(
            PolicyOverlayRow(
                position=1000 + taken + number,
                match={"tool_name": f"{plan.name}-{tool}"},
                execution_policy={"parallel_safe": True},
            )
        )
    session.flush()
    project_connection(
        session,
        connection,
        [
            DeclaredTool(name, {"description": f"Does {name}.", "input_schema": schema})
            for name, schema in plan.tools.items()
        ],
    )
    return connection


def add_key(
    session: WriteSession, name: str = "agent", grants: Mapping[str, Sequence[str]] | None = None
) -> ApiKey:
    """Insert a key; `grants` by connection id."""
    key = ApiKey(id=new_id(), name=name, enabled=True, has_tool_config=False)
    session.add(key)
    session.flush()
    if grants is not None:
        replace_tool_grants(session, key, tuple((name, tuple(tools)) for name, tools in grants.items()))
    return key


def add_round(
    session: WriteSession,
    key_id: str,
    calls: Sequence[Call],
    workflow_id: str,
    on_unknown: OnUnknown = OnUnknown.FAIL,
) -> str:
    """Insert a requested round as the API does, and return its id."""
    round_id = new_id()
    insert_round(
        session,
        RequestedRound(
            workflow_id=workflow_id,
            key_id=key_id,
            round_key=round_id,
            body_digest=digest_of([[call.name, call.arguments] for call in calls]),
            request_id="test",
            request_filter={"include_clients": None, "include_tools": None},
            calls=[
                RequestedCall(
                    call.id or f"call_{position}",
                    call.name,
                    store_payload(session, canonical_bytes({"arguments": json.dumps(call.arguments)})),
                )
                for position, call in enumerate(calls)
            ],
            on_unknown=on_unknown,
        ),
        round_id,
    )
    return round_id


@dataclass(frozen=True)
class World:
    """One key that may use one connection."""

    key_id: str
    connection_id: str


async def build_world(
    database: Database, plan: ConnectionPlan | None = None, key_name: str = "agent"
) -> World:
    def build(session: WriteSession) -> World:
        connection = add_connection(session, plan or ConnectionPlan())
        return World(add_key(session, key_name).id, connection.id)

    return await database.write(build)
