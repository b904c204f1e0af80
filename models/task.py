"""Tasks: units of work of a conversation. Creating one freezes its tools in the same transaction."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from sqlalchemy import CheckConstraint, ForeignKey, String, UniqueConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON, canonical_bytes
from governance.filters import NO_FILTER, RequestFilter
from governance.modes import SelectionRule
from models.base import Base, Configuration, Digest, EnumByValue, PublicId, new_id, utc_now
from models.binding import (
    BindingOwner,
    BindingReason,
    ToolBinding,
    insert_bindings,
    load_task_bindings,
)
from models.catalog import CallerPlace, RefusedImplementation, World, governed_tool, load_context, load_world
from models.connection import Connection
from models.conversation import Conversation, ConversationState
from models.database import WriteSession
from models.key import ApiKey
from models.payload import store_payload
from models.place import load_standing
from models.program import ProgramVersion
from models.tool import (
    IS_CHANGED,
    CatalogTool,
    ImplementationSource,
    SourceKind,
    ToolDefinition,
    ToolImplementation,
    store_frozen_set,
)


class TaskState(StrEnum):
    """Where a task stands."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


TERMINAL_TASK_STATES = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED})
"""States that a task never leaves."""


class TaskKind(StrEnum):
    """What a task is part of."""

    TURN_STEP = "turn_step"
    SUBAGENT_STEP = "subagent_step"


class Task(Base):
    """One attempt at a unit of work; a further attempt is another row with a frozen set of its own."""

    __tablename__ = "tasks"
    __table_args__ = (
        UniqueConstraint("conversation_id", "logical_work_id", "attempt_no"),
        CheckConstraint("attempt_no >= 1", name="attempts_count_from_one"),
    )

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    key_id: Mapped[str] = mapped_column(PublicId, index=True)
    """The key whose rules apply; no foreign key, since a task outlives a deleted key."""
    program_version_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("program_versions.id"), index=True
    )
    execution_runtime_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("execution_runtimes.id"), index=True
    )
    conversation_id: Mapped[str] = mapped_column(PublicId, ForeignKey("conversations.id"))
    turn_id: Mapped[str] = mapped_column(PublicId, index=True)
    """The turn of the conversation; every attempt at its work has the same one."""
    logical_work_id: Mapped[str] = mapped_column(String(255))
    attempt_no: Mapped[int]
    kind: Mapped[TaskKind] = mapped_column(EnumByValue(TaskKind))
    state: Mapped[TaskState] = mapped_column(EnumByValue(TaskState), default=TaskState.QUEUED)
    profile_key: Mapped[str] = mapped_column(String(255))
    implementations: Mapped[dict[str, str]] = mapped_column(Configuration, default=dict)
    input_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("payloads.digest"))
    """What the task is to do: canonical JSON."""
    frozen_set_digest: Mapped[str] = mapped_column(Digest, ForeignKey("frozen_sets.digest"))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    finished_at: Mapped[datetime | None]

    @property
    def workflow_id(self) -> str:
        """The id of the workflow that runs the task's loop."""
        return f"task:{self.id}"


@dataclass(frozen=True)
class NewTask:
    """A task to create; `implementations` are the references wanted of tools that are not the default."""

    conversation_id: str
    logical_work_id: str
    kind: TaskKind = TaskKind.TURN_STEP
    turn_id: str | None = None
    execution_runtime_id: str | None = None
    profile_key: str | None = None
    implementations: Mapping[str, str] = field(default_factory=dict[str, str])
    input: JSON = None


class TaskRefused(Exception):
    """The root of why a task cannot be created; the transaction is to be rolled back."""


class ImplementationRefused(TaskRefused):
    """An implementation that the task asks for may not be bound."""

    def __init__(self, tool_name: str, implementation_ref: str, rule: SelectionRule) -> None:
        """Name the tool, the implementation and the rule."""
        super().__init__(
            f"Tool {tool_name!r} may not be bound to {implementation_ref!r}; the rule is {rule.value}."
        )
        self.tool_name = tool_name
        self.implementation_ref = implementation_ref
        self.rule = rule


class ToolNotGoverned(TaskRefused):
    """The task asks for an implementation of a tool that it has not."""

    def __init__(self, tool_name: str) -> None:
        """Name the tool."""
        super().__init__(f"There is no governed tool {tool_name!r} for this task.")
        self.tool_name = tool_name


class ConversationNotActive(TaskRefused):
    """The conversation takes no new work."""

    def __init__(self, conversation_id: str, state: str) -> None:
        """Name the conversation and its state."""
        super().__init__(f"The conversation {conversation_id!r} is {state}.")
        self.conversation_id = conversation_id
        self.state = state


class KeyGone(TaskRefused):
    """The key that the task would act as does not exist or is disabled."""

    def __init__(self, key_id: str) -> None:
        """Name the key."""
        super().__init__(f"The key {key_id!r} does not exist any more or is disabled.")
        self.key_id = key_id


def create_task(session: WriteSession, new: NewTask) -> Task:
    """Insert a task and freeze its tools: every tool that it may use is bound, and never again.

    A further attempt at the same work, by `logical_work_id`, gets the next attempt number, the turn of the
    first one, and a frozen set of its own.

    Raises:
        TaskRefused: the conversation is not active, an implementation may not be bound, or the key is gone;
            nothing is to be kept.
    """
    conversation = session.scalars(
        select(Conversation)
        .where(Conversation.id == new.conversation_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()
    if conversation.state is not ConversationState.ACTIVE:
        raise ConversationNotActive(conversation.id, conversation.state.value)
    key = session.get(ApiKey, conversation.key_id)
    if key is None or not key.enabled:
        raise KeyGone(conversation.key_id)
    version = (
        session.get_one(ProgramVersion, conversation.program_version_id)
        if conversation.program_version_id
        else None
    )
    standing = load_standing(session, version, conversation, new.profile_key, new.implementations)
    earlier = _earlier_attempts(session, conversation.id, new.logical_work_id)
    world = load_world(session, key, NO_FILTER, standing.place)
    _check_implementations(world.refused, new.implementations, world.catalog)
    visible = world.visible()
    task = Task(
        id=new_id(),
        key_id=key.id,
        program_version_id=conversation.program_version_id,
        execution_runtime_id=new.execution_runtime_id,
        conversation_id=conversation.id,
        turn_id=earlier[0].turn_id if earlier else new.turn_id or new_id(),
        logical_work_id=new.logical_work_id,
        attempt_no=len(earlier) + 1,
        kind=new.kind,
        state=TaskState.QUEUED,
        profile_key=standing.profile_key,
        implementations=dict(new.implementations),
        input_digest=None if new.input is None else store_payload(session, canonical_bytes(new.input)),
        frozen_set_digest=store_frozen_set(
            session, {tool.exposed_name: tool.snapshot_digest for tool in visible}
        ),
    )
    session.add(task)
    session.flush()
    insert_bindings(session, BindingOwner(task.program_version_id, task_id=task.id), visible)
    return task


def freeze_task(session: Session, task_id: str) -> dict[str, ToolBinding]:
    """Return the bindings that a task was frozen with, by tool name; the same rows however often asked."""
    return load_task_bindings(session, task_id)


def find_task(session: Session, task_id: str, program_version_id: str | None = None) -> Task | None:
    """Return a task; with `program_version_id`, only if that version owns it."""
    task = session.get(Task, task_id)
    return task if task is not None and program_version_id in (None, task.program_version_id) else None


def load_task_world(
    session: Session, task: Task, key: ApiKey, request: RequestFilter
) -> tuple[World, dict[str, ToolBinding]]:
    """Return the world of a task's round: the tools are those that were frozen, the rules those of now."""
    rows = session.execute(
        select(
            ToolBinding,
            ToolImplementation.upstream_name,
            ImplementationSource.source_kind,
            Connection.name,
            ToolDefinition.scope,
            IS_CHANGED,
            ToolDefinition.requires_approval,
        )
        .join(ToolDefinition, ToolDefinition.id == ToolBinding.tool_definition_id)
        .join(ToolImplementation, ToolImplementation.id == ToolBinding.tool_implementation_id)
        .join(ImplementationSource, ImplementationSource.id == ToolImplementation.implementation_source_id)
        .outerjoin(Connection, Connection.id == ImplementationSource.connection_id)
        .where(ToolBinding.task_id == task.id)
        .order_by(ToolBinding.tool_name)
    ).all()
    catalog = {
        binding.tool_name: replace(
            _frozen_tool(binding, upstream_name, source_kind, connection, scope),
            is_changed=is_changed,
            requires_approval=requires_approval,
        )
        for binding, upstream_name, source_kind, connection, scope, is_changed, requires_approval in rows
    }
    governed = {name: governed_tool(tool) for name, tool in catalog.items()}
    # Profile and policy were applied when the tools were frozen; who calls is asked every time.
    place = CallerPlace(task.program_version_id)
    world = World(load_context(session, key, request, place), catalog, governed)
    return world, {row[0].tool_name: row[0] for row in rows}


def _frozen_tool(
    binding: ToolBinding,
    upstream_name: str,
    source_kind: SourceKind,
    connection: str | None,
    scope: str,
) -> CatalogTool:
    return CatalogTool(
        definition_id=binding.tool_definition_id,
        implementation_id=binding.tool_implementation_id,
        exposed_name=binding.tool_name,
        upstream_name=upstream_name,
        connection_name=connection,
        source_kind=source_kind,
        snapshot_digest=binding.snapshot_digest,
        governance_mode=binding.governance_mode,
        implementation_ref="",
        is_default=binding.binding_reason is BindingReason.SNAPSHOT_DEFAULT,
        has_approved_list=False,
        is_changed=False,
        scope=scope,
    )


def _earlier_attempts(session: Session, conversation_id: str, logical_work_id: str) -> list[Task]:
    return list(
        session.scalars(
            select(Task)
            .where(Task.conversation_id == conversation_id, Task.logical_work_id == logical_work_id)
            .order_by(Task.attempt_no)
        )
    )


def _check_implementations(
    refused: Mapping[str, RefusedImplementation], wanted: Mapping[str, str], catalog: Mapping[str, object]
) -> None:
    for name in wanted:
        if name not in catalog:
            raise ToolNotGoverned(name)
        if name in refused:
            raise ImplementationRefused(name, refused[name].implementation_ref, refused[name].rule)
