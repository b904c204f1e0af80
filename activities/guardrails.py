"""Guardrails around the calls of a round: before any of them is opened, and before an answer is settled.

Hooks may be asked again about the same call when a worker dies; what they answered first, once it is
written, stands. A call that waits for its guardrails can be opened by nobody, whoever starts the activity.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session
from temporalio import activity

from activities.guardrail_hooks import Checked, GuardrailHooks
from activities.ledger import CallOutcome, OpenCall
from activities.quota import meter_refused
from governance.admission import Refused, call_error, judge_arguments
from governance.canonical import JSON, canonical_bytes, is_object
from governance.codes import Classification, ErrorCode, InvocationStatus
from governance.failures import CallError
from governance.guardrails import GuardedCall, Guardrail, Stage, matching
from governance.tool_cache import KnownTool, ToolCache
from models.argument_rule import frozen_key_rules
from models.audit import AuditFact, AuditKind, append_audit
from models.binding import ToolBinding
from models.database import Database, ReadSession, WriteSession
from models.forgetting import forget_arguments, forget_payloads
from models.guardrail import GuardedPosition, GuardState, guard_calls, load_guardrails
from models.invocation import Settlement
from models.key import ApiKey
from models.payload import Payload, store_payload
from models.round import NewEvent, Round, RoundCall, append_events
from models.tool import CatalogTool, load_snapshots

AT_ONCE = 8
"""Calls of one round whose hooks run at the same time."""


@dataclass(frozen=True)
class GuardRound:
    """Which round's calls are to be judged."""

    round_id: str


def _no_positions() -> list[int]:
    return []


@dataclass(frozen=True)
class GuardedRound:
    """Which calls may not be made, by position."""

    refused: list[int] = field(default_factory=_no_positions)


@dataclass(frozen=True)
class _Pending:
    """A call that waits for its guardrails, and everything that judging it needs."""

    call: GuardedCall
    guardrails: tuple[Guardrail, ...]
    revision: int
    known: KnownTool
    arguments: bytes
    key_rules: Mapping[str, JSON] | None


@dataclass(frozen=True)
class _Judged:
    """What became of a call: the arguments that it sends, or why it may not be made."""

    pending: _Pending
    checked: Checked
    refusal: CallError | None


class Guardrails:
    """Holds what guardrails need."""

    def __init__(self, database: Database, tools: ToolCache, hooks: GuardrailHooks) -> None:
        """Use a database, a cache of parsed tools, and whoever runs the hooks."""
        self._database = database
        self._tools = tools
        self._hooks = hooks

    @activity.defn(name="guard_round")
    async def guard_round(self, request: GuardRound) -> GuardedRound:
        """Judge the calls of a round that wait for it; idempotent, since a call is judged once for good."""
        pending = await self._database.read(_load_pending, request.round_id, self._tools)
        turns = asyncio.Semaphore(AT_ONCE)

        async def judge(one: _Pending) -> _Judged:
            async with turns:
                return await self._judge(one)

        judged = await asyncio.gather(*map(judge, pending))
        return await self._database.write(_record, request.round_id, judged)

    async def _judge(self, pending: _Pending) -> _Judged:
        arguments = json.loads(pending.arguments)
        checked = await self._hooks.run(pending.guardrails, Stage.BEFORE, pending.call, arguments)
        if checked.blocked_by is not None:
            refusal = _blocked(pending.call, Stage.BEFORE, checked.blocked_by, checked.reason)
            return _Judged(pending, checked, refusal)
        if checked.redacted and (name := self._unfit(pending, checked)):
            refusal = _blocked(pending.call, Stage.BEFORE, name, "redacted_arguments_do_not_fit")
            return _Judged(pending, checked, refusal)
        return _Judged(pending, checked, None)

    def _unfit(self, pending: _Pending, checked: Checked) -> str | None:
        """Return the guardrail whose redacted arguments fit neither schema nor rules, None where they fit."""
        call, known = pending.call, pending.known
        of_key = self._tools.rules(frozen_key_rules(pending.key_rules, call.tool, call.connection))
        verdict = judge_arguments(call.tool, checked.value, lambda: known.schema, (known.rules, of_key))
        redactors = [note["guardrail"] for note in checked.notes if note["verdict"] == "redact"]
        return redactors[-1] if isinstance(verdict, Refused) else None

    async def judge_answer(self, call: OpenCall, outcome: CallOutcome) -> CallOutcome:
        """Let the guardrails after a call judge its answer: what they block or redact is stored nowhere."""
        value = _answer_of(outcome)
        if value is None:
            return outcome
        guarded = GuardedCall(
            key_id=call.key_id,
            connection=call.snapshot.connection_name,
            tool=call.snapshot.exposed_name,
            upstream_name=call.snapshot.upstream_name,
            round_id=call.place.round_id,
            position=call.place.position,
            tool_call_id=call.tool_call_id,
        )
        checked = await self._hooks.run(call.guardrails, Stage.AFTER, guarded, value)
        facts: dict[str, JSON] = {"guardrails": checked.notes} if checked.notes else {}
        if checked.blocked_by is not None:
            error = _blocked(guarded, Stage.AFTER, checked.blocked_by, checked.reason)
            settlement = Settlement(InvocationStatus.FAILED, error=error)
            return CallOutcome(settlement, outcome.send_outcome, facts=facts)
        outcome = replace(outcome, facts=facts)
        return _with_answer(outcome, checked.value) if checked.redacted else outcome


def guard_bound(
    session: WriteSession, row: Round, revision: int | None, bound: Iterable[tuple[RoundCall, CatalogTool]]
) -> frozenset[int]:
    """Put admitted calls under the guardrails in force; return the positions that have to be judged first.

    Without guardrails, `revision` None, nothing is done.
    """
    if revision is None:
        return frozenset()
    guardrails = load_guardrails(session, revision)
    under: list[GuardedPosition] = []
    for call, tool in bound:
        guarded = _guarded_call(row, call, tool.connection_name, tool.upstream_name)
        before, after = (matching(guardrails, stage, guarded) for stage in Stage)
        if before or after:
            under.append(GuardedPosition(call.position, pending=bool(before)))
    guard_calls(session, row.id, revision, under)
    return frozenset(one.position for one in under if one.pending)


def guardrails_after(session: Session, row: RoundCall, call: GuardedCall) -> tuple[Guardrail, ...]:
    """Return the guardrails that judge the answer of a call; none, and no statement, for most calls."""
    if row.guardrails_revision is None:
        return ()
    return matching(load_guardrails(session, row.guardrails_revision), Stage.AFTER, call)


def _guarded_call(row: Round, call: RoundCall, connection: str | None, upstream_name: str) -> GuardedCall:
    return GuardedCall(
        key_id=row.key_id,
        connection=connection,
        tool=call.tool_name,
        upstream_name=upstream_name,
        round_id=row.id,
        position=call.position,
        tool_call_id=call.call_id,
    )


_PENDING = (
    select(RoundCall, ToolBinding.snapshot_digest, Payload.content)
    .join(ToolBinding, ToolBinding.id == RoundCall.binding_id)
    .join(Payload, Payload.digest == RoundCall.sent_arguments_digest)
    .where(RoundCall.round_id == bindparam("round"), RoundCall.guard_state == GuardState.PENDING.value)
    .order_by(RoundCall.position)
)


def _load_pending(session: ReadSession, round_id: str, tools: ToolCache) -> list[_Pending]:
    row = session.get_one(Round, round_id)
    sets: dict[int, tuple[Guardrail, ...]] = {}
    pending: list[_Pending] = []
    for call, digest, content in session.execute(_PENDING, {"round": round_id}).all():
        known = tools.get(digest, partial(_snapshot, session, digest))
        revision = call.guardrails_revision or 0
        if revision not in sets:
            sets[revision] = load_guardrails(session, revision)
        snapshot = known.snapshot
        guarded = _guarded_call(row, call, snapshot.connection_name, snapshot.upstream_name)
        guardrails = matching(sets[revision], Stage.BEFORE, guarded)
        pending.append(_Pending(guarded, guardrails, revision, known, content, row.argument_rules))
    return pending


def _snapshot(session: Session, digest: str) -> bytes:
    return load_snapshots(session, {digest})[digest]


def _record(session: WriteSession, round_id: str, judged: Sequence[_Judged]) -> GuardedRound:
    """Write down what became of each call, where nobody has meanwhile, and tell which are refused."""
    held = session.scalars(
        select(RoundCall)
        .where(RoundCall.round_id == round_id)
        .order_by(RoundCall.position)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).all()
    by_position = {one.pending.call.position: one for one in judged}
    row = session.get_one(Round, round_id)
    refused: list[RoundCall] = []
    facts: list[AuditFact] = []
    for call in held:
        one = by_position.get(call.position)
        if one is None or call.guard_state != GuardState.PENDING:
            continue
        call.guard_state = GuardState.PASSED.value
        if one.refusal is not None:
            call.refusal, call.binding_id = one.refusal.to_json(), None
            refused.append(call)
            # What a guardrail lets nobody see is not left for readers of the database either.
            forget_arguments(session, [call])
        elif one.checked.redacted:
            _replace_arguments(session, call, one.checked.value)
        facts.append(_fact(row, call, one))
    session.flush()
    append_audit(session, *facts)
    if refused:
        _tell_refused(session, row, refused)
    guarded = [call.position for call in held if call.guardrails_revision is not None]
    return GuardedRound([call.position for call in held if call.refusal and call.position in guarded])


def _replace_arguments(session: WriteSession, call: RoundCall, arguments: JSON) -> None:
    """Let a call send other arguments, and forget those that it came with unless somebody else has them."""
    old = {call.arguments_digest, call.sent_arguments_digest} - {None}
    call.arguments_digest = store_payload(session, canonical_bytes({"arguments": arguments}))
    call.sent_arguments_digest = store_payload(session, canonical_bytes(arguments))
    session.flush()
    forget_payloads(session, filter(None, old))


def _fact(row: Round, call: RoundCall, judged: _Judged) -> AuditFact:
    refusal = judged.refusal
    data: dict[str, Any] = {
        "position": call.position,
        "level": "guardrail",
        "stage": Stage.BEFORE.value,
        "revision": judged.pending.revision,
        "guardrails": judged.checked.notes,
        "redacted": judged.checked.redacted,
    }
    if refusal is not None:
        data |= {"rule": refusal.details["guardrail"], "reason": refusal.details["reason"]}
    return AuditFact(
        AuditKind.CALL_GUARDED if refusal is None else AuditKind.CALL_REFUSED,
        actor=row.key_id,
        request_id=row.request_id,
        round_id=row.id,
        tool_name=call.tool_name,
        code=None if refusal is None else refusal.code.value,
        # Of what was refused there is no digest: a card number can be found by trying.
        arguments_digest=call.sent_arguments_digest if refusal is None else None,
        data=data,
    )


def _tell_refused(session: WriteSession, row: Round, calls: Sequence[RoundCall]) -> None:
    key = session.get(ApiKey, row.key_id)
    if key is not None:
        meter_refused(session, key, calls)
    events = [
        NewEvent(
            "call_refused",
            {
                "position": call.position,
                "tool_call_id": call.call_id,
                "tool": call.tool_name,
                "code": ErrorCode.GUARDRAIL_BLOCKED.value,
            },
        )
        for call in calls
    ]
    append_events(session, row.id, events)


def _blocked(call: GuardedCall, stage: Stage, guardrail: str, reason: str | None) -> CallError:
    details: dict[str, JSON] = {
        "tool": call.tool,
        "guardrail": guardrail,
        "stage": stage.value,
        "reason": reason or "blocked",
    }
    return call_error(ErrorCode.GUARDRAIL_BLOCKED, details, Classification.AUTHORIZATION)


def unguarded(call: OpenCall, outcome: CallOutcome) -> CallOutcome:
    """Block an answer that guardrails are meant for, on a worker that has none to ask."""
    if _answer_of(outcome) is None:
        return outcome
    details: dict[str, JSON] = {
        "tool": call.snapshot.exposed_name,
        "guardrail": call.guardrails[0].name,
        "stage": Stage.AFTER.value,
        "reason": "guardrails_unavailable",
    }
    error = call_error(ErrorCode.GUARDRAIL_BLOCKED, details, Classification.AUTHORIZATION)
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), outcome.send_outcome)


def _answer_of(outcome: CallOutcome) -> JSON:
    """Return what a server answered, as hooks are asked about it; None where it answered nothing."""
    if outcome.result is not None:
        return json.loads(outcome.result)
    error = outcome.settlement.error
    if error is None or not error.details.get("server_message"):
        return None
    return {"server_message": error.details["server_message"]}


def _with_answer(outcome: CallOutcome, value: JSON) -> CallOutcome:
    if outcome.result is not None:
        return replace(outcome, result=canonical_bytes(value))
    error = outcome.settlement.error
    if error is None or not is_object(value):
        raise ValueError("Only an error of the server's is redacted without a result.")
    details = {**error.details, "server_message": str(value.get("server_message", ""))}
    redacted = call_error(error.code, details, error.classification, retryable=error.retryable)
    return replace(outcome, settlement=replace(outcome.settlement, error=redacted))
