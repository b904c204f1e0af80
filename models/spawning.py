"""Start and list subagents: the effects of the built-in tools, each one transaction.

Source: core-matrix subagent tools, spawn and list.
"""

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.orm import Session

from governance.canonical import JSON
from governance.decision import Denied, GovernedTool, decide
from governance.filters import NO_FILTER
from governance.profiles import subagent_profile
from governance.subagents import SPAWN
from models.base import new_id
from models.catalog import load_context
from models.conversation import Conversation, ConversationState, add_conversation
from models.database import WriteSession
from models.key import ApiKey
from models.place import Standing, load_standing
from models.program import ProgramVersion
from models.round import Round
from models.subagent import (
    CloseState,
    ObservedStatus,
    SubagentScope,
    SubagentSession,
    find_spawned_by,
    load_owned,
)
from models.task import NewTask, Task, TaskKind, create_task


class SpawnRule(StrEnum):
    """Why a subagent is not started."""

    NOT_VISIBLE = "not_visible"
    CONVERSATION_NOT_ACTIVE = "conversation_not_active"
    UNKNOWN_PROFILE = "unknown_profile"
    NO_TURN = "no_turn"


class SubagentRefused(Exception):
    """A subagent is not started; nothing of it is kept."""

    def __init__(self, rule: SpawnRule) -> None:
        """Name the rule."""
        super().__init__(f"The subagent is not started; the rule is {rule.value}.")
        self.rule = rule


@dataclass(frozen=True)
class SpawnRequest:
    """What a call asks for; `task_payload` is a JSON object."""

    round_id: str
    invocation_id: str
    content: str
    scope: SubagentScope
    profile_key: str | None
    task_payload: JSON

    @classmethod
    def of(cls, round_id: str, invocation_id: str, arguments: dict[str, JSON]) -> "SpawnRequest":
        """Read the arguments of the tool, which fit its schema."""
        return cls(
            round_id=round_id,
            invocation_id=invocation_id,
            content=arguments["content"],
            scope=SubagentScope(arguments.get("scope") or SubagentScope.CONVERSATION),
            profile_key=arguments.get("profile_key"),
            task_payload=arguments.get("task_payload") or {"delivery_kind": SPAWN},
        )


def spawn_subagent(session: WriteSession, request: SpawnRequest) -> dict[str, JSON]:
    """Start a subagent and return its ids; idempotent by the invocation.

    The subagent's loop is not started here: its first task is queued, its tools frozen.

    Raises:
        SubagentRefused: with the rule; the transaction is to be rolled back.
    """
    found = find_spawned_by(session, request.invocation_id)
    if found is not None:
        return _spawned(session, found)
    round_ = session.get_one(Round, request.round_id)
    task = None if round_.task_id is None else session.get_one(Task, round_.task_id)
    owner = _owner_of(session, round_)
    if owner.state is not ConversationState.ACTIVE:
        raise SubagentRefused(SpawnRule.CONVERSATION_NOT_ACTIVE)
    version = session.get(ProgramVersion, owner.program_version_id) if owner.program_version_id else None
    standing = load_standing(session, version, owner, None if task is None else task.profile_key)
    _require_visible(session, owner.key_id, standing)
    definition = standing.definition
    profile = subagent_profile(
        definition.profile_catalog, definition.default_config_snapshot, request.profile_key
    )
    if profile is None:
        raise SubagentRefused(SpawnRule.UNKNOWN_PROFILE)
    child = _open_session(session, request, owner, standing.subagent, profile, task)
    new = NewTask(
        conversation_id=child.conversation_id,
        logical_work_id=f"subagent:{child.id}",
        kind=TaskKind.SUBAGENT_STEP,
        execution_runtime_id=None if task is None else task.execution_runtime_id,
        input={"content": request.content, "task_payload": request.task_payload},
    )
    create_task(session, new)
    return _spawned(session, child)


def list_subagents(session: Session, round_id: str) -> dict[str, JSON]:
    """Return the subagents that the conversation of a round started itself, oldest first."""
    round_ = session.get_one(Round, round_id)
    owned = () if round_.conversation_id is None else load_owned(session, round_.conversation_id)
    return {"entries": [_entry(row) for row in owned]}


def _owner_of(session: WriteSession, round_: Round) -> Conversation:
    """Return the conversation that owns what a round starts, locked; a round without one begins it here."""
    if round_.conversation_id is None:
        owner = add_conversation(session, round_.key_id, None)
        round_.conversation_id = owner.id
        return owner
    return session.scalars(
        select(Conversation)
        .where(Conversation.id == round_.conversation_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()


def _require_visible(session: Session, key_id: str, standing: Standing) -> None:
    """Decide once more: the conversation may have been told since the freeze to have no subagents."""
    key = session.get(ApiKey, key_id)
    if key is None:
        raise SubagentRefused(SpawnRule.NOT_VISIBLE)
    context = load_context(session, key, NO_FILTER, standing.place)
    if isinstance(decide(context, GovernedTool(SPAWN, None, SPAWN)), Denied):
        raise SubagentRefused(SpawnRule.NOT_VISIBLE)


def _open_session(
    session: WriteSession,
    request: SpawnRequest,
    owner: Conversation,
    parent: SubagentSession | None,
    profile: str,
    task: Task | None,
) -> SubagentSession:
    turn_id = task.turn_id if task is not None and request.scope is SubagentScope.TURN else None
    if request.scope is SubagentScope.TURN and turn_id is None:
        raise SubagentRefused(SpawnRule.NO_TURN)
    conversation = add_conversation(
        session, owner.key_id, owner.program_version_id, owner.override_payload, parent=owner
    )
    child = SubagentSession(
        id=new_id(),
        owner_conversation_id=owner.id,
        conversation_id=conversation.id,
        parent_session_id=None if parent is None else parent.id,
        spawned_by_invocation_id=request.invocation_id,
        scope=request.scope,
        origin_turn_id=turn_id,
        profile_key=profile,
        depth=0 if parent is None else parent.depth + 1,
        close_state=CloseState.OPEN,
        observed_status=ObservedStatus.RUNNING,
    )
    session.add(child)
    session.flush()
    return child


def _spawned(session: Session, child: SubagentSession) -> dict[str, JSON]:
    first = session.scalars(
        select(Task)
        .where(Task.conversation_id == child.conversation_id, Task.kind == TaskKind.SUBAGENT_STEP)
        .order_by(Task.id)
        .limit(1)
    ).one()
    return {
        "subagent_session_id": child.id,
        "conversation_id": child.conversation_id,
        "turn_id": first.turn_id,
        "workflow_run_id": first.workflow_id,
        "agent_task_run_id": first.id,
        "profile_key": child.profile_key,
        "scope": child.scope.value,
        "parent_subagent_session_id": child.parent_session_id,
        "subagent_depth": child.depth,
    }


def _entry(row: SubagentSession) -> dict[str, JSON]:
    return {
        "subagent_session_id": row.id,
        "conversation_id": row.conversation_id,
        "origin_turn_id": row.origin_turn_id,
        "parent_subagent_session_id": row.parent_session_id,
        "profile_key": row.profile_key,
        "scope": row.scope.value,
        "derived_close_status": row.derived_close_status.value,
        "observed_status": row.observed_status.value,
        "subagent_depth": row.depth,
    }
