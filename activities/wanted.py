"""Which call an attempt is to make, and whether the database wants it made at all."""

from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from activities.drift import DriftingCall
from activities.ledger import CallPlace, SettledPlace
from governance.codes import TERMINAL_ROUND_STATES, RoundState
from governance.guardrails import GuardedCall
from governance.snapshots import ToolSnapshot
from governance.tool_cache import ToolCache
from models.binding import BINDINGS, REFERENCE, BindingRef
from models.connection import SessionScope
from models.guardrail import GuardState
from models.invocation import ToolInvocation
from models.payload import Payload
from models.resolution import retry_key_of
from models.round import Round, RoundCall
from models.session_scope import ScopeOwner, marked_scope
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
class WantedCall:
    """A call that is to be made, as its rows stand while it is opened."""

    place: CallPlace
    row: RoundCall
    binding: BindingRef
    key_id: str
    round_state: RoundState
    conversation_id: str | None
    sent_arguments: bytes
    snapshot: ToolSnapshot

    def drifting(self, invocation_id: str) -> DriftingCall:
        """Return what telling of drift needs."""
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
        """Whose sessions the call may use."""
        return ScopeOwner(self.key_id, self.binding.id, self.conversation_id)

    def scopes(self) -> tuple[str, ...]:
        """Name every session that the call may turn out to use."""
        given = [self.scope_owner.scope(kind) for kind in SessionScope]
        return (*given, *(marked_scope(scope, self.snapshot.server_url) for scope in given))

    def guarded(self) -> GuardedCall:
        """Return what guardrails are told of the call."""
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
        """Return what settling the call needs."""
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


def load_wanted(session: Session, place: CallPlace, tools: ToolCache) -> WantedCall:
    """Load a call's rows and hold them, so that nobody else opens the call meanwhile.

    Raises:
        NotThisCallError: the database does not want this call made.
    """
    found = session.execute(_ADMITTED_CALL, {"round": place.round_id, "place": place.position}).one_or_none()
    if found is None:
        raise NotThisCallError(place, "the round has no such admitted call")
    row, key_id, state, conversation_id, content, *reference = found
    binding = BindingRef(*reference)
    digest = binding.snapshot_digest
    snapshot = tools.get(digest, lambda: load_snapshots(session, {digest})[digest]).snapshot
    wanted = WantedCall(place, row, binding, key_id, state, conversation_id, content, snapshot)
    _require_wanted(session, wanted)
    return wanted


def _require_wanted(session: Session, wanted: WantedCall) -> None:
    """Refuse a call that was not asked for: another activity id, or a round that has ended.

    A workflow that was reset, or started by hand, may ask for anything; only rows count. A retry is wanted
    where an operator's resolution names its very key.
    """
    place, row = wanted.place, wanted.row
    if row.guard_state == GuardState.PENDING:
        raise NotThisCallError(place, "its guardrails have not judged it")
    if row.invocation_id is None:
        if wanted.round_state in TERMINAL_ROUND_STATES:
            raise NotThisCallError(place, "the round has ended")
        return
    current = session.get_one(ToolInvocation, row.invocation_id)
    if place.idempotency_key not in (current.idempotency_key, retry_key_of(current)):
        known = session.scalar(
            select(ToolInvocation.id).where(
                ToolInvocation.tool_binding_id == wanted.binding.id,
                ToolInvocation.idempotency_key == place.idempotency_key,
            )
        )
        if known is None:
            raise NotThisCallError(place, f"it was made as {current.idempotency_key!r}")
