"""The consistency rules C9 to C11 of invocations, each on both databases.

Source: core-matrix projection-consistency rules; its "installation" is a scope here.
"""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from governance.codes import InvocationStatus
from models.base import new_id, utc_now
from models.binding import (
    ToolBinding,
)
from models.database import Database, WriteSession
from models.invocation import CallRequest, ToolInvocation, provision
from models.payload import store_payload
from models.round import Round
from models.tool import (
    ToolDefinition,
    ToolImplementation,
    scope_of_version,
)
from tests.models.consistent import WORK, binding_values, load, refused_by_the_database, start
from tests.models.governed import (
    build_task,
    build_version,
    definition_of,
    implementations_of,
)
from tests.support.world import Call, add_key, add_round

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("whose", ["another key", "the same key", "another task"])
async def test_c9_an_invocation_of_a_tasks_binding_is_made_in_a_round_of_the_task(
    whose: str, database: Database
) -> None:
    built, _, bindings = await load(database)

    def change(session: WriteSession) -> None:
        invocation = start(session, built, bindings["remote"])
        key_id = add_key(session, "another").id if whose == "another key" else built.key_id
        foreign = add_round(session, key_id, [Call("remote")], new_id())
        if whose == "another task":
            session.get_one(Round, foreign).task_id = build_task(session, built).id
            session.flush()
        session.execute(
            update(ToolInvocation).where(ToolInvocation.id == invocation.id).values(round_id=foreign)
        )

    await refused_by_the_database(database, change)


@pytest.mark.parametrize("changed", ["definition", "implementation", "both"])
async def test_c10_an_invocation_has_no_reference_into_another_scope(
    changed: str, database: Database
) -> None:
    built, _, bindings = await load(database)

    def change(session: WriteSession) -> None:
        invocation = start(session, built, bindings["remote"])
        other = build_version(session, built.program_id, **WORK)
        twin = definition_of(session, replace(built, version_id=other.id), "remote")
        [of_twin] = implementations_of(session, twin.id).values()
        values: dict[str, Any] = {}
        if changed != "implementation":
            values["tool_definition_id"] = twin.id
        if changed != "definition":
            values["tool_implementation_id"] = of_twin.id
        session.execute(update(ToolInvocation).where(ToolInvocation.id == invocation.id).values(**values))

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
