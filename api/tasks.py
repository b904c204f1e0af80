"""Conversations and tasks of programs; each function is one transaction."""

from sqlalchemy.orm import Session

from api.errors import APIProblem, not_found
from api.handshakes import refused_faults
from api.program_identity import Principal, program_of_caller
from api.schemas.programs import CreateConversationBody, CreateTaskBody
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.faults import Fault
from governance.schemas import SchemaProblem, compile_schema
from governance.subagents import override_faults
from models.conversation import Conversation, add_conversation
from models.database import ReadSession, WriteSession
from models.task import (
    ImplementationRefused,
    KeyGone,
    NewTask,
    Task,
    ToolNotGoverned,
    create_task,
    find_task,
    freeze_task,
)


def begin_conversation(
    session: WriteSession, caller: Principal, body: CreateConversationBody
) -> dict[str, JSON]:
    """Insert a conversation of the calling version; raises invalid_request with 422 and every fault."""
    program = program_of_caller(caller)
    faults = override_faults(body.override_payload)
    schema = program.version.definition().conversation_override_schema_snapshot
    compiled = compile_schema(dict(schema)) if schema else None
    if compiled is not None and not isinstance(compiled, SchemaProblem):
        faults += [
            Fault(f"override_payload{problem.path}", f"is {problem.expected}")
            for problem in compiled.check(body.override_payload)
        ]
    if faults:
        raise refused_faults(faults)
    conversation = add_conversation(
        session, program.program.key_id, program.version.id, body.override_payload
    )
    return {
        "conversation_id": conversation.id,
        "state": conversation.state.value,
        "override_payload": conversation.override_payload,
    }


def start_task(session: WriteSession, caller: Principal, body: CreateTaskBody) -> dict[str, JSON]:
    """Create a task of the calling version and freeze its tools.

    Raises:
        APIProblem: not_found for a conversation that is not the version's, implementation_not_allowed,
            tool_not_found or key_disabled.
    """
    program = program_of_caller(caller)
    conversation = session.get(Conversation, body.conversation_id)
    if conversation is None or conversation.program_version_id != program.version.id:
        raise not_found("conversation", body.conversation_id)
    new = NewTask(
        conversation_id=conversation.id,
        logical_work_id=body.logical_work_id,
        execution_runtime_id=program.program.execution_runtime_id,
        profile_key=body.profile_key,
        implementations=body.implementations,
        input=body.input,
    )
    try:
        task = create_task(session, new)
    except ImplementationRefused as refused:
        details = {
            "tool": refused.tool_name,
            "implementation": refused.implementation_ref,
            "rule": refused.rule.value,
        }
        raise APIProblem(ErrorCode.IMPLEMENTATION_NOT_ALLOWED, details) from refused
    except ToolNotGoverned as refused:
        details = {"tool": refused.tool_name, "reason": "unknown_name"}
        raise APIProblem(ErrorCode.TOOL_NOT_FOUND, details) from refused
    except KeyGone as refused:
        raise APIProblem(ErrorCode.KEY_DISABLED) from refused
    return show_task(session, task)


def read_task(session: ReadSession, caller: Principal, task_id: str) -> dict[str, JSON]:
    """Return a task of the calling version; raises not_found for any other."""
    task = find_task(session, task_id, program_of_caller(caller).version.id)
    if task is None:
        raise not_found("task", task_id)
    return show_task(session, task)


def show_task(session: Session, task: Task) -> dict[str, JSON]:
    """Return a task as programs see it, its bindings by tool name."""
    return {
        "agent_task_run_id": task.id,
        "conversation_id": task.conversation_id,
        "turn_id": task.turn_id,
        "logical_work_id": task.logical_work_id,
        "attempt_no": task.attempt_no,
        "kind": task.kind.value,
        "state": task.state.value,
        "profile_key": task.profile_key,
        "frozen_set_digest": task.frozen_set_digest,
        "bindings": [
            {
                "tool_binding_id": binding.id,
                "tool_name": binding.tool_name,
                "tool_definition_id": binding.tool_definition_id,
                "tool_implementation_id": binding.tool_implementation_id,
                "governance_mode": binding.governance_mode.value,
                "binding_reason": binding.binding_reason.value,
                "snapshot_digest": binding.snapshot_digest,
            }
            for binding in freeze_task(session, task.id).values()
        ],
    }
