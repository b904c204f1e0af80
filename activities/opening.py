"""The first transaction of a tool call: provision it, judge earlier sends, decide again, open a send."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from activities.drift import (
    frozen_target,
    report_drift,
)
from activities.guardrails import guardrails_after
from activities.ledger import (
    MAX_SENDS,
    CallOutcome,
    CallPlace,
    OpenCall,
    Owner,
    ResumePoint,
    SettledCall,
    as_settled,
    canceled_outcome,
    settle_as,
    truthful,
    unknown_outcome,
)
from activities.quota import count_refused, take_from_quota
from activities.surroundings import Surroundings, judge_again, look_around
from activities.wanted import WantedCall, load_wanted
from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import (
    Classification,
    ErrorCode,
    IdempotencyClass,
    InvocationStatus,
    SendOutcome,
)
from governance.quotas import price_of
from governance.tool_cache import ToolCache
from models.connection import Connection, SessionScope
from models.database import WriteSession
from models.invocation import (
    CallRequest,
    Settlement,
    ToolInvocation,
    find_invocation,
    lock_invocation,
    provision_held,
    take_over,
)
from models.key import ApiKey
from models.round import NewEvent, append_events, begin_call
from models.send import ToolSend, close_send, load_doubtful, load_sends, open_send
from models.session_scope import scope_at
from models.slot import (
    QueueTimedOut,
    SlotBusy,
    SlotGranted,
    SlotRequest,
    drop_ticket,
    release_slot,
    take_slot,
)


def open_call(
    session: WriteSession,
    place: CallPlace,
    owner: Owner,
    tools: ToolCache,
    heard: Mapping[str, JSON] | None = None,
) -> OpenCall | SettledCall | SlotBusy:
    """Take a slot, provision the invocation, check that the call may still be made, and open a send.

    A call that is terminal, or that an earlier worker sent and whose answer cannot be fetched, comes back
    settled; nothing is sent for it again. One for which its connection has no slot free is not begun. `heard`
    is the cursor that the last heartbeat carried: {"send_id", "request_id", "last_event_id"}.

    Raises:
        NotThisCallError: the database does not want this call made.
    """
    opening = load_wanted(session, place, tools)
    now = look_around(session, opening.key_id, opening.binding, opening.snapshot, opening.scopes())
    slot = _take_slot(session, opening, owner, now.connection)
    if isinstance(slot, SlotBusy):
        return slot
    begun = _begin(session, opening, owner, now.connection)
    if isinstance(begun, SettledCall):
        return begun if slot is None else _without_slot(session, place, owner, begun)
    resume = _resumable(begun.sends, heard)
    if resume is None:
        verdict = _judge_earlier(begun.sends, opening) or _judge_slot(slot, opening)
        verdict = verdict or _judge_now(session, opening, now)
        verdict = _account(session, opening, now.key, begun, verdict)
        if verdict is not None:
            settled = _settle_here(session, opening, begun, verdict)
            return settled if slot is None else _without_slot(session, place, owner, settled)
    opened = _open(session, opening, owner, begun, now, resume)
    if isinstance(slot, SlotGranted):
        return replace(opened, holds_slot=True, wake=slot.wake)
    return opened


@dataclass(frozen=True)
class _Begun:
    """The invocation of a call whose lease this attempt has, and the sends of attempts before it."""

    invocation: ToolInvocation
    is_new: bool
    sends: Sequence[ToolSend] = ()


def _begin(
    session: WriteSession, opening: WantedCall, owner: Owner, connection: Connection | None
) -> _Begun | SettledCall:
    """Start the invocation, or take it over from another attempt; one that is terminal comes back settled."""
    place = opening.place
    price = 0 if connection is None else price_of(connection.tool_prices, opening.snapshot.upstream_name)
    request = CallRequest(place.round_id, opening.row.sent_arguments_digest or "", price)
    provisioned = provision_held(session, opening.binding, request, place.idempotency_key, owner.lease_token)
    invocation = provisioned.invocation
    if provisioned.created:
        _tell_started(session, opening, invocation)
        return _Begun(invocation, is_new=True)
    if not take_over(session, invocation.id, owner.lease_token):
        return as_settled(lock_invocation(session, invocation.id))
    invocation = lock_invocation(session, invocation.id)
    return _Begun(invocation, is_new=False, sends=load_sends(session, invocation.id))


def _open(
    session: WriteSession,
    opening: WantedCall,
    owner: Owner,
    begun: _Begun,
    now: Surroundings,
    resume: "_Resumable | None",
) -> OpenCall:
    """Open a send, or go on with the one whose answer is to be fetched; the caller adds the slot."""
    connection, invocation = now.connection, begun.invocation
    # The answer to a send that left already is fetched under that send: fetching is not sending.
    if resume is not None:
        send = resume.send
    else:
        send = open_send(session, invocation, len(begun.sends) + 1, owner.worker)
    if begun.is_new:
        report_drift(session, opening.drifting(invocation.id), now.tool, connection)
    scope = _session_scope(connection, opening)
    return OpenCall(
        place=opening.place,
        owner=owner,
        invocation_id=invocation.id,
        send_id=send.id,
        send_number=send.number,
        key_id=opening.key_id,
        binding_id=opening.binding.id,
        tool_call_id=opening.row.call_id,
        snapshot=opening.snapshot,
        arguments=json.loads(opening.sent_arguments),
        target=None if connection is None else frozen_target(connection, opening.snapshot),
        session_scope=scope,
        session=now.sessions.get(scope),
        resume=None if resume is None else resume.point,
        arguments_digest=opening.row.sent_arguments_digest,
        guardrails=guardrails_after(session, opening.row, opening.guarded()),
    )


def _tell_started(session: WriteSession, opening: WantedCall, invocation: ToolInvocation) -> None:
    begin_call(session, opening.place.round_id, opening.place.position, opening.place.stage, invocation.id)
    data: dict[str, JSON] = {
        "position": opening.place.position,
        "tool_call_id": opening.row.call_id,
        "tool": opening.snapshot.exposed_name,
        "stage": opening.place.stage,
        "invocation_id": invocation.id,
    }
    append_events(session, opening.place.round_id, [NewEvent("call_started", data)])


@dataclass(frozen=True)
class _Resumable:
    """A send that left, and where its answer can be fetched."""

    send: ToolSend
    point: ResumePoint


def _resumable(sends: Sequence[ToolSend], heard: Mapping[str, JSON] | None) -> _Resumable | None:
    """Return where the answer to the last send can be fetched, if it left and nothing is known of its end."""
    last = sends[-1] if sends else None
    if last is None or last.sent_at is None or last.outcome is not None:
        return None
    # The heartbeat may know a later event than the database, which is told less often.
    cursor = heard if heard is not None and heard.get("send_id") == last.id else last.cursor
    if cursor is None:
        return None
    return _Resumable(last, ResumePoint(cursor["request_id"], cursor["last_event_id"]))


def _judge_earlier(sends: Sequence[ToolSend], opening: WantedCall) -> CallOutcome | None:
    """Say what the sends so far forbid: an unsafe call that may have run is never sent again."""
    tool = opening.snapshot.exposed_name
    doubtful = any(send.may_have_run for send in sends)
    if doubtful and opening.snapshot.idempotency is IdempotencyClass.UNSAFE:
        return unknown_outcome(tool, "worker_lost")
    if len(sends) < MAX_SENDS:
        return None
    return unknown_outcome(tool, "repeats_used_up") if doubtful else _never_reached(tool)


def _never_reached(tool: str) -> CallOutcome:
    error = call_error(
        ErrorCode.UPSTREAM_UNAVAILABLE,
        {"tool": tool, "outcome": "not_sent"},
        Classification.TRANSPORT,
        retryable=True,
    )
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _judge_now(session: Session, opening: WantedCall, now: Surroundings) -> CallOutcome | None:
    """Decide once more, over rows as they are now: what was taken away stops calls not yet sent."""
    if opening.row.cancel_requested_at is not None:
        return canceled_outcome(opening.snapshot.exposed_name, was_sent=False)
    error = judge_again(session, opening.snapshot, now)
    if error is None:
        return None
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _account(
    session: WriteSession,
    opening: WantedCall,
    key: ApiKey | None,
    begun: _Begun,
    verdict: CallOutcome | None,
) -> CallOutcome | None:
    """Take the call from its key's account, once for all its attempts; a refused one counts as a request."""
    if not begun.is_new or key is None:
        return verdict
    if verdict is not None:
        count_refused(session, key, 1)
        return verdict
    error = take_from_quota(session, key, begun.invocation, opening.snapshot.exposed_name)
    if error is None:
        return None
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _take_slot(
    session: WriteSession, opening: WantedCall, owner: Owner, connection: Connection | None
) -> SlotGranted | SlotBusy | QueueTimedOut | None:
    """Take a slot of the connection, where it has a limit and the call is not over already."""
    if connection is None or connection.max_concurrency is None:
        return None
    place = opening.place
    if opening.row.cancel_requested_at is not None:
        # It is only to be settled; nobody is to wait behind its ticket.
        drop_ticket(session, place.idempotency_key)
        return None
    begun = None
    if opening.row.invocation_id is not None:
        begun = find_invocation(session, opening.binding.id, place.idempotency_key)
    if begun is not None and begun.status is not InvocationStatus.RUNNING:
        return None
    wanted = SlotRequest(
        connection_id=connection.id,
        cap=connection.max_concurrency,
        queue_timeout_s=connection.queue_timeout_s,
        call_key=place.idempotency_key,
        workflow_id=owner.workflow_id,
        position=place.position,
        lease_token=owner.lease_token,
        lease_s=owner.slot_lease_s,
        # Its server may still work on what an earlier worker sent; to find out takes no further slot.
        must=begun is not None and bool(load_doubtful(session, [begun.id])),
    )
    return take_slot(session, wanted)


def _judge_slot(slot: object, opening: WantedCall) -> CallOutcome | None:
    if not isinstance(slot, QueueTimedOut):
        return None
    details: dict[str, JSON] = {
        "tool": opening.snapshot.exposed_name,
        "waited_s": round(slot.waited_s, 1),
        "outcome": "not_sent",
    }
    error = call_error(ErrorCode.BUSY, details, Classification.TRANSPORT, retryable=True)
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _without_slot(session: WriteSession, place: CallPlace, owner: Owner, settled: SettledCall) -> SettledCall:
    return replace(settled, wake=release_slot(session, place.idempotency_key, owner.lease_token))


def _settle_here(
    session: WriteSession, opening: WantedCall, begun: _Begun, outcome: CallOutcome
) -> SettledCall:
    """Settle a call that is not to be sent; a send that an earlier worker left open is closed."""
    invocation, sends = begun.invocation, begun.sends
    if sends and sends[-1].outcome is None:
        left = sends[-1].sent_at is not None
        close_send(session, sends[-1].id, SendOutcome.UNKNOWN if left else SendOutcome.NOT_SENT)
    outcome = truthful(session, opening.snapshot, invocation.id, outcome)
    # What is refused on its first attempt has had nothing taken for it.
    place = opening.settled_place(invocation, took_price=not begun.is_new)
    return settle_as(session, place, outcome)


def _session_scope(connection: Connection | None, opening: WantedCall) -> str:
    """Name what shares a session, never more than one key: the whole key, a conversation or a binding."""
    if connection is None:
        return opening.scope_owner.scope(SessionScope.KEY)
    scope = opening.scope_owner.scope(connection.session_scope)
    return scope_at(scope, opening.snapshot.server_url, connection.url)
