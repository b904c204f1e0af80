"""A program with a frozen task, and ways to write rows that the database is to refuse."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from governance.modes import GovernanceMode
from models.base import new_id, utc_now
from models.binding import (
    BindingReason,
    ToolBinding,
    load_task_bindings,
)
from models.database import Database, WriteSession
from models.invocation import CallRequest, ToolInvocation, provision
from models.payload import store_payload
from models.round import Round
from models.task import Task
from models.version_projection import project_core
from tests.models.governed import (
    Built,
    build_program,
    build_task,
)
from tests.support.programs import mcp_tool
from tests.support.world import Call, ConnectionPlan, add_connection, add_round

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


def start(session: WriteSession, built: Built, binding: ToolBinding) -> ToolInvocation:
    round_id = add_round(session, built.key_id, [Call("remote")], new_id())
    session.get_one(Round, round_id).task_id = binding.task_id
    session.flush()
    digest = store_payload(session, b"{}")
    return provision(session, binding, CallRequest(round_id, digest), None, new_id()).invocation
