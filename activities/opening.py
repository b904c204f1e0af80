"""The first transaction of a tool call: provision it, judge earlier sends, decide again, open a send."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from activities.drift import (
    DriftingCall,
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
    SettledPlace,
    as_settled,
    canceled_outcome,
    settle_as,
    truthful,
    unknown_outcome,
)
from activities.quota import count_refused, take_from_quota
from activities.surroundings import Surroundings, judge_again, look_around
from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import (
    TERMINAL_ROUND_STATES,
    Classification,
    ErrorCode,
    IdempotencyClass,
    InvocationStatus,
    RoundState,
    SendOutcome,
)
from governance.guardrails import GuardedCall
from governance.quotas import price_of
from governance.snapshots import ToolSnapshot
from governance.tool_cache import ToolCache
from models.binding import BINDINGS, REFERENCE, BindingRef
from models.connection import Connection, SessionScope
from models.database import WriteSession
from models.guardrail import GuardState
from models.invocation import (
    CallRequest,
    Provisioned,
    Settlement,
    ToolInvocation,
    find_invocation,
    lock_invocation,
    provision_held,
    take_over,
)
from models.key import ApiKey
from models.payload import Payload
from models.resolution import retry_key_of
from models.round import NewEvent, Round, RoundCall, append_events, begin_call
from models.send import ToolSend, close_send, load_doubtful, load_sends, open_send
from models.session_scope import ScopeOwner, marked_scope, scope_at
from models.slot import (
    QueueTimedOut,
    SlotBusy,
    SlotGranted,
    SlotRequest,
    drop_ticket,
    release_slot,
    take_slot,
)
from models.tool import load_snapshots


class NotThisCallError(Exception):
    """Nothing in the database says that this call is to be made now, whoever started the activity."""

    def __init__(self, place: CallPlace, reason: str) -> None:
        """Name the place and why."""
        super().__init__(
            f"Call {place.position} of round {place.round_id!r} is not to be made as"
            f" {place.activity_id!r}: {reason}."
        )


@dataclass(frozen=True)
class _Opening:
    """The rows of one call while it is opened."""

    place: CallPlace
    row: RoundCall
    binding: BindingRef
    key_id: str
    round_state: RoundState
    conversation_id: str | None
    sent_arguments: bytes
    snapshot: ToolSnapshot

    def drifting(self, invocation_id: str) -> DriftingCall:
        return DriftingCall(
            round_id=self.place.round_id,
            position=self.place.position,
            tool_call_id=self.row.call_id,
            key_id=self.key_id,
            invocation_id=invocation_id,
            binding=self.binding,
            snapshot=self.snapshot,
        )

    @property
    def scope_owner(self) -> ScopeOwner:
        return ScopeOwner(self.key_id, self.binding.id, self.conversation_id)

    def scopes(self) -> tuple[str, ...]:
        """Name every session that the call may turn out to use."""
        given = [self.scope_owner.scope(kind) for kind in SessionScope]
        return (*given, *(marked_scope(scope, self.snapshot.server_url) for scope in given))

    def guarded(self) -> GuardedCall:
        return GuardedCall(
            key_id=self.key_id,
            connection=self.snapshot.connection_name,
            tool=self.snapshot.exposed_name,
            upstream_name=self.snapshot.upstream_name,
            round_id=self.place.round_id,
            position=self.place.position,
            tool_call_id=self.row.call_id,
        )

    def settled_place(self, invocation: ToolInvocation, *, took_price: bool) -> SettledPlace:
        return SettledPlace(
            invocation_id=invocation.id,
            round_id=self.place.round_id,
            position=self.place.position,
            stage=self.place.stage,
            tool_call_id=self.row.call_id,
            tool=self.snapshot.exposed_name,
            actor=self.key_id,
            took_price=took_price,
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
    opening = _load(session, place, tools)
    _require_wanted(session, opening)
    snapshot = opening.snapshot
    now = look_around(session, opening.key_id, opening.binding, snapshot, opening.scopes())
    connection = now.connection
    slot = _take_slot(session, opening, owner, connection)
    if isinstance(slot, SlotBusy):
        return slot
    arguments = json.loads(opening.sent_arguments)
    price = 0 if connection is None else price_of(connection.tool_prices, snapshot.upstream_name)
    request = CallRequest(place.round_id, opening.row.sent_arguments_digest or "", price)
    provisioned = provision_held(session, opening.binding, request, place.idempotency_key, owner.lease_token)
    invocation = provisioned.invocation
    sends: Sequence[ToolSend] = ()
    if provisioned.created:
        _tell_started(session, opening, invocation)
    elif take_over(session, invocation.id, owner.lease_token):
        invocation = lock_invocation(session, invocation.id)
        sends = load_sends(session, invocation.id)
    else:
        settled = as_settled(lock_invocation(session, invocation.id))
        return settled if slot is None else _without_slot(session, place, owner, settled)
    resume = _resumable(sends, heard)
    if resume is None:
        verdict = _judge_earlier(sends, opening) or _judge_slot(slot, opening)
        verdict = verdict or _judge_now(session, opening, now)
        verdict = _account(session, opening, now.key, provisioned, verdict)
        if verdict is not None:
            settled = _settle_here(session, opening, provisioned, sends, verdict)
            return settled if slot is None else _without_slot(session, place, owner, settled)
    # The answer to a send that left already is fetched under that send: fetching is not sending.
    send = resume.send if resume is not None else open_send(session, invocation, len(sends) + 1, owner.worker)
    if provisioned.created:
        report_drift(session, opening.drifting(invocation.id), now.tool, connection)
    scope = _session_scope(connection, opening)
    return OpenCall(
        place=place,
        owner=owner,
        invocation_id=invocation.id,
        send_id=send.id,
        send_number=send.number,
        key_id=opening.key_id,
        binding_id=opening.binding.id,
        tool_call_id=opening.row.call_id,
        snapshot=opening.snapshot,
        arguments=arguments,
        target=None if connection is None else frozen_target(connection, opening.snapshot),
        session_scope=scope,
        session=now.sessions.get(scope),
        resume=None if resume is None else resume.point,
        holds_slot=isinstance(slot, SlotGranted),
        wake=slot.wake if isinstance(slot, SlotGranted) else None,
        arguments_digest=opening.row.sent_arguments_digest,
        guardrails=guardrails_after(session, opening.row, opening.guarded()),
    )


_ADMITTED_CALL = (
    select(RoundCall, Round.key_id, Round.state, Round.conversation_id, Payload.content, *REFERENCE)
    .join(BINDINGS, BINDINGS.c.id == RoundCall.binding_id)
    .join(Round, Round.id == RoundCall.round_id)
    .join(Payload, Payload.digest == RoundCall.sent_arguments_digest)
    .where(RoundCall.round_id == bindparam("round"), RoundCall.position == bindparam("place"))
    # Two activities that want the same call take turns from here, and so do two calls of one binding, whose
    # invocations are numbered.
    .with_for_update(of=[RoundCall, BINDINGS])
)


def _load(session: Session, place: CallPlace, tools: ToolCache) -> _Opening:
    found = session.execute(_ADMITTED_CALL, {"round": place.round_id, "place": place.position}).one_or_none()
    if found is None:
        raise NotThisCallError(place, "the round has no such admitted call")
    row, key_id, state, conversation_id, content, *reference = found
    binding = BindingRef(*reference)
    digest = binding.snapshot_digest
    snapshot = tools.get(digest, lambda: load_snapshots(session, {digest})[digest]).snapshot
    return _Opening(place, row, binding, key_id, state, conversation_id, content, snapshot)


def _require_wanted(session: Session, opening: _Opening) -> None:
    """Refuse a call that was not asked for: another activity id, or a round that has ended.

    A workflow that was reset, or started by hand, may ask for anything; only rows count. A retry is wanted
    where an operator's resolution names its very key.
    """
    place, row = opening.place, opening.row
    if row.guard_state == GuardState.PENDING:
        raise NotThisCallError(place, "its guardrails have not judged it")
    if row.invocation_id is None:
        if opening.round_state in TERMINAL_ROUND_STATES:
            raise NotThisCallError(place, "the round has ended")
        return
    current = session.get_one(ToolInvocation, row.invocation_id)
    if place.idempotency_key not in (current.idempotency_key, retry_key_of(current)):
        known = session.scalar(
            select(ToolInvocation.id).where(
                ToolInvocation.tool_binding_id == opening.binding.id,
                ToolInvocation.idempotency_key == place.idempotency_key,
            )
        )
        if known is None:
            raise NotThisCallError(place, f"it was made as {current.idempotency_key!r}")


def _tell_started(session: WriteSession, opening: _Opening, invocation: ToolInvocation) -> None:
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


def _judge_earlier(sends: Sequence[ToolSend], opening: _Opening) -> CallOutcome | None:
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


def _judge_now(session: Session, opening: _Opening, now: Surroundings) -> CallOutcome | None:
    """Decide once more, over rows as they are now: what was taken away stops calls not yet sent."""
    if opening.row.cancel_requested_at is not None:
        return canceled_outcome(opening.snapshot.exposed_name, was_sent=False)
    error = judge_again(session, opening.snapshot, now)
    if error is None:
        return None
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _account(
    session: WriteSession,
    opening: _Opening,
    key: ApiKey | None,
    provisioned: Provisioned,
    verdict: CallOutcome | None,
) -> CallOutcome | None:
    """Take the call from its key's account, once for all its attempts; a refused one counts as a request."""
    if not provisioned.created or key is None:
        return verdict
    if verdict is not None:
        count_refused(session, key, 1)
        return verdict
    error = take_from_quota(session, key, provisioned.invocation, opening.snapshot.exposed_name)
    if error is None:
        return None
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _take_slot(
    session: WriteSession, opening: _Opening, owner: Owner, connection: Connection | None
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


def _judge_slot(slot: object, opening: _Opening) -> CallOutcome | None:
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
    session: WriteSession,
    opening: _Opening,
    provisioned: Provisioned,
    sends: Sequence[ToolSend],
    outcome: CallOutcome,
) -> SettledCall:
    """Settle a call that is not to be sent; a send that an earlier worker left open is closed."""
    invocation = provisioned.invocation
    if sends and sends[-1].outcome is None:
        left = sends[-1].sent_at is not None
        close_send(session, sends[-1].id, SendOutcome.UNKNOWN if left else SendOutcome.NOT_SENT)
    outcome = truthful(session, opening.snapshot, invocation.id, outcome)
    # What is refused on its first attempt has had nothing taken for it.
    place = opening.settled_place(invocation, took_price=not provisioned.created)
    return settle_as(session, place, outcome)


def _session_scope(connection: Connection | None, opening: _Opening) -> str:
    """Name what shares a session, never more than one key: the whole key, a conversation or a binding."""
    if connection is None:
        return opening.scope_owner.scope(SessionScope.KEY)
    scope = opening.scope_owner.scope(connection.session_scope)
    return scope_at(scope, opening.snapshot.server_url, connection.url)
