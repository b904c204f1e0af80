"""Look at what operators have said of a round's unknown outcomes; the round waits or goes on accordingly."""

from dataclasses import dataclass, field

from temporalio import activity

from governance.codes import InvocationStatus, RoundState
from governance.resolutions import ResolutionKind, is_open_question, retry_number
from models.database import Database, WriteSession
from models.invocation import ToolInvocation
from models.resolution import retry_key_of
from models.round import NewEvent, append_events, change_round_state, load_round_calls


def _no_positions() -> list[int]:
    return []


def _no_retries() -> list["WantedRetry"]:
    return []


@dataclass(frozen=True)
class LookAtUnknowns:
    """Calls of a round, by position, whose outcome was unknown when last seen."""

    round_id: str
    positions: list[int] = field(default_factory=_no_positions)


@dataclass(frozen=True)
class WantedRetry:
    """A call that an operator wants made again, and which of its retries this is, from 1."""

    position: int
    number: int


@dataclass(frozen=True)
class UnknownsSeen:
    """Which positions nobody has resolved, and which are to be called again; the others are resolved."""

    waiting: list[int] = field(default_factory=_no_positions)
    retries: list[WantedRetry] = field(default_factory=_no_retries)


class UnknownsWatch:
    """Holds what looking needs."""

    def __init__(self, database: Database) -> None:
        """Use a database."""
        self._database = database

    @activity.defn(name="look_at_unknowns")
    async def look_at_unknowns(self, request: LookAtUnknowns) -> UnknownsSeen:
        """Read the resolutions and set the round's state to what it does now; idempotent.

        The rows decide, whoever woke the round: an update that nothing was written down for changes nothing.
        """
        return await self._database.write(look, request)


def look(session: WriteSession, request: LookAtUnknowns) -> UnknownsSeen:
    """Do the work of `look_at_unknowns` in one transaction."""
    waiting: list[int] = []
    retries: list[WantedRetry] = []
    for call in load_round_calls(session, request.round_id):
        if call.position not in request.positions or call.invocation_id is None:
            continue
        invocation = session.get_one(ToolInvocation, call.invocation_id)
        if is_open_question(invocation.outcome, invocation.resolution_kind):
            # A canceled call was given up by somebody; nobody waits for it.
            if invocation.status is InvocationStatus.FAILED:
                waiting.append(call.position)
        elif invocation.resolution_kind is ResolutionKind.RETRY:
            key = retry_key_of(invocation)
            if key is not None:
                retries.append(WantedRetry(call.position, retry_number(key)))
    state = RoundState.WAITING_UNKNOWN if waiting and not retries else RoundState.RUNNING
    if change_round_state(session, request.round_id, state):
        kind = "round_waiting" if state is RoundState.WAITING_UNKNOWN else "round_resumed"
        append_events(session, request.round_id, [NewEvent(kind, {"for": "unknown", "positions": waiting})])
    return UnknownsSeen(waiting, retries)
