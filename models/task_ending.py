"""The end of a task: no round runs on its bindings any more. A terminal state is for good."""

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from governance.codes import TERMINAL_ROUND_STATES
from models.base import utc_now
from models.database import WriteSession
from models.round import Round
from models.subagent import ObservedStatus, find_session_of
from models.task import TERMINAL_TASK_STATES, Task, TaskKind, TaskState

_OBSERVED = {
    TaskState.COMPLETED: ObservedStatus.COMPLETED,
    TaskState.FAILED: ObservedStatus.FAILED,
    TaskState.CANCELED: ObservedStatus.INTERRUPTED,
}
"""How a subagent is seen whose task ended so. Source: core-matrix subagent tools, observed status."""


@dataclass(frozen=True)
class OpenRound:
    """A round that has not ended."""

    id: str
    workflow_id: str


class TaskNotEnded(Exception):
    """A task cannot end as it was told to; `state` is how it stands."""

    def __init__(self, task_id: str, state: str) -> None:
        """Name the task and how it stands."""
        super().__init__(f"The task {task_id!r} is {state}.")
        self.task_id = task_id
        self.state = state


def begin_task(session: WriteSession, task_id: str) -> None:
    """Note that a task's first round runs; a task that runs or has ended stays as it is."""
    session.execute(
        update(Task)
        .where(Task.id == task_id, Task.state == TaskState.QUEUED)
        .values(state=TaskState.RUNNING)
        .execution_options(synchronize_session=False)
    )


def end_task(session: WriteSession, task_id: str, state: TaskState) -> tuple[OpenRound, ...]:
    """End a task, and return its rounds that still run; to end it again in the same way changes nothing.

    Only a canceled task may have such rounds, which are to be told to stop.

    Raises:
        TaskNotEnded: it ended otherwise before, or a round of it still runs.
    """
    if state not in TERMINAL_TASK_STATES:
        raise ValueError(f"{state.value!r} is no end of a task.")
    task = session.scalars(
        select(Task).where(Task.id == task_id).with_for_update().execution_options(populate_existing=True)
    ).one()
    if task.state in TERMINAL_TASK_STATES and task.state is not state:
        raise TaskNotEnded(task_id, task.state.value)
    running = _open_rounds(session, task_id)
    if running and state is not TaskState.CANCELED:
        raise TaskNotEnded(task_id, TaskState.RUNNING.value)
    if task.state is not state:
        task.state, task.finished_at = state, utc_now()
        _tell_subagent(session, task)
        session.flush()
    return running


def _open_rounds(session: Session, task_id: str) -> tuple[OpenRound, ...]:
    rows = session.execute(
        select(Round.id, Round.workflow_id)
        .where(Round.task_id == task_id, Round.state.not_in(TERMINAL_ROUND_STATES))
        .order_by(Round.id)
    )
    return tuple(OpenRound(name, workflow_id) for name, workflow_id in rows)


def _tell_subagent(session: WriteSession, task: Task) -> None:
    if task.kind is not TaskKind.SUBAGENT_STEP:
        return
    subagent = find_session_of(session, task.conversation_id)
    if subagent is not None:
        subagent.observed_status = _OBSERVED[task.state]
        subagent.updated_at = utc_now()
