"""What governing costs: composing a large catalog, freezing a large task, projecting what did not change."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from sqlalchemy import event, update

from benchmarks.row import Row
from governance.catalogs import NO_OVERLAYS, OverlayLayers, ToolEntry, compose_effective_catalog
from governance.core_tools import core_catalog
from governance.execution_policy import PolicyOverlay
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


def measure() -> list[Row]:
    """Measure each figure; times are the median of five."""
    policy = {"parallel_safe": True}
    matches = ({"server_slug": "files"}, {"tool_name": "tool_7"})
    overlays = OverlayLayers(operator=[PolicyOverlay(match, policy) for match in matches])
    mixed = [
        replace(tool, source=SourceKind.MCP, connection_id="1", connection_name="files")
        if number % 2
        else tool
        for number, tool in enumerate(_declared())
    ]
    return [
        _composing("compose 10 000 tools, CPU", _declared(), NO_OVERLAYS),
        _composing("compose 10 000 tools, half of a server, two overlays, CPU", mixed, overlays),
        *asyncio.run(_stored()),
    ]


def _declared() -> list[ToolEntry]:
    schema = {"type": "object"}
    return [
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


def _composing(name: str, program: Sequence[ToolEntry], overlays: OverlayLayers) -> Row:
    core = core_catalog()
    spent: list[float] = []
    for _ in range(REPEATS):
        # Of this thread alone: other benchmarks' servers end beside it.
        begun = time.thread_time()
        catalog = compose_effective_catalog(core, (), program, overlays)
        spent.append(time.thread_time() - begun)
        assert catalog.tools[-1].entry is program[-1], "composing must not copy"
    return Row(name, median(spent) * 1000, "ms", 30)


async def _stored() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as folder:
        async with Database(f"sqlite:///{Path(folder) / 'bench.db'}") as database:
            migrate(database)
            connection_id, key_id = await database.write(_build)
            freezing = median([await _freeze(database, key_id) for _ in range(REPEATS)])
            unchanged = await _writes_of(database, lambda session: _project(session, connection_id))
            await database.write(_edit_one)
            repaired = await database.write(_project, connection_id)
    return [
        Row("freeze 1 000 tools", freezing * 1000, "ms", 150),
        Row("writes of projecting 1 000 unchanged tools", float(unchanged), "writes", 0),
        Row("rows edited behind the cache and not repaired", float(1 - repaired), "rows", 0),
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
