"""What governing costs: composing a large catalog, freezing a large task, projecting what did not change."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import event, update

from benchmarks.row import Row
from governance.catalogs import ToolEntry, compose_effective_catalog
from governance.core_tools import core_catalog
from governance.modes import SourceKind
from models.base import new_id
from models.connection import Connection, Network
from models.conversation import add_conversation
from models.database import Database, WriteSession
from models.key import ApiKey
from models.migration import migrate
from models.projection import DeclaredTool, project_connection
from models.task import NewTask, create_task
from models.tool import ToolImplementation

COMPOSED = 10_000
FROZEN = 1_000
REPEATS = 5


def rows() -> list[tuple[str, float, str, float]]:
    """Measure each and return (name, value, unit, the most that is wanted)."""
    return [_composing(), *asyncio.run(_stored())]


def measure() -> list[Row]:
    """Return the same figures as lines of the table."""
    return [Row(name, value, unit, bound) for name, value, unit, bound in rows()]


def _composing() -> tuple[str, float, str, float]:
    schema = {"type": "object"}
    program = [
        ToolEntry(
            tool_name=f"tool_{number}",
            tool_kind="agent_observation",
            source=SourceKind.AGENT,
            source_ref="version",
            implementation_ref=f"program/tool_{number}",
            upstream_name=f"tool_{number}",
            description=None,
            input_schema=schema,
        )
        for number in range(COMPOSED)
    ]
    core = core_catalog()
    spent: list[float] = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        catalog = compose_effective_catalog(core, (), program)
        spent.append(time.perf_counter() - begun)
        assert catalog.tools[-1].entry is program[-1], "composing must not copy"
    return ("compose 10 000 tools", min(spent) * 1000, "ms", 30)


async def _stored() -> list[tuple[str, float, str, float]]:
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as folder:
        async with Database(f"sqlite:///{Path(folder) / 'bench.db'}") as database:
            migrate(database)
            connection_id, key_id = await database.write(_build)
            freezing = min([await _freeze(database, key_id) for _ in range(REPEATS)])
            unchanged = await _writes_of(database, lambda session: _project(session, connection_id))
            await database.write(_edit_one)
            repaired = await database.write(_project, connection_id)
    return [
        ("freeze 1 000 tools", freezing * 1000, "ms", 150),
        ("writes of projecting 1 000 unchanged tools", float(unchanged), "writes", 0),
        ("rows edited behind the cache and not repaired", float(1 - repaired), "rows", 0),
    ]


def _listing() -> list[DeclaredTool]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    return [
        DeclaredTool(f"tool_{number}", {"description": f"Does {number}.", "input_schema": schema})
        for number in range(FROZEN)
    ]


def _build(session: WriteSession) -> tuple[str, str]:
    connection = Connection(
        id=new_id(),
        name="bench",
        url="http://127.0.0.1:9/mcp",
        network=Network.LOOPBACK,
        tools_to_execute=["*"],
    )
    key = ApiKey(id=new_id(), name="bench", enabled=True, has_tool_config=False, core_tools=False)
    session.add_all([connection, key])
    session.flush()
    project_connection(session, connection, _listing())
    return connection.id, key.id


async def _freeze(database: Database, key_id: str) -> float:
    def conversation(session: WriteSession) -> str:
        return add_conversation(session, key_id, None).id

    conversation_id = await database.write(conversation)
    begun = time.perf_counter()
    await database.write(create_task, NewTask(conversation_id, "bench"))
    return time.perf_counter() - begun


def _project(session: WriteSession, connection_id: str) -> int:
    """Project the listing again and return how many tools that changed."""
    return len(project_connection(session, session.get_one(Connection, connection_id), _listing()).changed)


def _edit_one(session: WriteSession) -> None:
    session.execute(
        update(ToolImplementation)
        .where(ToolImplementation.upstream_name == "tool_7")
        .values(declared={"description": "Edited by hand."})
    )


async def _writes_of(database: Database, work: Callable[[WriteSession], int]) -> int:
    seen: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")):
            seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        await database.write(work)
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    return len(seen)
