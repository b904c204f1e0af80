"""The consistency rules C1 to C11 of governed rows, each on both databases.

Source: core-matrix projection-consistency rules; its "installation" is a scope here.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from governance.codes import InvocationStatus
from governance.modes import GovernanceMode, SourceKind
from models.base import new_id, utc_now
from models.binding import (
    BindingOwner,
    BindingReason,
    ForeignScopeError,
    ToolBinding,
    insert_bindings,
    load_task_bindings,
)
from models.database import Database, WriteSession
from models.invocation import CallRequest, ToolInvocation, provision
from models.payload import store_payload
from models.program import ImmutableRowError, ProgramVersion
from models.projecting import SourceKey, ensure_source
from models.task import Task
from models.tool import (
    GATEWAY_SCOPE,
    ApprovedImplementation,
    ToolDefinition,
    ToolImplementation,
    load_catalog,
    scope_of_version,
)
from models.version_projection import project_core
from tests.models.governed import (
    Built,
    build_program,
    build_task,
    build_version,
    definition_of,
    implementations_of,
)
from tests.support.programs import mcp_tool
from tests.support.world import Call, ConnectionPlan, add_connection, add_key, add_round

pytestmark = pytest.mark.anyio

WORK: dict[str, Any] = {
    "tool_catalog": [mcp_tool("remote", "files", "read"), mcp_tool("other", "files", "write")],
}


def build(session: WriteSession) -> tuple[Built, Task]:
    connection = add_connection(session, ConnectionPlan())
    project_core(session)
    built = build_program(session, grants={connection.id: ["*"]}, **WORK)
    return built, build_task(session, built)


async def refused_by_the_database(database: Database, work: Callable[[WriteSession], Any]) -> None:
    with pytest.raises(IntegrityError):
        await database.write(work)


def binding_values(task: Task, binding: ToolBinding, **changes: Any) -> dict[str, Any]:
    values = {
        "id": new_id(),
        "task_id": task.id,
        "round_id": None,
        "tool_name": "another_name",
        "tool_definition_id": binding.tool_definition_id,
        "tool_implementation_id": binding.tool_implementation_id,
        "snapshot_digest": binding.snapshot_digest,
        "governance_mode": GovernanceMode.REPLACEABLE,
        "binding_reason": BindingReason.SNAPSHOT_DEFAULT,
        "created_at": utc_now(),
        **changes,
    }
    return {"owner_id": values["task_id"] or values["round_id"], **values}


async def load(database: Database) -> tuple[Built, Task, dict[str, ToolBinding]]:
    def work(session: WriteSession) -> tuple[Built, Task, dict[str, ToolBinding]]:
        built, task = build(session)
        return built, task, load_task_bindings(session, task.id)

    return await database.write(work)


@pytest.mark.parametrize("scope", [GATEWAY_SCOPE, "program_version:elsewhere"])
async def test_c1_a_definition_is_in_the_scope_of_its_version(scope: str, database: Database) -> None:
    built, _, _ = await load(database)
    version_id = built.version_id if scope == GATEWAY_SCOPE else None

    def add(session: WriteSession) -> None:
        row = ToolDefinition(
            scope=scope,
            program_version_id=version_id,
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


def start(session: WriteSession, built: Built, binding: ToolBinding) -> ToolInvocation:
    round_id = add_round(session, built.key_id, [Call("remote")], new_id())
    digest = store_payload(session, b"{}")
    return provision(session, binding, CallRequest(round_id, digest), None, new_id()).invocation


@pytest.mark.parametrize(
    "reference",
    ["tool_binding_id", "tool_definition_id", "tool_implementation_id", "task_id", "no task", "owner_id"],
)
async def test_c9_an_invocation_has_every_reference_of_its_binding(
    reference: str, database: Database
) -> None:
    built, _, bindings = await load(database)
    wrong: dict[str, Any] = {
        "tool_binding_id": {"tool_binding_id": bindings["other"].id},
        "tool_definition_id": {"tool_definition_id": bindings["other"].tool_definition_id},
        "tool_implementation_id": {"tool_implementation_id": bindings["other"].tool_implementation_id},
        "task_id": {"task_id": new_id()},
        "no task": {"task_id": None},
        "owner_id": {"owner_id": new_id()},
    }

    def change(session: WriteSession) -> None:
        invocation = start(session, built, bindings["remote"])
        session.execute(
            update(ToolInvocation).where(ToolInvocation.id == invocation.id).values(**wrong[reference])
        )

    await refused_by_the_database(database, change)


async def test_c9_an_invocation_of_a_rounds_binding_has_no_task(database: Database) -> None:
    built, task, bindings = await load(database)

    def change(session: WriteSession) -> None:
        round_id = add_round(session, built.key_id, [Call("remote")], new_id())
        values = binding_values(task, bindings["remote"], task_id=None, round_id=round_id)
        session.execute(insert(ToolBinding).values(**values))
        binding = session.get_one(ToolBinding, values["id"])
        digest = store_payload(session, b"{}")
        invocation = provision(session, binding, CallRequest(round_id, digest), None, new_id()).invocation
        session.execute(
            update(ToolInvocation).where(ToolInvocation.id == invocation.id).values(task_id=task.id)
        )

    await refused_by_the_database(database, change)


async def test_c10_an_invocation_is_in_the_scope_of_its_binding(database: Database) -> None:
    built, _, bindings = await load(database)

    def scopes(session: WriteSession) -> set[str]:
        invocation = start(session, built, bindings["remote"])
        return set(
            session.scalars(
                select(ToolDefinition.scope)
                .join(ToolImplementation, ToolImplementation.tool_definition_id == ToolDefinition.id)
                .where(
                    ToolDefinition.id == invocation.tool_definition_id,
                    ToolImplementation.id == invocation.tool_implementation_id,
                )
            )
        )

    assert await database.write(scopes) == {scope_of_version(built.version_id)}


@pytest.mark.parametrize(
    "values",
    [
        {"status": InvocationStatus.SUCCEEDED, "finished_at": None},
        {"status": InvocationStatus.CANCELED, "finished_at": None},
        {"status": InvocationStatus.RUNNING, "finished_at": utc_now()},
        {"started_at": None},
    ],
    ids=["succeeded without end", "canceled without end", "running with end", "without start"],
)
async def test_c11_status_and_times_belong_together(values: dict[str, Any], database: Database) -> None:
    built, _, bindings = await load(database)

    def change(session: WriteSession) -> None:
        invocation = start(session, built, bindings["remote"])
        session.execute(update(ToolInvocation).where(ToolInvocation.id == invocation.id).values(**values))

    await refused_by_the_database(database, change)


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


async def test_a_source_in_use_is_not_deleted(database: Database) -> None:
    built, _, _ = await load(database)

    def delete(session: WriteSession) -> None:
        add_key(session, "unrelated")
        session.delete(definition_of(session, built, "remote"))
        session.flush()

    await refused_by_the_database(database, delete)
