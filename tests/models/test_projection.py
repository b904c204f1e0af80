"""Projection: idempotent, writing only what changed, repairing, retiring, safe when two run at once."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, select, update

from governance.modes import GovernanceMode, SourceKind
from models.base import new_id
from models.connection import Connection
from models.database import Database, ReadSession, WriteSession
from models.projecting import SourceKey, ensure_source
from models.projection import DeclaredTool, project_connection, reproject_connection, retire_connection
from models.runtime import ExecutionRuntime
from models.tool import (
    ImplementationSource,
    PolicyOverlayRow,
    ToolDefinition,
    ToolImplementation,
    load_catalog,
    load_snapshots,
)
from models.version_projection import project_core, reproject_all_versions
from tests.models.governed import (
    Built,
    build_program,
    definition_of,
    implementations_of,
    program_row,
    project_again,
)
from tests.support.programs import mcp_tool, runtime_tool, tool
from tests.support.world import ConnectionPlan, add_connection

pytestmark = pytest.mark.anyio

WRITES = ("INSERT", "UPDATE", "DELETE")


@contextmanager
def counted_writes(database: Database) -> Iterator[list[str]]:
    """Collect the writing statements that the database is sent."""
    seen: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.lstrip().upper().startswith(WRITES):
            seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def listing(count: int) -> list[DeclaredTool]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    return [
        DeclaredTool(f"tool_{number}", {"description": f"Does {number}.", "input_schema": schema})
        for number in range(count)
    ]


THOUSAND = listing(1_000)
FORTY = listing(40)


async def connect(database: Database, count: int) -> str:
    def build(session: WriteSession) -> str:
        connection = add_connection(session, ConnectionPlan(tools={}))
        project_connection(session, connection, listing(count))
        return connection.id

    return await database.write(build)


def on_connection(
    connection_id: str, work: Callable[[WriteSession, Connection], Any]
) -> Callable[[WriteSession], Any]:
    return lambda session: work(session, session.get_one(Connection, connection_id))


async def test_a_thousand_unchanged_tools_cost_no_write(database: Database) -> None:
    connection_id = await connect(database, 1_000)

    with counted_writes(database) as writes:
        report = await database.write(
            on_connection(connection_id, lambda session, row: project_connection(session, row, THOUSAND))
        )

    assert writes == []
    assert (report.added, report.changed, report.retired) == ((), (), ())


@pytest.mark.parametrize(
    "edit",
    [
        update(ToolDefinition).values(governance_mode=GovernanceMode.WHITELIST_ONLY),
        update(ToolDefinition).values(tool_kind="something_else"),
        update(ToolImplementation).values(is_default=False),
        update(ToolImplementation).values(declared={"description": "Other."}),
        update(ToolImplementation).values(upstream_name="elsewhere"),
        update(ToolImplementation).values(content_digest="0" * 64),
        update(ToolImplementation).values(
            implementation_source_id=select(ImplementationSource.id)
            .where(ImplementationSource.source_ref == "elsewhere")
            .scalar_subquery()
        ),
    ],
    ids=["mode", "kind", "default", "declared", "upstream name", "content digest", "source"],
)
async def test_a_row_edited_behind_our_back_is_repaired(edit: Any, database: Database) -> None:
    connection_id = await connect(database, 3)
    before = await database.read(load_catalog)

    await database.write(ensure_source, SourceKey(SourceKind.AGENT, "elsewhere"))
    await database.write(lambda session: session.execute(edit))
    report = await database.write(
        on_connection(connection_id, lambda session, row: project_connection(session, row, listing(3)))
    )

    assert await database.read(load_catalog) == before
    assert sorted(report.changed) == [tool.exposed_name for tool in before]


async def test_projecting_twice_keeps_rows_and_ids(database: Database) -> None:
    built = await database.write(_two_candidates)

    def rows(session: ReadSession) -> list[tuple[str, str]]:
        found = session.execute(
            select(ToolImplementation.id, ToolImplementation.implementation_ref).order_by(
                ToolImplementation.id
            )
        )
        return [(identity, reference) for identity, reference in found]

    before = await database.read(rows)
    with counted_writes(database) as writes:
        report = await database.write(project_again, built)

    assert await database.read(rows) == before
    assert (writes, report.changed) == ([], ())


def _two_candidates(session: WriteSession) -> Built:
    return build_program(
        session,
        runtime_tools=[runtime_tool("exec_command", execution_policy={"parallel_safe": True})],
        tool_catalog=[tool("exec_command"), tool("compact_context"), tool("subagent_spawn")],
    )


async def test_losing_candidates_are_stored_beside_the_winner(database: Database) -> None:
    built = await database.write(_two_candidates)

    def look(session: ReadSession) -> dict[str, Any]:
        def candidates(definition: ToolDefinition) -> dict[str, Any]:
            rows = implementations_of(session, definition.id)
            return {reference: (_source(session, row), row.is_default) for reference, row in rows.items()}

        names = ("exec_command", "compact_context", "subagent_spawn")
        found = [definition_of(session, built, name) for name in names]
        return {row.tool_name: (row.governance_mode, candidates(row)) for row in found}

    assert await database.read(look) == {
        "exec_command": (
            GovernanceMode.WHITELIST_ONLY,
            {
                "env/exec_command": (SourceKind.EXECUTION_RUNTIME, True),
                "program/exec_command": (SourceKind.AGENT, False),
            },
        ),
        "compact_context": (
            GovernanceMode.REPLACEABLE,
            {"program/compact_context": (SourceKind.AGENT, True)},
        ),
        "subagent_spawn": (
            GovernanceMode.RESERVED,
            {
                "core_matrix/subagent_spawn": (SourceKind.CORE_MATRIX, True),
                "program/subagent_spawn": (SourceKind.AGENT, False),
            },
        ),
    }


def _source(session: ReadSession, row: ToolImplementation) -> SourceKind:
    return session.get_one(ImplementationSource, row.implementation_source_id).source_kind


async def test_two_layers_may_use_one_reference_for_code_of_their_own(database: Database) -> None:
    def build(session: WriteSession) -> list[tuple[str, bool]]:
        built = build_program(
            session,
            runtime_tools=[runtime_tool("x", implementation_ref="same")],
            tool_catalog=[tool("x", implementation_ref="same")],
        )
        stored = implementations_of(session, definition_of(session, built, "x").id)
        return sorted((reference.partition(":")[0], row.is_default) for reference, row in stored.items())

    assert await database.write(build) == [("agent", False), ("same", True)]


async def test_the_default_moves_when_a_runtime_brings_the_tool(database: Database) -> None:
    def build(session: WriteSession) -> Built:
        return build_program(session, runtime_tools=[], tool_catalog=[tool("exec_command")])

    built = await database.write(build)

    def bring(session: WriteSession) -> tuple[str, ...]:
        runtime = session.get_one(ExecutionRuntime, built.runtime_id)
        runtime.tool_catalog = [runtime_tool("exec_command")]
        session.flush()
        return reproject_all_versions(session, runtime.id)

    changed = await database.write(bring)
    taken = await database.write(lambda session: _without_runtime(session, built))

    assert changed == ("exec_command",)
    assert taken == {"env/exec_command": (False, True), "program/exec_command": (True, False)}


def _without_runtime(session: WriteSession, built: Built) -> dict[str, tuple[bool, bool]]:
    program_row(session, built).execution_runtime_id = None
    session.flush()
    project_again(session, built)
    found = definition_of(session, built, "exec_command")
    assert found.governance_mode is GovernanceMode.REPLACEABLE
    return {
        reference: (row.is_default, row.retired_at is not None)
        for reference, row in implementations_of(session, found.id).items()
    }


async def test_a_tool_that_left_its_listing_is_retired_and_comes_back_as_the_same_row(
    database: Database,
) -> None:
    connection_id = await connect(database, 2)
    before = await database.read(load_catalog)

    def project(count: int) -> Callable[[WriteSession], Any]:
        return on_connection(
            connection_id, lambda session, row: project_connection(session, row, listing(count))
        )

    gone = await database.write(project(1))
    between = await database.read(load_catalog)
    back = await database.write(project(2))

    assert (gone.retired, back.added) == (("files-tool_1",), ("files-tool_1",))
    assert [tool.exposed_name for tool in between] == ["files-tool_0"]
    assert await database.read(load_catalog) == before


async def test_one_bad_tool_never_loses_the_others(database: Database) -> None:
    connection_id = await connect(database, 0)
    bad = [
        DeclaredTool("nul", {"description": "a\x00b", "input_schema": {"type": "object"}}),
        DeclaredTool("n\x00l", {"input_schema": {"type": "object"}}),
        DeclaredTool("x" * 600, {"input_schema": {"type": "object"}}),
        DeclaredTool("surrogate", {"description": "\ud800"}),
        DeclaredTool("tool_0", {"input_schema": {"type": "object"}}),
    ]
    listed = [*listing(1), *bad]

    report = await database.write(
        on_connection(connection_id, lambda session, row: project_connection(session, row, listed))
    )

    assert report.added == ("files-tool_0",)
    assert [reason for _, reason in report.dropped] == [
        "holds_nul",
        "holds_nul",
        "name_too_long",
        "not_json",
        "duplicate_name",
    ]


async def test_eight_projections_at_once_leave_one_row_for_each_tool(database: Database) -> None:
    connection_id = await connect(database, 0)
    built = await database.write(_two_candidates)

    await asyncio.gather(
        *(
            database.write(
                on_connection(connection_id, lambda session, row: project_connection(session, row, FORTY))
            )
            for _ in range(4)
        ),
        *(database.write(project_again, built) for _ in range(4)),
        *(database.write(project_core) for _ in range(2)),
    )

    def duplicates(session: ReadSession) -> int:
        rows = session.execute(select(ToolDefinition.scope, ToolDefinition.tool_name)).all()
        return len(rows) - len(set(rows))

    catalog = await database.read(load_catalog)
    assert await database.read(duplicates) == 0
    assert len(catalog) == 40 + 2


async def test_an_overlay_reaches_core_connection_and_program_tools_alike(database: Database) -> None:
    connection_id = await connect(database, 1)

    def build(session: WriteSession) -> Built:
        return build_program(
            session, tool_catalog=[mcp_tool("remote", "files", "tool_0"), tool("compact_context")]
        )

    built = await database.write(build)
    await database.write(project_core)

    def relax(session: WriteSession) -> None:
        for position, source in enumerate(("mcp", "agent", "core_matrix")):
            session.add(
                PolicyOverlayRow(
                    position=position, match={"tool_source": source}, execution_policy={"parallel_safe": True}
                )
            )
        session.flush()
        reproject_connection(session, session.get_one(Connection, connection_id))
        project_core(session)
        reproject_all_versions(session)

    await database.write(relax)

    def policies(session: ReadSession) -> dict[str, Any]:
        rows = (*load_catalog(session), *load_catalog(session, built.version_id))
        found = load_snapshots(session, {row.snapshot_digest for row in rows})
        return {row.exposed_name: b'"parallel_safe":true' in found[row.snapshot_digest] for row in rows}

    assert await database.read(policies) == dict.fromkeys(
        ("files-tool_0", "remote", "compact_context", "subagent_spawn", "subagent_list"), True
    )


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_programs_own_overlays_count_only_where_the_operator_lets_them(
    allowed: bool,  # noqa: FBT001
    database: Database,
) -> None:
    overlay = {"match": {"tool_name": "sum"}, "execution_policy": {"parallel_safe": True}}

    def build(session: WriteSession) -> bytes:
        built = build_program(
            session,
            may_relax_policy=allowed,
            tool_catalog=[tool("sum")],
            default_config_snapshot={"tool_policy_overlays": [overlay]},
        )
        [row] = [row for row in load_catalog(session, built.version_id) if row.exposed_name == "sum"]
        return load_snapshots(session, {row.snapshot_digest})[row.snapshot_digest]

    content = await database.write(build)
    assert (b'"parallel_safe":true' in content) is allowed
    assert (b"program_overlay:0" in content) is allowed


async def test_deleting_a_connection_retires_what_programs_declared_on_it(database: Database) -> None:
    connection_id = await connect(database, 1)

    def build(session: WriteSession) -> Built:
        return build_program(session, tool_catalog=[mcp_tool("remote", "files", "tool_0"), tool("sum")])

    built = await database.write(build)

    def delete(session: WriteSession) -> tuple[str, ...]:
        retired = retire_connection(session, connection_id)
        session.delete(session.get_one(Connection, connection_id))
        return retired

    retired = await database.write(delete)
    left = await database.read(load_catalog, built.version_id)

    assert sorted(retired) == ["files-tool_0", "remote"]
    assert "remote" not in {row.exposed_name for row in left}


async def test_a_projection_that_fails_half_way_leaves_nothing(database: Database) -> None:
    connection_id = await connect(database, 2)
    before = await database.read(load_catalog)

    def fail(session: WriteSession) -> None:
        project_connection(session, session.get_one(Connection, connection_id), listing(5))
        raise LookupError(new_id())

    with pytest.raises(LookupError):
        await database.write(fail)

    assert await database.read(load_catalog) == before
