"""Programs, runtimes and tasks in a database, built as the control plane and the program plane do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from sqlalchemy import select

from governance.canonical import JSON
from governance.handshake import read_definition
from models.base import new_id
from models.conversation import Conversation, add_conversation
from models.database import WriteSession
from models.key import ApiKey, replace_tool_grants
from models.program import AgentProgram, NewProgram, ProgramVersion, add_program, add_version
from models.projecting import source_ref_of
from models.runtime import ExecutionRuntime, NewRuntime, add_runtime
from models.task import NewTask, Task, create_task
from models.tool import ToolDefinition, ToolImplementation, scope_of_version
from models.version_projection import project_version, servers_of
from tests.support.programs import definition


@dataclass(frozen=True)
class Built:
    """A registered version; ids only, so that it outlives its transaction."""

    key_id: str
    program_id: str
    version_id: str
    runtime_id: str | None


def build_program(
    session: WriteSession,
    *,
    runtime_tools: Sequence[JSON] | None = None,
    may_relax_policy: bool = False,
    grants: Mapping[str, Sequence[str]] | None = None,
    **parts: Any,
) -> Built:
    """Register a program with one version and project it; `grants` by connection id."""
    name = f"program_{uuid4().hex[:8]}"
    key = ApiKey(id=new_id(), name=name, enabled=True, has_tool_config=True, core_tools=True)
    session.add(key)
    session.flush()
    replace_tool_grants(session, key, tuple((cid, tuple(tools)) for cid, tools in (grants or {}).items()))
    runtime: ExecutionRuntime | None = None
    if runtime_tools is not None:
        runtime = add_runtime(session, NewRuntime(f"runtime_{uuid4().hex[:8]}", "host-1"))
        runtime.tool_catalog = list(runtime_tools)
        session.flush()
    runtime_id = None if runtime is None else runtime.id
    program = add_program(session, NewProgram(name, key.id, runtime_id, may_relax_policy=may_relax_policy))
    version = build_version(session, program.id, **parts)
    return Built(key.id, program.id, version.id, runtime_id)


def build_version(session: WriteSession, program_id: str, **parts: Any) -> ProgramVersion:
    """Register a further version of a program and project it."""
    version_id = new_id()
    declared, _ = read_definition(definition(**parts), source_ref_of(version_id), servers_of(session))
    version = add_version(session, program_id, declared, version_id)
    project_version(session, version)
    return version


def begin(session: WriteSession, built: Built, override: Mapping[str, JSON] | None = None) -> str:
    """Begin a conversation of a version and return its id."""
    return add_conversation(session, built.key_id, built.version_id, dict(override or {})).id


def build_task(session: WriteSession, built: Built, **changes: Any) -> Task:
    """Create a task in a conversation of its own, or in `conversation_id`."""
    conversation_id = changes.pop("conversation_id", None) or begin(
        session, built, changes.pop("override", None)
    )
    return create_task(session, NewTask(conversation_id, changes.pop("work", "work"), **changes))


def project_again(session: WriteSession, built: Built) -> Any:
    """Project a version again and return what that changed."""
    return project_version(session, session.get_one(ProgramVersion, built.version_id)).report


def definition_of(session: Any, built: Built, tool_name: str) -> ToolDefinition:
    found: ToolDefinition = session.scalars(
        select(ToolDefinition).where(
            ToolDefinition.scope == scope_of_version(built.version_id), ToolDefinition.tool_name == tool_name
        )
    ).one()
    return found


def implementations_of(session: Any, definition_id: str) -> dict[str, ToolImplementation]:
    rows = session.scalars(
        select(ToolImplementation).where(ToolImplementation.tool_definition_id == definition_id)
    )
    return {row.implementation_ref: row for row in rows}


def program_row(session: Any, built: Built) -> AgentProgram:
    found: AgentProgram = session.get_one(AgentProgram, built.program_id)
    return found


def conversation_row(session: Any, conversation_id: str) -> Conversation:
    found: Conversation = session.get_one(Conversation, conversation_id)
    return found
