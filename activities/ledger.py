"""The transactions of one tool call: open it, mark its send, settle it. Each is whole or nothing.

Three transactions carry a call: `open_call`, `mark_call_sent` just before the first byte leaves, and
`settle_call`. A worker that comes later finds in them what its predecessor did.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import (
    Classification,
    ErrorCode,
    IdempotencyClass,
    InvocationOutcome,
    InvocationStatus,
    SendOutcome,
)
from governance.decision import DecisionContext, Denied, GovernedTool, decide
from governance.failures import CallError
from governance.filters import RequestFilter
from governance.snapshots import ToolSnapshot
from governance.tool_cache import ToolCache
from models.audit import AuditFact, AuditKind, append_audit
from models.binding import ToolBinding
from models.connection import Connection, ConnectionTarget, target_of
from models.database import WriteSession
from models.invocation import (
    Settlement,
    ToolInvocation,
    ToolSend,
    close_send,
    load_sends,
    mark_sent,
    open_send,
    provision,
    settle,
    take_over,
)
from models.key import ApiKey, load_key_rules
from models.mcp_session import StoredSession, load_session
from models.payload import load_payload, store_payload
from models.round import NewEvent, Round, RoundCall, append_events
from models.tool import load_snapshots

MAX_SENDS = 3
"""Sends of one invocation, the repeats of those that surely did not run included."""


@dataclass(frozen=True)
class CallPlace:
    """Which call of which round, in which stage, and the activity id that makes its idempotency key."""

    round_id: str
    position: int
    stage: int
    activity_id: str

    @property
    def idempotency_key(self) -> str:
        """The key of this call: the same for every attempt, on every worker."""
        return f"{self.round_id}/{self.activity_id}"


@dataclass(frozen=True)
class Owner:
    """The worker that has the call now, and the token that fences its predecessors off."""

    worker: str
    lease_token: str


@dataclass(frozen=True)
class ResumePoint:
    """Where an earlier send's answer can be fetched."""

    request_id: str
    last_event_id: str


@dataclass(frozen=True)
class OpenCall:
    """A call that may be sent now, with everything that sending needs."""

    place: CallPlace
    owner: Owner
    invocation_id: str
    send_id: str
    send_number: int
    key_id: str
    binding_id: str
    tool_call_id: str
    snapshot: ToolSnapshot
    arguments: dict[str, JSON]
    target: ConnectionTarget
    session_scope: str
    session: StoredSession | None
    resume: ResumePoint | None


@dataclass(frozen=True)
class SettledCall:
    """How a call ended; no content, only its digest and size."""

    status: InvocationStatus
    outcome: InvocationOutcome
    code: ErrorCode | None
    result_digest: str | None
    result_bytes: int
    invocation_id: str


@dataclass(frozen=True)
class CallOutcome:
    """What to record of a call: the settlement and what is known of its last send."""

    settlement: Settlement
    send_outcome: SendOutcome
    result: bytes | None = None


def open_call(
    session: WriteSession, place: CallPlace, owner: Owner, tools: ToolCache
) -> OpenCall | SettledCall:
    """Provision the invocation, check that the call may still be made, and open a send.

    A call that is terminal, or that an earlier worker sent and whose answer cannot be fetched, comes back
    settled; nothing is sent for it again.
    """
    row, binding, asked = _load(session, place)
    arguments = _payload(session, row.sent_arguments_digest)
    snapshot = tools.get(
        binding.snapshot_digest,
        lambda: load_snapshots(session, {binding.snapshot_digest})[binding.snapshot_digest],
    ).snapshot
    provisioned = provision(
        session, binding, row.sent_arguments_digest or "", place.idempotency_key, owner.lease_token
    )
    invocation = provisioned.invocation
    if invocation.status is not InvocationStatus.RUNNING:
        return _as_settled(session, invocation)
    connection = session.get(Connection, snapshot.connection)
    context = _Context(place, asked, row, invocation, snapshot)
    sends: tuple[ToolSend, ...] = ()
    if provisioned.created:
        _tell_started(session, context)
    else:
        take_over(session, invocation, owner.lease_token)
        sends = load_sends(session, invocation.id)
    resume, verdict = _judge_earlier(sends, snapshot)
    if verdict is not None:
        return _settle_here(session, context, verdict, sends[-1].id if sends else None)
    denial = _revocation(session, asked.key_id, connection, snapshot)
    if denial is not None and resume is None:
        return _settle_here(session, context, denial, None)
    if connection is None:
        raise LookupError("A call without a connection was not denied.")
    scope = session_scope(connection, asked.key_id, binding.id)
    stored = load_session(session, connection.id, scope)
    send = open_send(session, invocation, len(sends) + 1, owner.worker, None)
    return OpenCall(
        place=place,
        owner=owner,
        invocation_id=invocation.id,
        send_id=send.id,
        send_number=send.number,
        key_id=asked.key_id,
        binding_id=binding.id,
        tool_call_id=row.call_id,
        snapshot=snapshot,
        arguments=json.loads(arguments),
        target=target_of(connection),
        session_scope=scope,
        session=stored,
        resume=resume,
    )


def session_scope(connection: Connection, key_id: str, binding_id: str) -> str:
    """Name what shares a session: always within one key, unless each binding has its own."""
    return f"binding:{binding_id}" if connection.session_scope.value == "binding" else f"key:{key_id}"


def open_another_send(session: WriteSession, call: OpenCall) -> tuple[str, int]:
    """Open a further send of a call whose last one was refused, and return its id and number."""
    invocation = session.get_one(ToolInvocation, call.invocation_id)
    if invocation.lease_token != call.owner.lease_token:
        raise LeaseLostError(call.invocation_id)
    number = len(load_sends(session, call.invocation_id)) + 1
    return open_send(session, invocation, number, call.owner.worker, None).id, number


class LeaseLostError(Exception):
    """Another worker has this call, or it is terminal: this worker must not send."""

    def __init__(self, invocation_id: str) -> None:
        """Name the invocation."""
        super().__init__(
            f"Invocation {invocation_id!r} belongs to another worker now; this one sends nothing."
        )


def mark_call_sent(session: WriteSession, call: OpenCall, send_id: str, session_digest: str | None) -> None:
    """Commit that the first byte is about to leave.

    Raises:
        LeaseLostError: this worker may not send any more.
    """
    if not mark_sent(session, send_id, call.owner.lease_token):
        raise LeaseLostError(call.invocation_id)
    if session_digest is not None:
        session.execute(
            update(ToolSend)
            .where(ToolSend.id == send_id)
            .values(session_digest=session_digest)
            .execution_options(synchronize_session=False)
        )
    append_audit(
        session,
        AuditFact(
            AuditKind.CALL_SENT,
            actor=call.key_id,
            round_id=call.place.round_id,
            invocation_id=call.invocation_id,
            tool_name=call.snapshot.exposed_name,
            data={"position": call.place.position, "worker": call.owner.worker},
        ),
    )


def save_cursor(session: WriteSession, send_id: str, cursor: Mapping[str, JSON]) -> None:
    """Keep where the answer of a running send can be resumed."""
    session.execute(
        update(ToolSend)
        .where(ToolSend.id == send_id)
        .values(cursor=dict(cursor))
        .execution_options(synchronize_session=False)
    )


def close_unsent(session: WriteSession, send_id: str, outcome: SendOutcome) -> None:
    """Record that a send surely did not run, without settling its call."""
    close_send(session, send_id, outcome)


def settle_call(session: WriteSession, call: OpenCall, send_id: str, outcome: CallOutcome) -> SettledCall:
    """Store the result and move the call to its terminal state.

    When the call is terminal already the first state stands; what came now is kept as an audit fact.
    """
    digest_ = store_payload(session, outcome.result) if outcome.result is not None else None
    settlement = Settlement(
        outcome.settlement.status,
        outcome.settlement.outcome,
        digest_,
        outcome.settlement.is_error,
        outcome.settlement.error,
    )
    close_send(session, send_id, outcome.send_outcome)
    won = settle(session, call.invocation_id, settlement)
    code = settlement.error.code if settlement.error else None
    settled = SettledCall(
        settlement.status,
        settlement.outcome,
        code,
        digest_,
        len(outcome.result or b""),
        call.invocation_id,
    )
    append_audit(
        session,
        AuditFact(
            AuditKind.CALL_SETTLED if won else AuditKind.LATE_RESULT,
            actor=call.key_id,
            round_id=call.place.round_id,
            invocation_id=call.invocation_id,
            tool_name=call.snapshot.exposed_name,
            code=code.value if code else None,
            data={
                "position": call.place.position,
                "status": settlement.status.value,
                "outcome": settlement.outcome.value,
                "send": outcome.send_outcome.value,
                "result_digest": digest_,
            },
        ),
    )
    if not won:
        return _as_settled(session, session.get_one(ToolInvocation, call.invocation_id))
    append_events(
        session, call.place.round_id, [_finished(call.place, call.tool_call_id, call.snapshot, settled)]
    )
    return settled


@dataclass(frozen=True)
class _Context:
    """The rows of one call while it is opened."""

    place: CallPlace
    asked: "_Asked"
    row: RoundCall
    invocation: ToolInvocation
    snapshot: ToolSnapshot


@dataclass(frozen=True)
class _Asked:
    key_id: str
    request_id: str


def _load(session: Session, place: CallPlace) -> tuple[RoundCall, ToolBinding, _Asked]:
    found = session.execute(
        select(RoundCall, ToolBinding, Round.key_id, Round.request_id)
        .join(ToolBinding, ToolBinding.id == RoundCall.binding_id)
        .join(Round, Round.id == RoundCall.round_id)
        .where(RoundCall.round_id == place.round_id, RoundCall.position == place.position)
    ).one()
    row, binding, key_id, request_id = found
    return row, binding, _Asked(key_id, request_id)


def _payload(session: Session, name: str | None) -> bytes:
    content = load_payload(session, name) if name else None
    if content is None:
        raise LookupError("An admitted call has no stored arguments.")
    return content


def _as_settled(session: Session, invocation: ToolInvocation) -> SettledCall:
    del session
    error = None if invocation.error is None else CallError.from_json(invocation.error)
    return SettledCall(
        invocation.status,
        invocation.outcome,
        error.code if error else None,
        invocation.response_digest,
        0,
        invocation.id,
    )


def _tell_started(session: WriteSession, context: _Context) -> None:
    context.row.stage = context.place.stage
    context.row.invocation_id = context.invocation.id
    session.flush()
    append_events(
        session,
        context.place.round_id,
        [
            NewEvent(
                "call_started",
                {
                    "position": context.place.position,
                    "tool_call_id": context.row.call_id,
                    "tool": context.snapshot.exposed_name,
                    "stage": context.place.stage,
                    "invocation_id": context.invocation.id,
                },
            )
        ],
    )


_HARMLESS = (SendOutcome.NOT_SENT, SendOutcome.REFUSED)


def _judge_earlier(
    sends: tuple[ToolSend, ...], snapshot: ToolSnapshot
) -> tuple[ResumePoint | None, CallOutcome | None]:
    """Say what an earlier worker's sends allow: sending again, fetching the answer, or only "unknown"."""
    last = sends[-1] if sends else None
    if last is None or last.sent_at is None or last.outcome in _HARMLESS:
        exhausted = len(sends) >= MAX_SENDS
        return None, _never_reached(snapshot) if exhausted else None
    if last.cursor is not None:
        return ResumePoint(last.cursor["request_id"], last.cursor["last_event_id"]), None
    repeatable = snapshot.idempotency is not IdempotencyClass.UNSAFE
    if repeatable and len(sends) < MAX_SENDS:
        return None, None
    return None, unknown_outcome(snapshot, "worker_lost")


def unknown_outcome(snapshot: ToolSnapshot, reason: str) -> CallOutcome:
    """Say that a call was sent and that nobody knows whether it ran."""
    error = call_error(
        ErrorCode.OUTCOME_UNKNOWN,
        {"tool": snapshot.exposed_name, "reason": reason, "outcome": "unknown"},
        Classification.TRANSPORT,
    )
    return CallOutcome(
        Settlement(InvocationStatus.FAILED, InvocationOutcome.UNKNOWN, error=error), SendOutcome.UNKNOWN
    )


def _never_reached(snapshot: ToolSnapshot) -> CallOutcome:
    error = call_error(
        ErrorCode.UPSTREAM_UNAVAILABLE,
        {"tool": snapshot.exposed_name, "outcome": "not_sent"},
        Classification.TRANSPORT,
        retryable=True,
    )
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _settle_here(
    session: WriteSession, context: _Context, outcome: CallOutcome, send_id: str | None
) -> SettledCall:
    if send_id is not None:
        close_send(session, send_id, outcome.send_outcome)
    settle(session, context.invocation.id, outcome.settlement)
    error = outcome.settlement.error
    settled = SettledCall(
        outcome.settlement.status,
        outcome.settlement.outcome,
        error.code if error else None,
        None,
        0,
        context.invocation.id,
    )
    append_audit(
        session,
        AuditFact(
            AuditKind.CALL_SETTLED,
            actor=context.asked.key_id,
            request_id=context.asked.request_id,
            round_id=context.place.round_id,
            invocation_id=context.invocation.id,
            tool_name=context.snapshot.exposed_name,
            code=error.code.value if error else None,
            data={
                "position": context.place.position,
                "status": settled.status.value,
                "outcome": settled.outcome.value,
                "send": outcome.send_outcome.value,
            },
        ),
    )
    event = _finished(context.place, context.row.call_id, context.snapshot, settled)
    append_events(session, context.place.round_id, [event])
    return settled


def _revocation(
    session: Session, key_id: str, connection: Connection | None, snapshot: ToolSnapshot
) -> CallOutcome | None:
    """Decide once more, over rows as they are now: a grant that was taken away stops calls not yet sent."""
    key = session.get(ApiKey, key_id)
    if key is not None and connection is not None:
        context = DecisionContext(
            key=load_key_rules(session, key),
            connections={connection.name: connection.rules()},
            request=RequestFilter(),
        )
        tool = GovernedTool(snapshot.exposed_name, connection.name, snapshot.upstream_name)
        decision = decide(context, tool)
        if not isinstance(decision, Denied):
            return None
        code = decision.code
    else:
        code = ErrorCode.KEY_DISABLED if key is None else ErrorCode.TOOL_NOT_FOUND
    details: dict[str, JSON] = {"tool": snapshot.exposed_name, "outcome": "not_sent"}
    error = call_error(code, details, Classification.AUTHORIZATION)
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _finished(place: CallPlace, call_id: str, snapshot: ToolSnapshot, settled: SettledCall) -> NewEvent:
    return NewEvent(
        "call_finished",
        {
            "position": place.position,
            "tool_call_id": call_id,
            "tool": snapshot.exposed_name,
            "stage": place.stage,
            "invocation_id": settled.invocation_id,
            "status": settled.status.value,
            "outcome": settled.outcome.value,
            "code": settled.code.value if settled.code else None,
        },
    )
