"""Conversations and tasks of programs; each function is one transaction."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from api.catalog import HiddenTool, functions_of, hidden_tools, world_in
from api.errors import APIProblem, not_found, unknown_profile
from api.function_format import FunctionCache
from api.handshakes import refused_faults
from api.program_identity import Principal, program_of_caller
from api.schemas.programs import CreateConversationBody, CreateTaskBody
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.faults import Fault
from governance.filters import RequestFilter
from governance.schemas import SchemaProblem, compile_schema
from governance.subagents import override_faults
from models.binding import ToolBinding
from models.binding_payload import load_binding_payloads
from models.conversation import Conversation, add_conversation
from models.database import ReadSession, WriteSession
from models.key import ApiKey
from models.round_place import has_profile
from models.task import (
    ConversationNotActive,
    ImplementationRefused,
    KeyGone,
    NewTask,
    Task,
    TaskState,
    ToolNotGoverned,
    create_task,
    find_task,
    freeze_task,
)
from models.task_ending import OpenRound, TaskNotEnded, end_task


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


@dataclass(frozen=True)
class AskedTools:
    """Which tools to list: a conversation's, through a profile, as a request with a filter sees them."""

    conversation_id: str
    profile_key: str | None
    request: RequestFilter
    explain: bool = False


def tools_in_conversation(
    session: ReadSession, caller: Principal, asked: AskedTools, functions: FunctionCache
) -> tuple[list[str], list[HiddenTool] | None]:
    """Return what a round of the calling program may use in a conversation, and what is hidden from it.

    Raises:
        APIProblem: not_found for a conversation that is not the version's, forbidden where its key may not
            explain, key_disabled, or invalid_request for an unknown profile.
    """
    program = program_of_caller(caller)
    conversation = session.get(Conversation, asked.conversation_id)
    if conversation is None or conversation.program_version_id != program.version.id:
        raise not_found("conversation", asked.conversation_id)
    key = session.get(ApiKey, conversation.key_id)
    if key is None or not key.enabled:
        raise APIProblem(ErrorCode.KEY_DISABLED)
    if asked.explain and not key.may_explain:
        raise APIProblem(ErrorCode.FORBIDDEN, {"reason": "key_may_not_explain"})
    world = world_in(session, key, asked.request, conversation, asked.profile_key)
    texts = functions_of(session, world.visible(), functions)
    return texts, hidden_tools(world) if asked.explain else None


def start_task(session: WriteSession, caller: Principal, body: CreateTaskBody) -> dict[str, JSON]:
    """Create a task of the calling version and freeze its tools.

    Raises:
        APIProblem: not_found for a conversation that is not the version's, wrong_state for one that takes no
            new work, invalid_request for an unknown profile, implementation_not_allowed, tool_not_found or
            key_disabled.
    """
    program = program_of_caller(caller)
    conversation = session.get(Conversation, body.conversation_id)
    if conversation is None or conversation.program_version_id != program.version.id:
        raise not_found("conversation", body.conversation_id)
    if body.profile_key is not None and not has_profile(session, conversation, body.profile_key):
        raise unknown_profile(body.profile_key)
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
    except ConversationNotActive as refused:
        raise _wrong_state("conversation", refused.conversation_id, refused.state) from refused
    return show_task(session, task)


@dataclass(frozen=True)
class EndedTask:
    """A task that has ended, and its rounds that are still to be told to stop."""

    shown: dict[str, JSON]
    key_id: str
    running: tuple[OpenRound, ...]


def finish_task(session: WriteSession, caller: Principal, task_id: str, state: TaskState) -> EndedTask:
    """End a task of the calling version; to end it again in the same way changes nothing.

    Raises:
        APIProblem: not_found, or wrong_state for a task that ended otherwise or has rounds that still run.
    """
    task = _own_task(session, caller, task_id)
    try:
        running = end_task(session, task.id, state)
    except TaskNotEnded as refused:
        raise _wrong_state("task", task_id, refused.state) from refused
    return EndedTask(show_task(session, task), task.key_id, running)


def _wrong_state(what: str, name: str, state: str) -> APIProblem:
    return APIProblem(ErrorCode.WRONG_STATE, {"what": what, "name": name, "state": state})


def read_task(session: ReadSession, caller: Principal, task_id: str) -> dict[str, JSON]:
    """Return a task of the calling version; raises not_found for any other."""
    return show_task(session, _own_task(session, caller, task_id))


def _own_task(session: Session, caller: Principal, task_id: str) -> Task:
    task = find_task(session, task_id, program_of_caller(caller).version.id)
    if task is None:
        raise not_found("task", task_id)
    return task


def show_task(session: Session, task: Task) -> dict[str, JSON]:
    """Return a task as programs see it, its bindings by tool name with the sessions that they use."""
    bindings = freeze_task(session, task.id)
    payloads = load_binding_payloads(session, bindings.values(), task.key_id, task.conversation_id)
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
        "created_at": task.created_at.isoformat(),
        "finished_at": None if task.finished_at is None else task.finished_at.isoformat(),
        "bindings": [show_binding(binding, payloads[binding.id]) for binding in bindings.values()],
    }


def show_binding(binding: ToolBinding, payload: dict[str, JSON]) -> dict[str, JSON]:
    """Return a binding as shown; `payload` has `mcp`, its session, where one was opened."""
    return {
        "tool_binding_id": binding.id,
        "tool_name": binding.tool_name,
        "tool_definition_id": binding.tool_definition_id,
        "tool_implementation_id": binding.tool_implementation_id,
        "governance_mode": binding.governance_mode.value,
        "binding_reason": binding.binding_reason.value,
        "snapshot_digest": binding.snapshot_digest,
        "binding_payload": payload,
    }
