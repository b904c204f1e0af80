"""Rounds: what was asked, what was decided for each call, and the events that tell of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint, bindparam, case, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from governance.codes import TERMINAL_ROUND_STATES, RoundState
from governance.resolutions import OnUnknown
from models.base import Base, Configuration, Digest, EnumByValue, PublicId, new_id, table_of, utc_now
from models.database import WriteSession


class Round(Base):
    """One provider round: a set of tool calls that a caller asked for, under one key."""

    __tablename__ = "rounds"
    __table_args__ = (
        UniqueConstraint("key_id", "round_key"),
        # What invocations of a task's bindings point at: a round together with its task.
        Index("uq_rounds_id_task_id", "id", "task_id", unique=True),
    )

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    workflow_id: Mapped[str] = mapped_column(String(255), unique=True)
    key_id: Mapped[str] = mapped_column(PublicId, index=True)
    """The calling key; no foreign key, since a round outlives a deleted key."""
    round_key: Mapped[str] = mapped_column(String(255))
    """The caller's Idempotency-Key, or the round's own id."""
    body_digest: Mapped[str] = mapped_column(Digest)
    request_id: Mapped[str] = mapped_column(String(64))
    state: Mapped[RoundState] = mapped_column(
        EnumByValue(RoundState), default=RoundState.REQUESTED, index=True
    )
    state_reason: Mapped[str | None] = mapped_column(String(255))
    request_filter: Mapped[dict[str, JSON]] = mapped_column(Configuration)
    """The filter headers as received: {"include_clients": [..]|null, "include_tools": [..]|null}."""
    task_id: Mapped[str | None] = mapped_column(PublicId, ForeignKey("tasks.id"), index=True)
    """The task whose frozen bindings the round runs on; such a round freezes nothing."""
    conversation_id: Mapped[str | None] = mapped_column(PublicId, ForeignKey("conversations.id"), index=True)
    """The conversation that the round is part of, which owns the subagents that it starts."""
    implementations: Mapped[dict[str, str]] = mapped_column(Configuration, default=dict)
    """The implementations asked for, by tool name, where they are not the default."""
    profile_key: Mapped[str | None] = mapped_column(String(255))
    """The profile asked for; a subagent's own goes before it, and a task's round has the task's."""
    argument_rules: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """The key's rules of arguments as they were when the round was frozen; see `models.argument_rule`."""
    frozen_set_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("frozen_sets.digest"))
    has_unknown: Mapped[bool] = mapped_column(default=False)
    """Whether the outcome of one of its calls is unknown and nobody has resolved it."""
    on_unknown: Mapped[OnUnknown] = mapped_column(EnumByValue(OnUnknown), default=OnUnknown.FAIL)
    repeat_count: Mapped[int] = mapped_column(default=0)
    """Sends of its calls that were repeated, out of one budget for the whole round."""
    call_count: Mapped[int]
    event_count: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class RoundCall(Base):
    """One call of a round, at its place in the model's order."""

    __tablename__ = "round_calls"

    round_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("rounds.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    call_id: Mapped[str] = mapped_column(String(512))
    tool_name: Mapped[str] = mapped_column(String(512))
    arguments_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("payloads.digest"))
    """The arguments as the model gave them, before parsing: canonical JSON of {"arguments": ...}."""
    binding_id: Mapped[str | None] = mapped_column(PublicId, ForeignKey("tool_bindings.id"))
    sent_arguments_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("payloads.digest"))
    """The parsed arguments as they are sent: canonical JSON of an object."""
    stage: Mapped[int | None]
    invocation_id: Mapped[str | None] = mapped_column(PublicId, ForeignKey("tool_invocations.id"))
    guardrails_revision: Mapped[int | None]
    """The set of guardrails that the call is under, None where none of them is meant for it."""
    guard_state: Mapped[str | None] = mapped_column(String(32))
    """Whether the guardrails before the call have judged it: see `models.guardrail.GuardState`."""
    cancel_requested_at: Mapped[datetime | None]
    """When this one call was told to stop; one that has not started then never does."""
    refusal: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """Why the call was not admitted, as `governance.failures.CallError`; None for an admitted call."""


class RoundEvent(Base):
    """Something that happened in a round, numbered from 1 without gaps."""

    __tablename__ = "round_events"

    round_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("rounds.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(64))
    data: Mapped[dict[str, JSON]] = mapped_column(Configuration)
    at: Mapped[datetime] = mapped_column(default=utc_now)


@dataclass(frozen=True)
class NewEvent:
    """An event to append: its kind, such as `call_finished`, and JSON without arguments or results."""

    kind: str
    data: Mapping[str, JSON]


@dataclass(frozen=True)
class RequestedCall:
    """A call as it was asked for, its arguments stored already."""

    call_id: str
    tool_name: str
    arguments_digest: str


@dataclass(frozen=True)
class RequestedRound:
    """A round as it was asked for."""

    workflow_id: str
    key_id: str
    round_key: str
    body_digest: str
    request_id: str
    request_filter: Mapping[str, JSON]
    calls: Sequence[RequestedCall]
    on_unknown: OnUnknown = OnUnknown.FAIL
    task_id: str | None = None
    conversation_id: str | None = None
    implementations: Mapping[str, str] = field(default_factory=dict[str, str])
    profile_key: str | None = None


def insert_round(session: WriteSession, requested: RequestedRound, round_id: str) -> None:
    """Insert a round in state requested, with its calls and its first event."""
    now = utc_now()
    row = {
        "id": round_id,
        "workflow_id": requested.workflow_id,
        "key_id": requested.key_id,
        "round_key": requested.round_key,
        "body_digest": requested.body_digest,
        "request_id": requested.request_id,
        "state": RoundState.REQUESTED,
        "request_filter": dict(requested.request_filter),
        "on_unknown": requested.on_unknown,
        "task_id": requested.task_id,
        "conversation_id": requested.conversation_id,
        "implementations": dict(requested.implementations),
        "profile_key": requested.profile_key,
        "has_unknown": False,
        "repeat_count": 0,
        "call_count": len(requested.calls),
        "event_count": 1,
        "created_at": now,
    }
    connection = session.connection()
    connection.execute(_INSERT_ROUND, row)
    calls = [
        {
            "round_id": round_id,
            "position": position,
            "call_id": call.call_id,
            "tool_name": call.tool_name,
            "arguments_digest": call.arguments_digest,
        }
        for position, call in enumerate(requested.calls)
    ]
    if calls:
        connection.execute(_INSERT_CALLS, calls)
    asked = NewEvent("round_requested", {"call_count": len(requested.calls)})
    add_numbered_events(session, round_id, 1, [asked])


_ROUNDS = table_of(Round)
_INSERT_ROUND = _ROUNDS.insert()
_INSERT_CALLS = table_of(RoundCall).insert()
_INSERT_EVENTS = table_of(RoundEvent).insert()
_ROUND_CALLS = table_of(RoundCall)
_THIS_CALL = (_ROUND_CALLS.c.round_id == bindparam("round"), _ROUND_CALLS.c.position == bindparam("place"))
_BIND_CALL = (
    _ROUND_CALLS.update()
    .where(*_THIS_CALL)
    .values(binding_id=bindparam("binding"), sent_arguments_digest=bindparam("arguments"))
)
_BEGIN_CALL = (
    _ROUND_CALLS.update()
    .where(*_THIS_CALL)
    .values(stage=bindparam("its_stage"), invocation_id=bindparam("invocation"))
)
_COUNT_EVENTS = (
    _ROUNDS.update()
    .where(_ROUNDS.c.id == bindparam("round"))
    .values(event_count=_ROUNDS.c.event_count + bindparam("new"))
    .returning(_ROUNDS.c.event_count)
)
_BY_KEY = select(Round).where(Round.key_id == bindparam("key"), Round.round_key == bindparam("round_key"))
_CALLS = select(RoundCall).where(RoundCall.round_id == bindparam("round")).order_by(RoundCall.position)
_BEGIN = (
    _ROUNDS.update()
    .where(_ROUNDS.c.id == bindparam("round"))
    .values(
        state=RoundState.RUNNING,
        frozen_set_digest=bindparam("frozen_set"),
        argument_rules=bindparam("rules"),
        started_at=bindparam("now"),
        event_count=_ROUNDS.c.event_count + bindparam("new"),
    )
    .returning(_ROUNDS.c.event_count)
)
_HELD = (
    select(_ROUNDS.c.id, _ROUNDS.c.key_id, _ROUNDS.c.workflow_id, _ROUNDS.c.state)
    .where(_ROUNDS.c.id == bindparam("round"))
    .with_for_update()
)
_LOCKED = (
    select(Round)
    .where(Round.id == bindparam("round"))
    .with_for_update()
    .execution_options(populate_existing=True)
)


def append_events(session: WriteSession, round_id: str, events: Iterable[NewEvent]) -> None:
    """Append events to a round.

    The count on the round's row is the lock: two writers of one round take turns from here to their
    commit, so a reader that has seen number n has seen everything before it.
    """
    new = list(events)
    if not new:
        return
    # The statements below are not the session's, which has to tell the database first of what it knows.
    session.flush()
    connection = session.connection()
    last = connection.scalar(_COUNT_EVENTS, {"round": round_id, "new": len(new)})
    if last is not None:
        add_numbered_events(session, round_id, last, new)


def add_numbered_events(session: WriteSession, round_id: str, last: int, events: Sequence[NewEvent]) -> None:
    """Insert events that the round's row counts already; the last of them has the number `last`."""
    now = utc_now()
    session.connection().execute(
        _INSERT_EVENTS,
        [
            {"round_id": round_id, "number": number, "kind": event.kind, "data": dict(event.data), "at": now}
            for number, event in enumerate(events, start=last - len(events) + 1)
        ],
    )


@dataclass(frozen=True)
class RoundStart:
    """What is fixed of a round when it begins to run."""

    frozen_set_digest: str
    argument_rules: JSON


def begin_round(session: WriteSession, round_id: str, start: RoundStart, events: Sequence[NewEvent]) -> None:
    """Let a round run, whose row the caller holds, and append its first events, one at least."""
    begun = {
        "round": round_id,
        "frozen_set": start.frozen_set_digest,
        "rules": start.argument_rules,
        "now": utc_now(),
        "new": len(events),
    }
    last: int = session.connection().execute(_BEGIN, begun).scalar_one()
    add_numbered_events(session, round_id, last, events)


@dataclass(frozen=True)
class BoundCall:
    """An admitted call: its binding and the digest of the arguments that it sends."""

    position: int
    binding_id: str
    arguments_digest: str


def bind_calls(session: WriteSession, round_id: str, calls: Sequence[BoundCall]) -> None:
    """Write down what the admitted calls of a round are bound to."""
    if not calls:
        return
    session.connection().execute(
        _BIND_CALL,
        [
            {
                "round": round_id,
                "place": call.position,
                "binding": call.binding_id,
                "arguments": call.arguments_digest,
            }
            for call in calls
        ],
    )


def begin_call(session: WriteSession, round_id: str, position: int, stage: int, invocation_id: str) -> None:
    """Note in which stage a call is made and as which invocation."""
    begun = {"round": round_id, "place": position, "its_stage": stage, "invocation": invocation_id}
    session.connection().execute(_BEGIN_CALL, begun)


def find_round(session: Session, round_id: str, key_id: str | None = None) -> Round | None:
    """Return a round; with `key_id`, only if that key asked for it."""
    row = session.get(Round, round_id)
    return row if row is not None and key_id in (None, row.key_id) else None


def find_round_by_key(session: Session, key_id: str, round_key: str) -> Round | None:
    """Return the round that a key asked for under a round key, or None."""
    return session.scalar(_BY_KEY, {"key": key_id, "round_key": round_key})


def load_round_calls(session: Session, round_id: str) -> tuple[RoundCall, ...]:
    """Return the calls of a round in the model's order."""
    return tuple(session.scalars(_CALLS, {"round": round_id}))


def load_events(session: Session, round_id: str, after: int, limit: int = 500) -> tuple[RoundEvent, ...]:
    """Return the events of a round with a number above `after`, oldest first, at most `limit`."""
    return tuple(
        session.scalars(
            select(RoundEvent)
            .where(RoundEvent.round_id == round_id, RoundEvent.number > after)
            .order_by(RoundEvent.number)
            .limit(limit)
        )
    )


def lock_round(session: WriteSession, round_id: str) -> Round:
    """Return a round as it is now, and hold its row until the commit."""
    return session.scalars(_LOCKED, {"round": round_id}).one()


@dataclass(frozen=True)
class HeldRound:
    """A round whose row is held: whose it is, and how it stands."""

    id: str
    key_id: str
    workflow_id: str
    state: RoundState


def hold_round(session: WriteSession, round_id: str) -> HeldRound:
    """Hold a round's row until the commit, and return as much of it as ending it needs."""
    return HeldRound(*session.connection().execute(_HELD, {"round": round_id}).one())


def change_round_state(session: WriteSession, round_id: str, state: RoundState) -> bool:
    """Move a round that has not ended to another state that is not the end; tell whether that changed it."""
    if state in TERMINAL_ROUND_STATES:
        raise ValueError(f"A round ends by finalizing it, not by moving it to {state.value!r}.")
    changed = session.scalar(
        update(Round)
        .where(Round.id == round_id, Round.state != state, Round.state.not_in(TERMINAL_ROUND_STATES))
        .values(state=state)
        .returning(Round.id)
    )
    return changed is not None


def take_repeat(session: WriteSession, round_id: str, budget: int) -> bool:
    """Take one repeat out of the round's budget; False when it is used up."""
    changed = session.scalar(
        update(Round)
        .where(Round.id == round_id, Round.repeat_count < budget)
        .values(repeat_count=Round.repeat_count + 1)
        .returning(Round.id)
        .execution_options(synchronize_session=False)
    )
    return changed is not None


def abandon_round(session: WriteSession, round_id: str, reason: str) -> bool:
    """End a round that was never started; tell whether it was still only requested.

    It is abandoned for good. A repeat that never started fails again instead: its first run has results.
    """
    ended = session.execute(
        update(Round)
        .where(Round.id == round_id, Round.state == RoundState.REQUESTED)
        .values(
            state=case(
                (Round.frozen_set_digest.is_(None), RoundState.ABANDONED.value), else_=RoundState.FAILED.value
            ),
            state_reason=reason,
            finished_at=utc_now(),
        )
        .returning(Round.state)
        .execution_options(synchronize_session=False)
    ).scalar()
    if ended is not None:
        append_events(session, round_id, [NewEvent(f"round_{RoundState(ended).value}", {"reason": reason})])
    return ended is not None
