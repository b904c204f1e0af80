"""The values of one tool call and the transactions of its sends and its end. Each is whole or nothing.

Three transactions carry a call: `activities.opening.open_call`, `mark_call_sent` just before the first byte
leaves, and `settle_call`. A worker that comes later finds in them what its predecessor did.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy.orm import Session

from activities.quota import MeteredCall, meter_call
from governance.admission import call_error
from governance.canonical import JSON, canonical_bytes
from governance.codes import (
    Classification,
    ErrorCode,
    InvocationOutcome,
    InvocationStatus,
    SendOutcome,
)
from governance.failures import CallError
from governance.guardrails import Guardrail
from governance.snapshots import ToolSnapshot
from models.audit import AuditFact, AuditKind, append_audit
from models.connection import ConnectionTarget
from models.database import WriteSession
from models.invocation import Settlement, ToolInvocation, lock_invocation, settle_running
from models.mcp_session import StoredSession
from models.payload import store_payload
from models.resolution import refresh_has_unknown
from models.round import NewEvent, append_events, take_repeat
from models.send import close_send, hold_and_close_send, load_sends, mark_sent, open_send
from models.slot import SLOT_LEASE_S, Waiter, release_slot

MAX_SENDS = 3
"""Sends of one invocation, the repeats of those that surely did not run included."""

AUDITED_ARGUMENTS = 16 * 1024
"""Characters of a call's arguments that the audit trail keeps, where a connection asks for them."""

ROUND_REPEATS = 24
"""Repeated sends in one round, whatever their causes: a failing upstream costs a round no more than this."""


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
    """The worker that has the call now, the token that fences its predecessors off, and who asked it."""

    worker: str
    lease_token: str
    workflow_id: str = ""
    slot_lease_s: float = SLOT_LEASE_S


@dataclass(frozen=True)
class ResumePoint:
    """Where an earlier send's answer can be fetched."""

    request_id: str
    last_event_id: str


@dataclass(frozen=True)
class OpenCall:
    """A call that may be sent now, with everything that sending needs.

    With `resume` the send is an earlier worker's, which left already: its answer is to be fetched, and the
    call is not to be sent. `target` is None for a tool that belongs to no connection.
    """

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
    target: ConnectionTarget | None
    session_scope: str
    session: StoredSession | None
    resume: ResumePoint | None
    holds_slot: bool = False
    """Whether the call has a slot of its connection, to be given up at its end."""
    wake: Waiter | None = None
    """A call that another free slot of the connection is for."""
    arguments_digest: str | None = None
    """The digest of `arguments` as they are stored, for the audit trail."""
    guardrails: tuple[Guardrail, ...] = ()
    """The guardrails that judge the answer, in order."""

    @property
    def slot_lease(self) -> str | None:
        """The lease under which the call holds a slot, None where it holds none."""
        return self.owner.lease_token if self.holds_slot else None


@dataclass(frozen=True)
class SettledCall:
    """How a call ended; no content, only its digest and size."""

    status: InvocationStatus
    outcome: InvocationOutcome
    code: ErrorCode | None
    result_digest: str | None
    result_bytes: int
    invocation_id: str
    wake: Waiter | None = None
    """A call that the slot is for which this one gave up."""


@dataclass(frozen=True)
class CallOutcome:
    """What to record of a call: the settlement and what is known of its last send."""

    settlement: Settlement
    send_outcome: SendOutcome
    result: bytes | None = None
    facts: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    """Further facts for the audit row: what guardrails noted; never arguments or results."""


class LeaseLostError(Exception):
    """Another worker has this call, or it is terminal: this worker must not send."""

    def __init__(self, invocation_id: str) -> None:
        """Name the invocation."""
        super().__init__(
            f"Invocation {invocation_id!r} belongs to another worker now; this one sends nothing."
        )


class RepeatsUsedUpError(Exception):
    """The round has repeated as many sends as it may."""

    def __init__(self, round_id: str) -> None:
        """Name the round."""
        super().__init__(f"Round {round_id!r} has used up its {ROUND_REPEATS} repeats.")


def mark_call_sent(session: WriteSession, call: OpenCall, send_id: str, session_digest: str | None) -> None:
    """Commit that the first byte is about to leave.

    Raises:
        LeaseLostError: this worker may not send any more.
    """
    if not mark_sent(session, send_id, call.owner.lease_token, session_digest):
        raise LeaseLostError(call.invocation_id)
    append_audit(
        session,
        AuditFact(
            AuditKind.CALL_SENT,
            actor=call.key_id,
            round_id=call.place.round_id,
            invocation_id=call.invocation_id,
            tool_name=call.snapshot.exposed_name,
            arguments_digest=call.arguments_digest,
            data={
                "position": call.place.position,
                "worker": call.owner.worker,
                "send": call.send_number,
                **_audited_arguments(call),
            },
        ),
    )


def _audited_arguments(call: OpenCall) -> dict[str, JSON]:
    """Return the arguments as text, where the connection's operator wants them in the audit trail."""
    if call.target is None or not call.target.audit_arguments:
        return {}
    text = canonical_bytes(call.arguments).decode()
    return {"arguments": text[:AUDITED_ARGUMENTS], "arguments_cut": len(text) > AUDITED_ARGUMENTS}


def close_for_repeat(
    session: WriteSession, call: OpenCall, send_id: str, outcome: SendOutcome
) -> tuple[bool, Waiter | None]:
    """Close a send after which another one may follow; False when the round has no repeat left.

    Without a repeat left the send is closed all the same, and its call is to be settled. The waiter has the
    call's slot now, and is to be woken.

    Raises:
        LeaseLostError: the call belongs to another worker now, or is terminal.
    """
    _require_lease(session, call)
    close_send(session, send_id, outcome)
    waiter = _leave_slot(session, call)
    return take_repeat(session, call.place.round_id, ROUND_REPEATS), waiter


def hand_over(session: WriteSession, call: OpenCall, send_id: str, outcome: SendOutcome) -> Waiter | None:
    """Close a send of a worker that ends, so that another worker may go on with the call.

    Returns who has the call's slot now, and is to be woken.

    Raises:
        LeaseLostError: the call belongs to another worker already, or is terminal.
    """
    _require_lease(session, call)
    close_send(session, send_id, outcome)
    return _leave_slot(session, call)


def open_next_send(session: WriteSession, call: OpenCall, send_id: str) -> tuple[str, int]:
    """Close a refused send and open the next one of the same call; return its id and number.

    Raises:
        LeaseLostError: the call belongs to another worker now, or is terminal.
        RepeatsUsedUpError: the round has no repeat left; nothing was changed.
    """
    invocation = _require_lease(session, call)
    if not take_repeat(session, call.place.round_id, ROUND_REPEATS):
        raise RepeatsUsedUpError(call.place.round_id)
    close_send(session, send_id, SendOutcome.REFUSED)
    number = len(load_sends(session, call.invocation_id)) + 1
    return open_send(session, invocation, number, call.owner.worker).id, number


def settle_call(session: WriteSession, call: OpenCall, send_id: str, outcome: CallOutcome) -> SettledCall:
    """Store the result and move the call to its terminal state.

    When the call is terminal already the first state stands; what came now is kept as an audit fact. An
    answer counts whoever brings it; that there is none is only for the present owner to say.

    Raises:
        LeaseLostError: there is no answer, and the call goes on at another worker; nothing was changed.
    """
    lease = None if outcome.send_outcome is SendOutcome.ANSWERED else call.owner.lease_token
    hold_and_close_send(session, send_id, outcome.send_outcome)
    outcome = truthful(session, call.snapshot, call.invocation_id, outcome)
    settled = settle_as(session, replace(SettledPlace.of(call), lease_token=lease), outcome)
    return replace(settled, wake=_leave_slot(session, call)) if call.holds_slot else settled


@dataclass(frozen=True)
class SettledPlace:
    """Which call is settled, for the audit row and the event that tell of it."""

    invocation_id: str
    round_id: str
    position: int
    stage: int | None
    tool_call_id: str
    tool: str
    actor: str
    took_price: bool = True
    """Whether the call's price was taken from its key's account."""
    lease_token: str | None = None
    """The lease that must still be the call's; None for whoever has an answer or ends the round."""

    @classmethod
    def of(cls, call: OpenCall) -> "SettledPlace":
        """Take the facts from a call that was opened."""
        return cls(
            invocation_id=call.invocation_id,
            round_id=call.place.round_id,
            position=call.place.position,
            stage=call.place.stage,
            tool_call_id=call.tool_call_id,
            tool=call.snapshot.exposed_name,
            actor=call.key_id,
        )


def settle_as(session: WriteSession, place: SettledPlace, outcome: CallOutcome) -> SettledCall:
    """Settle a locked invocation, with its audit row and event; the first terminal state stands.

    Raises:
        LeaseLostError: another worker has the call.
    """
    digest_ = store_payload(session, outcome.result) if outcome.result is not None else None
    settlement = replace(outcome.settlement, response_digest=digest_)
    won = settle_running(session, place.invocation_id, settlement, place.lease_token)
    _audit_end(session, place, settlement, outcome, is_late=won is None)
    if won is None:
        ended = lock_invocation(session, place.invocation_id)
        if ended.status is InvocationStatus.RUNNING:
            raise LeaseLostError(place.invocation_id)
        return as_settled(ended)
    _tell_end(session, place, settlement)
    meter_call(
        session,
        MeteredCall(
            invocation_id=place.invocation_id,
            price=won.price,
            started_at=won.started_at,
            key_id=place.actor,
            round_id=place.round_id,
            tool=place.tool,
            settlement=settlement,
            send_outcome=outcome.send_outcome,
            took_price=place.took_price,
        ),
    )
    return SettledCall(
        settlement.status,
        settlement.outcome,
        _code_of(settlement),
        digest_,
        len(outcome.result or b""),
        place.invocation_id,
    )


def _audit_end(
    session: WriteSession, place: SettledPlace, settlement: Settlement, outcome: CallOutcome, *, is_late: bool
) -> None:
    """Append to the audit trail how a call ended, or what came after its end."""
    code = _code_of(settlement)
    append_audit(
        session,
        AuditFact(
            AuditKind.LATE_RESULT if is_late else AuditKind.CALL_SETTLED,
            actor=place.actor,
            round_id=place.round_id,
            invocation_id=place.invocation_id,
            tool_name=place.tool,
            code=code.value if code else None,
            data={
                **_facts_of(place, settlement),
                "send": outcome.send_outcome.value,
                "result_digest": settlement.response_digest,
                **outcome.facts,
            },
        ),
    )


def _tell_end(session: WriteSession, place: SettledPlace, settlement: Settlement) -> None:
    """Tell whoever follows the round that a call ended, and mark a round that has an open question now."""
    code = _code_of(settlement)
    event: dict[str, JSON] = {
        **_facts_of(place, settlement),
        "tool_call_id": place.tool_call_id,
        "tool": place.tool,
        "stage": place.stage,
        "invocation_id": place.invocation_id,
        "code": code.value if code else None,
    }
    append_events(session, place.round_id, [NewEvent("call_finished", event)])
    if settlement.outcome is InvocationOutcome.UNKNOWN:
        refresh_has_unknown(session, place.round_id)


def _facts_of(place: SettledPlace, settlement: Settlement) -> dict[str, JSON]:
    return {
        "position": place.position,
        "status": settlement.status.value,
        "outcome": settlement.outcome.value,
    }


def _code_of(settlement: Settlement) -> ErrorCode | None:
    return settlement.error.code if settlement.error else None


def as_settled(invocation: ToolInvocation) -> SettledCall:
    """Return how a terminal invocation ended."""
    error = None if invocation.error is None else CallError.from_json(invocation.error)
    return SettledCall(
        invocation.status,
        invocation.outcome,
        error.code if error else None,
        invocation.response_digest,
        0,
        invocation.id,
    )


def truthful(
    session: Session, snapshot: ToolSnapshot, invocation_id: str, outcome: CallOutcome
) -> CallOutcome:
    """Never let a call be settled as not run while an earlier send of it may have run.

    A call may be sent again where the operator declared it idempotent. When the last send then did not run,
    an earlier one still may have.
    """
    known = outcome.settlement.outcome is InvocationOutcome.KNOWN
    if not known or outcome.send_outcome is SendOutcome.ANSWERED:
        return outcome
    if not any(send.may_have_run for send in load_sends(session, invocation_id)):
        return outcome
    return unknown_outcome(snapshot.exposed_name, "earlier_send_unanswered", outcome.settlement.status)


def unknown_outcome(
    tool: str, reason: str, status: InvocationStatus = InvocationStatus.FAILED
) -> CallOutcome:
    """Say that a call was sent and that nobody knows whether it ran."""
    error = call_error(
        ErrorCode.OUTCOME_UNKNOWN,
        {"tool": tool, "reason": reason, "outcome": "unknown"},
        Classification.TRANSPORT,
    )
    return CallOutcome(Settlement(status, InvocationOutcome.UNKNOWN, error=error), SendOutcome.UNKNOWN)


def canceled_outcome(tool: str, *, was_sent: bool) -> CallOutcome:
    """Say that a call was canceled: before it was sent, or when it may have run already."""
    error = call_error(ErrorCode.CANCELED, {"tool": tool, "outcome": "unknown" if was_sent else "not_sent"})
    known = InvocationOutcome.UNKNOWN if was_sent else InvocationOutcome.KNOWN
    return CallOutcome(
        Settlement(InvocationStatus.CANCELED, known, error=error),
        SendOutcome.UNKNOWN if was_sent else SendOutcome.NOT_SENT,
    )


def _leave_slot(session: WriteSession, call: OpenCall) -> Waiter | None:
    """Give the call's slot up, so that the next one has it; return who that is."""
    if not call.holds_slot:
        return None
    return release_slot(session, call.place.idempotency_key, call.owner.lease_token)


def _require_lease(session: WriteSession, call: OpenCall) -> ToolInvocation:
    invocation = lock_invocation(session, call.invocation_id)
    # A terminal invocation has no lease.
    if invocation.lease_token != call.owner.lease_token:
        raise LeaseLostError(call.invocation_id)
    return invocation
