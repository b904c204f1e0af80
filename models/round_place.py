"""Which task or conversation a round is part of: checked in one place for every way to start a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy.orm import Session

from governance.profiles import knows_profile
from models.conversation import Conversation, find_conversation
from models.place import NO_PROGRAM
from models.program import ProgramVersion
from models.task import TERMINAL_TASK_STATES, Task


class PlaceFault(StrEnum):
    """Why a round cannot be where it was asked to be."""

    UNKNOWN_TASK = "unknown_task"
    TASK_ENDED = "task_ended"
    UNKNOWN_CONVERSATION = "unknown_conversation"
    UNKNOWN_PROFILE = "unknown_profile"
    FIXED_BY_TASK = "fixed_by_task"
    """What is asked for was decided when the task was created."""


class PlaceRefused(Exception):
    """A round cannot be where it was asked to be; `name` is the id, profile or field that it names."""

    def __init__(self, fault: PlaceFault, name: str, state: str | None = None) -> None:
        """Name the fault and what it is about."""
        super().__init__(f"The round cannot be placed at {name!r}: {state or fault.value}.")
        self.fault = fault
        self.name = name
        self.state = state


@dataclass(frozen=True)
class RoundPlace:
    """Where a round is asked to be; all of it empty for a round at the gateway, of no program."""

    task_id: str | None = None
    conversation_id: str | None = None
    profile_key: str | None = None
    implementations: Mapping[str, str] = field(default_factory=dict[str, str])


def settle_place(session: Session, key_id: str, place: RoundPlace) -> str | None:
    """Return the id of the conversation that a key's round is part of; a task's round is part of the task's.

    Raises:
        PlaceRefused: task or conversation is not the key's, the task has ended, no profile has the key asked
            for, or the round asks for what its task has fixed.
    """
    if place.task_id is not None:
        return _of_task(session, key_id, place, place.task_id)
    conversation = None
    if place.conversation_id is not None:
        conversation = find_conversation(session, place.conversation_id, key_id)
        if conversation is None:
            raise PlaceRefused(PlaceFault.UNKNOWN_CONVERSATION, place.conversation_id)
    if place.profile_key is not None and not has_profile(session, conversation, place.profile_key):
        raise PlaceRefused(PlaceFault.UNKNOWN_PROFILE, place.profile_key)
    return place.conversation_id


def live_task(session: Session, key_id: str, task_id: str, *, hold: bool = False) -> Task:
    """Return a key's task that takes rounds; with `hold` it does not end before the transaction does.

    Raises:
        PlaceRefused: for any other task.
    """
    task = session.get(Task, task_id, with_for_update={"read": True} if hold else None)
    if task is None or task.key_id != key_id:
        raise PlaceRefused(PlaceFault.UNKNOWN_TASK, task_id)
    if task.state in TERMINAL_TASK_STATES:
        raise PlaceRefused(PlaceFault.TASK_ENDED, task_id, task.state.value)
    return task


def has_profile(session: Session, conversation: Conversation | None, profile_key: str) -> bool:
    """Say whether the program of a conversation has a profile; without a program only the default one is."""
    version_id = None if conversation is None else conversation.program_version_id
    version = None if version_id is None else session.get(ProgramVersion, version_id)
    definition = NO_PROGRAM if version is None else version.definition()
    return knows_profile(definition.profile_catalog, definition.default_config_snapshot, profile_key)


def _of_task(session: Session, key_id: str, place: RoundPlace, task_id: str) -> str:
    task = live_task(session, key_id, task_id, hold=True)
    # What a task was frozen with counts for all its rounds; to ignore another wish would be to hide it.
    if place.conversation_id not in (None, task.conversation_id):
        raise PlaceRefused(PlaceFault.FIXED_BY_TASK, "conversation_id")
    if place.profile_key not in (None, task.profile_key):
        raise PlaceRefused(PlaceFault.FIXED_BY_TASK, "profile_key")
    if any(task.implementations.get(tool) != wanted for tool, wanted in place.implementations.items()):
        raise PlaceRefused(PlaceFault.FIXED_BY_TASK, "implementations")
    return task.conversation_id
