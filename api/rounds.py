"""Rounds over HTTP: store first, start, wait a bounded time, and answer from the database.

A fresh round costs three transactions here: one read before, one write, one read after.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.deps import APIDeps
from api.engine import Cancel, RoundStart, Start, Wait, workflow_id_of
from api.errors import APIProblem, Audited, invalid_field, not_found, unknown_profile
from api.results import RoundAnswer, load_answer
from governance.canonical import JSON, canonical_bytes, digest_of
from governance.codes import ErrorCode, RoundState
from governance.resolutions import OnUnknown
from models.audit import AuditFact, AuditKind, append_audit
from models.base import new_id
from models.database import DatabaseError, ReadSession, WriteSession
from models.key import ApiKey
from models.payload import store_payloads
from models.reconciliation import may_be_repeated, repeat_round
from models.round import (
    RequestedCall,
    RequestedRound,
    Round,
    abandon_round,
    find_round,
    find_round_by_key,
    insert_round,
)
from models.round_place import PlaceFault, PlaceRefused, RoundPlace, settle_place

logger = logging.getLogger(__name__)

CANCELED_BEFORE_START = "canceled_before_start"
"""Why a round that the engine never heard of was abandoned."""


@dataclass(frozen=True)
class AskedCall:
    """A call as the model gave it; `arguments` is any JSON value, None where there were none."""

    id: str
    name: str
    arguments: JSON

    def to_json(self) -> dict[str, JSON]:
        """Return the call as the body digest takes it."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True)
class AskedRound:
    """What a request asks for: its calls, its filter headers and, if it has one, its idempotency key."""

    request_id: str
    calls: Sequence[AskedCall]
    include_clients: list[str] | None
    include_tools: list[str] | None
    idempotency_key: str | None
    on_unknown: OnUnknown = OnUnknown.FAIL
    place: RoundPlace = field(default_factory=RoundPlace)

    @property
    def filter_headers(self) -> dict[str, JSON]:
        """The filter headers as stored."""
        return {"include_clients": self.include_clients, "include_tools": self.include_tools}

    @cached_property
    def body_digest(self) -> str:
        """What must be equal for a repeat: calls, filter headers and place; not how long to wait."""
        asked: dict[str, JSON] = {"calls": [call.to_json() for call in self.calls], **self.filter_headers}
        place: dict[str, JSON] = {
            "implementations": dict(self.place.implementations),
            "task_id": self.place.task_id,
            "conversation_id": self.place.conversation_id,
            "profile_key": self.place.profile_key,
        }
        # A round without a place has the digest that it always had.
        return digest_of(asked | {name: value for name, value in place.items() if value})


@dataclass(frozen=True)
class Accepted:
    """The round goes on; look again later. `state` is as last read."""

    round_id: str
    state: RoundState


@dataclass(frozen=True)
class _Stored:
    """A row that is there now: just inserted, or found under the same key, perhaps not started yet."""

    round_id: str
    workflow_id: str
    round_key: str
    state: RoundState


def find_repeat(
    session: ReadSession, key: ApiKey, asked: AskedRound, inline_max_bytes: int
) -> RoundAnswer | None:
    """Return what became of an earlier round of the same idempotency key, None where there was none.

    Raises:
        APIProblem: idempotency_conflict for another body, round_abandoned for a round that never started.
    """
    if asked.idempotency_key is None:
        return None
    row = find_round_by_key(session, key.id, asked.idempotency_key)
    if row is None:
        return None
    _check_repeat(row, asked)
    return load_answer(session, row, inline_max_bytes)


async def run_round(deps: APIDeps, key_id: str, asked: AskedRound, wait_s: float) -> RoundAnswer | Accepted:
    """Store a round, start it, and wait for it; joins a round that another request stored meanwhile.

    Raises:
        APIProblem: engine_unavailable where it surely did not start and never will.
        DatabaseError: the round could not be stored, and nothing was started.
    """
    stored = await _store(deps, key_id, asked)
    return await _start_and_wait(deps, key_id, asked, stored, wait_s)


async def join_round(
    deps: APIDeps, key_id: str, asked: AskedRound, repeat: RoundAnswer, wait_s: float
) -> RoundAnswer | Accepted:
    """Answer a repeat: from what is stored where the round has ended, else by waiting for it.

    A round that is still only requested is started once more: its first start may be under way, or lost with
    the process that tried. The engine keeps one workflow of an id, so there is never a second. A round that
    failed by the engine's fault goes on: what was sent keeps its result, and what was not is made now.
    """
    if may_be_repeated(repeat.state, repeat.state_reason) and asked.idempotency_key is not None:
        stored = _stored(await deps.database.write(repeat_round, repeat.round_id, asked.request_id))
        return await _start_and_wait(deps, key_id, asked, stored, wait_s)
    if repeat.has_ended:
        return repeat
    stored = _Stored(repeat.round_id, repeat.workflow_id, repeat.round_key, repeat.state)
    return await _start_and_wait(deps, key_id, asked, stored, wait_s)


async def _start_and_wait(
    deps: APIDeps, key_id: str, asked: AskedRound, stored: _Stored, wait_s: float
) -> RoundAnswer | Accepted:
    if stored.state is RoundState.REQUESTED:
        start = await deps.engine.start_round(_start_of(key_id, asked, stored))
        if start is Start.REFUSED and await _abandoned(deps, stored.round_id):
            raise _refused_round(ErrorCode.ENGINE_UNAVAILABLE, stored.round_id)
        if start is not Start.STARTED:
            return Accepted(stored.round_id, stored.state)
    return await _await_round(deps, stored.round_id, stored.workflow_id, wait_s)


async def _await_round(
    deps: APIDeps, round_id: str, workflow_id: str, wait_s: float
) -> RoundAnswer | Accepted:
    """Wait for a round that was started, and read what became of it.

    The round goes on whatever happens here, so nothing here may claim that it did not.
    """
    waited = await deps.engine.wait_for_round(workflow_id, wait_s)
    if waited is not Wait.ENDED:
        logger.info("round %s was not waited for to its end: %s", round_id, waited.value)
    try:
        answer = await deps.database.read(_read_answer, round_id, deps.settings.result_inline_max_bytes)
    except DatabaseError:
        logger.exception("round %s runs, but the database could not be read", round_id)
        return Accepted(round_id, RoundState.RUNNING)
    if answer.state is RoundState.ABANDONED:
        raise _refused_round(ErrorCode.ROUND_ABANDONED, round_id)
    return answer if answer.has_ended else Accepted(round_id, answer.state)


def _read_answer(session: ReadSession, round_id: str, inline_max_bytes: int) -> RoundAnswer:
    row = find_round(session, round_id)
    if row is None:
        raise not_found("round", round_id)
    return load_answer(session, row, inline_max_bytes)


async def _store(deps: APIDeps, key_id: str, asked: AskedRound) -> _Stored:
    try:
        return await deps.database.write(_find_or_insert, key_id, asked)
    except IntegrityError:
        # Another process inserted the round of this key between our look and our insert; now it is there.
        return await deps.database.write(_find_or_insert, key_id, asked)


def _find_or_insert(session: WriteSession, key_id: str, asked: AskedRound) -> _Stored:
    if asked.idempotency_key is not None:
        found = find_round_by_key(session, key_id, asked.idempotency_key)
        if found is not None:
            _check_repeat(found, asked)
            return _stored(found)
    conversation_id = _conversation_of(session, key_id, asked)
    round_id = new_id()
    round_key = round_id if asked.idempotency_key is None else asked.idempotency_key
    arguments = [canonical_bytes({"arguments": call.arguments}) for call in asked.calls]
    calls = [
        RequestedCall(call.id, call.name, digest)
        for call, digest in zip(asked.calls, store_payloads(session, arguments), strict=True)
    ]
    requested = RequestedRound(
        workflow_id=workflow_id_of(key_id, round_key),
        key_id=key_id,
        round_key=round_key,
        body_digest=asked.body_digest,
        request_id=asked.request_id,
        request_filter=asked.filter_headers,
        calls=calls,
        implementations=asked.place.implementations,
        on_unknown=asked.on_unknown,
        task_id=asked.place.task_id,
        conversation_id=conversation_id,
        profile_key=asked.place.profile_key,
    )
    insert_round(session, requested, round_id)
    return _Stored(round_id, requested.workflow_id, round_key, RoundState.REQUESTED)


def _conversation_of(session: WriteSession, key_id: str, asked: AskedRound) -> str | None:
    """Return the conversation that a round is part of; asked for just before the round is stored."""
    try:
        return settle_place(session, key_id, asked.place)
    except PlaceRefused as refused:
        raise _misplaced(refused) from refused


def _misplaced(refused: PlaceRefused) -> APIProblem:
    match refused.fault:
        case PlaceFault.UNKNOWN_TASK:
            return not_found("task", refused.name)
        case PlaceFault.UNKNOWN_CONVERSATION:
            return not_found("conversation", refused.name)
        case PlaceFault.TASK_ENDED:
            details = {"what": "task", "name": refused.name, "state": refused.state}
            return APIProblem(ErrorCode.WRONG_STATE, details)
        case PlaceFault.UNKNOWN_PROFILE:
            return unknown_profile(refused.name, status=400)
        case PlaceFault.FIXED_BY_TASK:
            return invalid_field(refused.name, "was fixed when the task was created", status=400)


def _stored(row: Round) -> _Stored:
    return _Stored(row.id, row.workflow_id, row.round_key, row.state)


def _check_repeat(row: Round, asked: AskedRound) -> None:
    if row.body_digest != asked.body_digest:
        raise _refused_round(ErrorCode.IDEMPOTENCY_CONFLICT, row.id)
    if row.state is RoundState.ABANDONED:
        raise _refused_round(ErrorCode.ROUND_ABANDONED, row.id)


def _refused_round(code: ErrorCode, round_id: str) -> APIProblem:
    return APIProblem(code, {"round_id": round_id}, audited=Audited(round_id=round_id))


def _start_of(key_id: str, asked: AskedRound, stored: _Stored) -> RoundStart:
    return RoundStart(
        round_id=stored.round_id,
        key_id=key_id,
        round_key=stored.round_key,
        body_digest=asked.body_digest,
        tool_names=[call.name for call in asked.calls],
        include_clients=asked.include_clients,
        include_tools=asked.include_tools,
        on_unknown=asked.on_unknown,
        stored_workflow_id=stored.workflow_id,
    )


async def _abandoned(deps: APIDeps, round_id: str) -> bool:
    """Make it certain that a round never starts; False where that cannot be made certain.

    The row decides and not the engine's answer: freezing refuses an abandoned row, and only a row that is
    still `requested` can be abandoned. So a 503 is true even if the start had been carried out after all.
    """
    try:
        return await deps.database.write(abandon_round, round_id, ErrorCode.ENGINE_UNAVAILABLE.value)
    except DatabaseError:
        logger.exception("round %s could not be abandoned", round_id)
        return False


def owned_round(session: Session, key: ApiKey, round_id: str) -> Round:
    """Return a round of the key; not_found for any other, whoever's it is."""
    row = find_round(session, round_id, key.id)
    if row is None:
        raise not_found("round", round_id)
    return row


async def stop_round(deps: APIDeps, round_id: str, workflow_id: str, asking: tuple[str, str]) -> RoundState:
    """Tell the workflow of a round to stop, and write down who asked, as (actor, request id).

    Raises:
        APIProblem: cancel_unavailable where the engine cannot be reached.
    """
    actor, request_id = asking
    fact = AuditFact(AuditKind.ROUND_CANCEL_REQUESTED, actor=actor, request_id=request_id, round_id=round_id)
    match await deps.engine.cancel_round(workflow_id):
        case Cancel.ACCEPTED:
            return await deps.database.write(_record_cancel, round_id, fact, abandon=False)
        case Cancel.UNKNOWN_WORKFLOW:
            return await deps.database.write(_record_cancel, round_id, fact, abandon=True)
        case Cancel.UNREACHABLE:
            raise APIProblem(
                ErrorCode.CANCEL_UNAVAILABLE, {"round_id": round_id}, audited=Audited(round_id=round_id)
            )


def _record_cancel(session: WriteSession, round_id: str, fact: AuditFact, *, abandon: bool) -> RoundState:
    """Write the request down; a round that the engine does not know and that never began is abandoned."""
    append_audit(session, fact)
    if abandon:
        abandon_round(session, round_id, CANCELED_BEFORE_START)
    row = session.get(Round, round_id)
    return RoundState.RUNNING if row is None else row.state
