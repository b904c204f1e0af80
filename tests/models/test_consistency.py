"""The consistency rules C1 to C8 of governed rows, each on both databases.

Source: core-matrix projection-consistency rules; its "installation" is a scope here.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from governance.core_tools import BUILT_IN
from governance.modes import GovernanceMode, SourceKind
from governance.snapshots import ToolSnapshot
from models.base import Base, new_id
from models.binding import (
    BindingOwner,
    ForeignScopeError,
    ToolBinding,
    insert_bindings,
)
from models.database import Database, WriteSession
from models.program import ImmutableRowError, ProgramVersion
from models.projecting import (
    Candidate,
    CatalogScope,
    Changes,
    ForeignSourceError,
    SourceKey,
    WantedTool,
    ensure_source,
    project,
    source_ref_of,
)
from models.tool import (
    ApprovedImplementation,
    ImplementationSource,
    ToolDefinition,
    ToolImplementation,
    ToolSnapshotRow,
    load_catalog,
    scope_of_version,
)
from tests.models.consistent import WORK, binding_values, load, refused_by_the_database
from tests.models.governed import (
    build_program,
    build_version,
    definition_of,
    implementations_of,
)
from tests.support.programs import mcp_tool
from tests.support.world import Call, ConnectionPlan, add_connection, add_round

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("scope", "version"),
    [
        ("gateway", "own"),
        ("own", None),
        ("own", "other"),
        ("other", "own"),
        ("program_version:elsewhere", "own"),
        ("", "own"),
    ],
)
async def test_c1_a_definition_is_in_the_scope_of_its_version(
    scope: str, version: str | None, database: Database
) -> None:
    built, _, _ = await load(database)

    def add(session: WriteSession) -> None:
        other = build_version(session, built.program_id, **WORK)
        ids = {"own": built.version_id, "other": other.id}
        row = ToolDefinition(
            scope=scope_of_version(ids[scope]) if scope in ids else scope,
            program_version_id=None if version is None else ids[version],
            tool_name="x",
            tool_kind="k",
            governance_mode=GovernanceMode.REPLACEABLE,
        )
        session.add(row)
        session.flush()

    await refused_by_the_database(database, add)


async def test_c2_an_implementation_has_the_definition_and_source_of_its_scope(database: Database) -> None:
    built, _, bindings = await load(database)

    def sources(session: WriteSession) -> set[tuple[str, str]]:
        found = definition_of(session, built, "remote")
        other = build_version(session, built.program_id, **WORK)
        twin = definition_of(session, replace(built, version_id=other.id), "remote")
        assert twin.id != found.id
        rows = implementations_of(session, found.id).values()
        return {(row.tool_definition_id, row.id) for row in rows}

    assert await database.write(sources) == {
        (bindings["remote"].tool_definition_id, bindings["remote"].tool_implementation_id)
    }

    def orphan(session: WriteSession) -> None:
        row = implementations_of(session, bindings["remote"].tool_definition_id)["mcp/files/read"]
        session.execute(
            update(ToolImplementation)
            .where(ToolImplementation.id == row.id)
            .values(implementation_source_id=new_id())
        )

    await refused_by_the_database(database, orphan)


@pytest.mark.parametrize("kind", [SourceKind.AGENT, SourceKind.KERNEL, SourceKind.EXECUTION_RUNTIME])
async def test_c2_a_source_of_another_version_or_runtime_is_not_projected(
    kind: SourceKind, database: Database
) -> None:
    built, _, _ = await load(database)

    def project_foreign(session: WriteSession) -> None:
        other = build_version(session, built.program_id, **WORK)
        ref = new_id() if kind is SourceKind.EXECUTION_RUNTIME else source_ref_of(other.id)
        wanted = foreign_tool(SourceKey(kind, ref))
        project(session, CatalogScope(program_version_id=built.version_id), [wanted], Changes())

    with pytest.raises(ForeignSourceError) as refused:
        await database.write(project_foreign)
    assert kind.value in str(refused.value)


@pytest.mark.parametrize("kind", list(SourceKind))
async def test_c2_a_catalog_of_the_gateway_projects_its_own_source_alone(
    kind: SourceKind, database: Database
) -> None:
    def project_foreign(session: WriteSession) -> None:
        own = SourceKey(SourceKind.CORE_MATRIX, BUILT_IN)
        project(session, CatalogScope(source=own), [foreign_tool(SourceKey(kind, "elsewhere"))], Changes())

    with pytest.raises(ForeignSourceError):
        await database.write(project_foreign)


def foreign_tool(source: SourceKey) -> WantedTool:
    snapshot = ToolSnapshot("foreign", "foreign", None, None, source.kind.value, None, {"type": "object"})
    candidate = Candidate(source, "program/foreign", "foreign", {}, snapshot)
    return WantedTool("foreign", "agent_observation", GovernanceMode.REPLACEABLE, [candidate])


@pytest.mark.parametrize("owners", ["none", "both"])
async def test_c3_a_binding_has_one_owner(owners: str, database: Database) -> None:
    built, task, bindings = await load(database)

    def add(session: WriteSession) -> None:
        round_id = add_round(session, built.key_id, [Call("remote")], new_id())
        given = {"task_id": None} if owners == "none" else {"round_id": round_id}
        values = binding_values(task, bindings["remote"], **given)
        session.execute(insert(ToolBinding).values(**{**values, "owner_id": task.id}))

    await refused_by_the_database(database, add)


@pytest.mark.parametrize(
    "reference", ["task_id", "tool_definition_id", "tool_implementation_id", "snapshot_digest"]
)
async def test_c4_a_binding_refers_to_rows_that_there_are(reference: str, database: Database) -> None:
    _, task, bindings = await load(database)
    foreign = "0" * 64 if reference == "snapshot_digest" else new_id()

    def add(session: WriteSession) -> None:
        values = binding_values(task, bindings["remote"], **{reference: foreign})
        session.execute(insert(ToolBinding).values(**values))

    await refused_by_the_database(database, add)


async def test_c5_the_owner_named_is_the_task_or_the_round(database: Database) -> None:
    _, task, bindings = await load(database)

    def add(session: WriteSession) -> None:
        values = binding_values(task, bindings["remote"], owner_id=new_id())
        session.execute(insert(ToolBinding).values(**values))

    await refused_by_the_database(database, add)


async def test_c6_an_implementation_belongs_to_the_bound_definition(database: Database) -> None:
    _, task, bindings = await load(database)
    foreign = bindings["other"].tool_implementation_id

    def add(session: WriteSession) -> None:
        values = binding_values(task, bindings["remote"], tool_implementation_id=foreign)
        session.execute(insert(ToolBinding).values(**values))

    def approve(session: WriteSession) -> None:
        session.add(
            ApprovedImplementation(
                tool_definition_id=bindings["remote"].tool_definition_id, tool_implementation_id=foreign
            )
        )
        session.flush()

    await refused_by_the_database(database, add)
    await refused_by_the_database(database, approve)


async def test_c7_a_definition_of_another_version_is_not_bound(database: Database) -> None:
    built, task, _ = await load(database)

    def bind(session: WriteSession, version_id: str | None) -> dict[str, str]:
        other = build_version(session, built.program_id, **WORK)
        tools = [row for row in load_catalog(session, other.id) if row.exposed_name == "remote"]
        return insert_bindings(session, BindingOwner(version_id, task_id=task.id), tools)

    for version_id in (built.version_id, None):
        with pytest.raises(ForeignScopeError) as refused:
            await database.write(bind, version_id)
        assert "remote" in str(refused.value)


async def test_c8_a_task_and_a_round_bind_a_tool_once(database: Database) -> None:
    built, task, bindings = await load(database)

    def twice(session: WriteSession) -> None:
        values = binding_values(task, bindings["remote"], tool_name="remote")
        session.execute(insert(ToolBinding).values(**values))

    def of_a_round(session: WriteSession) -> str:
        round_id = add_round(session, built.key_id, [Call("remote")], new_id())
        values = binding_values(task, bindings["remote"], task_id=None, round_id=round_id, tool_name="remote")
        session.execute(insert(ToolBinding).values(**values))
        return round_id

    await refused_by_the_database(database, twice)
    round_id = await database.write(of_a_round)

    def again(session: WriteSession) -> None:
        values = binding_values(task, bindings["remote"], task_id=None, round_id=round_id, tool_name="remote")
        session.execute(insert(ToolBinding).values(**values))

    await refused_by_the_database(database, again)


async def test_a_definition_has_one_default(database: Database) -> None:
    def change(session: WriteSession) -> None:
        add_connection(session, ConnectionPlan())
        twice = [
            mcp_tool("remote", "files", "read"),
            mcp_tool("remote", "files", "write", implementation_ref="second"),
        ]
        built = build_program(session, tool_catalog=twice)
        row = implementations_of(session, definition_of(session, built, "remote").id)["second"]
        session.execute(
            update(ToolImplementation).where(ToolImplementation.id == row.id).values(is_default=True)
        )

    await refused_by_the_database(database, change)


@pytest.mark.parametrize("kind", [ToolBinding, ProgramVersion])
async def test_a_binding_and_a_version_are_never_changed(kind: type[Any], database: Database) -> None:
    built, _, bindings = await load(database)
    identity = bindings["remote"].id if kind is ToolBinding else built.version_id

    def change(session: WriteSession) -> None:
        row = session.get_one(kind, identity)
        if isinstance(row, ToolBinding):
            row.tool_name = "renamed"
        else:
            row.fingerprint = "renamed"
        session.flush()

    with pytest.raises(ImmutableRowError):
        await database.write(change)


async def test_eight_makers_of_one_source_make_one_row(database: Database) -> None:
    key = SourceKey(SourceKind.AGENT, "agent_program_version:x")

    made = await asyncio.gather(
        *(database.write(lambda session: ensure_source(session, key).id) for _ in range(8))
    )

    assert len(set(made)) == 1


async def test_one_name_is_another_tool_in_another_version(database: Database) -> None:
    def definitions(session: WriteSession) -> int:
        add_connection(session, ConnectionPlan())
        first = build_program(session, **WORK)
        build_version(session, first.program_id, **WORK)
        rows = session.scalars(select(ToolDefinition.id).where(ToolDefinition.tool_name == "remote"))
        return len(rows.all())

    assert await database.write(definitions) == 2


@pytest.mark.parametrize("row", ["source", "definition", "implementation", "snapshot", "version"])
async def test_what_is_in_use_is_not_deleted(row: str, database: Database) -> None:
    built, _, bindings = await load(database)
    binding = bindings["remote"]

    def delete(session: WriteSession) -> None:
        implementation = session.get_one(ToolImplementation, binding.tool_implementation_id)
        rows: dict[str, Base] = {
            "source": session.get_one(ImplementationSource, implementation.implementation_source_id),
            "definition": session.get_one(ToolDefinition, binding.tool_definition_id),
            "implementation": implementation,
            "snapshot": session.get_one(ToolSnapshotRow, binding.snapshot_digest),
            "version": session.get_one(ProgramVersion, built.version_id),
        }
        session.delete(rows[row])
        session.flush()

    await refused_by_the_database(database, delete)


async def test_a_source_that_nothing_uses_is_deleted(database: Database) -> None:
    def delete(session: WriteSession) -> int:
        session.delete(ensure_source(session, SourceKey(SourceKind.AGENT, "agent_program_version:gone")))
        session.flush()
        return len(session.scalars(select(ImplementationSource.id)).all())

    assert await database.write(delete) == 0
