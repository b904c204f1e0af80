"""Freeze a round: fix which tools it may use, admit or refuse each of its calls, and plan the rest.

One transaction, idempotent by the round: a second freeze returns the plan of the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import bindparam, exists, select
from sqlalchemy.orm import Session
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.call_verdicts import (
    AdmittedCall,
    AskedCall,
    KnownTools,
    RefusedCall,
    audited_verdict,
    judge_calls,
    refusal_event,
)
from activities.guardrails import guard_bound
from activities.quota import meter_refused
from activities.start_grants import StartGate
from governance.canonical import JSON, canonical_bytes, digest_of
from governance.codes import TERMINAL_ROUND_STATES, RoundState
from governance.filters import InvalidFilter, RequestFilter, parse_request_filter
from governance.resolutions import OnUnknown
from governance.snapshots import ToolSnapshot, frozen_set_digest
from governance.tool_cache import ToolCache
from models.audit import append_audit
from models.base import new_id
from models.binding import BindingOwner, ToolBinding, insert_bindings, load_bindings_by_id
from models.catalog import CallerPlace, load_world
from models.conversation import Conversation
from models.database import Database, WriteSession
from models.guardrail import ACTIVE_REVISION, GuardState
from models.key import ApiKey
from models.payload import Payload, store_payload, store_payloads
from models.place import place_in
from models.round import (
    BoundCall,
    NewEvent,
    RequestedCall,
    RequestedRound,
    Round,
    RoundCall,
    RoundStart,
    begin_round,
    bind_calls,
    find_round_by_key,
    insert_round,
    load_round_calls,
)
from models.round_place import PlaceRefused, RoundPlace, live_task, settle_place
from models.task import load_task_world
from models.task_ending import begin_task
from models.tool import FrozenSet, insert_frozen_set

ROUND_ABANDONED = "RoundAbandoned"
"""Failure type: the round got a 503 and must never start."""

ROUND_ENDED = "RoundEnded"
"""Failure type: the round ended before this workflow could freeze it, and an end is for good."""

ROUND_MISMATCH = "RoundMismatch"
"""Failure type: the workflow was started with another body than the stored round has."""

ROUND_UNKNOWN = "RoundUnknown"
"""Failure type: the round or its key does not exist, or its input is malformed."""


def _no_calls() -> list["CallToFreeze"]:
    return []


@dataclass(frozen=True)
class CallToFreeze:
    """A call given in the workflow's input, its arguments as the model gave them."""

    id: str
    name: str
    arguments: Any = "{}"


@dataclass(frozen=True)
class FreezeRound:
    """Which round to freeze; `calls` only where the round is not stored yet."""

    workflow_id: str
    key_id: str
    round_key: str
    round_id: str
    body_digest: str
    calls: list[CallToFreeze] = field(default_factory=_no_calls)
    include_clients: list[str] | None = None
    include_tools: list[str] | None = None
    task_id: str | None = None
    conversation_id: str | None = None
    implementations: dict[str, str] = field(default_factory=dict[str, str])
    on_unknown: str = "fail"
    profile_key: str | None = None
    grant: str = ""


@dataclass(frozen=True)
class PlannedCall:
    """An admitted call, as much of it as ordering and timing need."""

    position: int
    tool: str
    server: str
    parallel_safe: bool
    timeout_s: float


@dataclass(frozen=True)
class FrozenRound:
    """The plan of a round: its admitted calls in the model's order, and how many were refused."""

    round_id: str
    frozen_set_digest: str
    tool_count: int
    call_count: int
    refused: int
    calls: list[PlannedCall]
    guarded: bool = False
    """Whether guardrails have to judge some of the calls before any is made."""


class RoundFreezer:
    """Holds what freezing needs."""

    def __init__(self, database: Database, tools: ToolCache, gate: StartGate | None = None) -> None:
        """Use a database and a cache of parsed tools; `gate` where rounds need a start grant."""
        self._database = database
        self._tools = tools
        self._gate = gate

    @activity.defn(name="freeze_round")
    async def freeze_round(self, request: FreezeRound) -> FrozenRound:
        """Freeze a round; idempotent by its workflow id."""
        # What the API stored was let in by the API; what carries its calls itself must show its grant.
        if self._gate is not None and not request.round_id:
            await self._gate.require(request.workflow_id, asdict(request), request.grant)
        return await self._database.write(freeze, request, self._tools)


def freeze(session: WriteSession, request: FreezeRound, tools: ToolCache) -> FrozenRound:
    """Do the work of `freeze_round` in one transaction.

    Raises:
        ApplicationError: of type RoundAbandoned, RoundEnded, RoundMismatch or RoundUnknown; none gets better
            by retrying.
    """
    try:
        return _freeze(session, request, tools)
    except PlaceRefused as refused:
        raise _refusal(ROUND_UNKNOWN, str(refused)) from refused


def _freeze(session: WriteSession, request: FreezeRound, tools: ToolCache) -> FrozenRound:
    row, key = _find_or_insert(session, request)
    if row.state is RoundState.ABANDONED:
        raise _refusal(ROUND_ABANDONED, f"Round {row.id!r} was abandoned before it started.")
    if request.body_digest and request.body_digest != row.body_digest:
        raise _refusal(ROUND_MISMATCH, f"Round {row.id!r} was asked for with another body.")
    if row.frozen_set_digest is not None:
        _go_on(session, row)
        return _stored_plan(session, row, tools)
    if row.state in TERMINAL_ROUND_STATES:
        raise _refusal(ROUND_ENDED, f"Round {row.id!r} ended as {row.state.value} before it was frozen.")
    # A key that was deleted since the round was asked for: its calls are refused like a disabled key's.
    deleted = ApiKey(id=row.key_id, name="", enabled=False, has_tool_config=False)
    return _freeze_now(session, row, key or deleted, tools)


def _go_on(session: WriteSession, row: Round) -> None:
    """Let a round run on that its caller has had repeated: it was frozen by its first workflow."""
    if row.state is RoundState.REQUESTED:
        row.state = RoundState.RUNNING
        session.flush()


def _refusal(kind: str, message: str) -> ApplicationError:
    # A caller's mistake is no fault of the worker, which would log it with a traceback.
    benign = ApplicationErrorCategory.BENIGN
    return ApplicationError(message, type=kind, non_retryable=True, category=benign)


_OF_WORKFLOW = (
    select(Round, ApiKey)
    .outerjoin(ApiKey, ApiKey.id == Round.key_id)
    .where(Round.workflow_id == bindparam("workflow"))
    .with_for_update(of=Round)
)


def _find_or_insert(session: WriteSession, request: FreezeRound) -> tuple[Round, ApiKey | None]:
    found = session.execute(_OF_WORKFLOW, {"workflow": request.workflow_id}).one_or_none()
    if found is not None:
        return found[0], found[1]
    if request.round_id:
        raise _refusal(ROUND_UNKNOWN, f"Round {request.round_id!r} is not stored.")
    if session.get(ApiKey, request.key_id) is None:
        raise _refusal(
            ROUND_UNKNOWN, f"Key {request.key_id!r} does not exist; use a key's id, not its secret."
        )
    other = find_round_by_key(session, request.key_id, request.round_key)
    if other is not None:
        message = (
            f"This round key is round {other.id!r}, whose workflow is {other.workflow_id!r}; ask for that."
        )
        raise _refusal(ROUND_MISMATCH, message)
    filters = {"include_clients": request.include_clients, "include_tools": request.include_tools}
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in request.calls]
    place: dict[str, JSON] = {
        "task_id": request.task_id,
        "conversation_id": request.conversation_id,
        "implementations": request.implementations,
    }
    if request.profile_key is not None:
        place["profile_key"] = request.profile_key
    conversation_id = settle_place(
        session,
        request.key_id,
        RoundPlace(request.task_id, request.conversation_id, request.profile_key, request.implementations),
    )
    insert_round(
        session,
        RequestedRound(
            workflow_id=request.workflow_id,
            key_id=request.key_id,
            round_key=request.round_key,
            body_digest=digest_of({"calls": calls, **filters, **place}),
            request_id=request.workflow_id[:64],
            request_filter=filters,
            calls=[
                RequestedCall(
                    call_id=call.id,
                    tool_name=call.name,
                    arguments_digest=store_payload(session, canonical_bytes({"arguments": call.arguments})),
                )
                for call in request.calls
            ],
            on_unknown=OnUnknown(request.on_unknown),
            task_id=request.task_id,
            conversation_id=conversation_id,
            implementations=request.implementations,
            profile_key=request.profile_key,
        ),
        new_id(),
    )
    row, key = session.execute(_OF_WORKFLOW, {"workflow": request.workflow_id}).one()
    return row, key


_ASKED = (
    # Asked for here: whether the set, which is large, is stored already, and the guardrails in force.
    select(
        RoundCall,
        Payload.content,
        exists().where(FrozenSet.digest == bindparam("frozen_set")),
        ACTIVE_REVISION.label("guardrails"),
    )
    .outerjoin(Payload, Payload.digest == RoundCall.arguments_digest)
    .where(RoundCall.round_id == bindparam("round"))
    .order_by(RoundCall.position)
)


def _freeze_now(session: WriteSession, row: Round, key: ApiKey, tools: ToolCache) -> FrozenRound:
    request = _request_filter(row)
    bindings: Mapping[str, ToolBinding] = {}
    if row.task_id is None:
        world = load_world(session, key, request, _place_of(session, row))
        visible = world.visible()
        members = {tool.exposed_name: tool.snapshot_digest for tool in visible}
        frozen_set = frozen_set_digest(members.items())
    else:
        task = live_task(session, row.key_id, row.task_id)
        begin_task(session, task.id)
        world, bindings = load_task_world(session, task, key, request)
        visible = world.visible()
        members, frozen_set = None, task.frozen_set_digest
    asked = session.execute(_ASKED, {"round": row.id, "frozen_set": frozen_set}).all()
    if members is not None and not (asked and asked[0][2]):
        insert_frozen_set(session, frozen_set, members)
    calls = [AskedCall(call, content) for call, content, _, _ in asked]
    verdicts = judge_calls(world, calls, KnownTools(session, tools, key))
    bound = [verdict for verdict in verdicts if isinstance(verdict, AdmittedCall)]
    turned = [verdict for verdict in verdicts if isinstance(verdict, RefusedCall)]
    _bind(session, row, bound, {name: binding.id for name, binding in bindings.items()})
    for verdict in turned:
        verdict.call.refusal = verdict.refused.error.to_json()
    session.flush()
    revision = asked[0][3] if asked else None
    pending = guard_bound(session, row, revision, [(verdict.call, verdict.tool) for verdict in bound])
    append_audit(session, *(audited_verdict(row, world, verdict, pending) for verdict in verdicts))
    meter_refused(session, key, [verdict.call for verdict in turned])
    started = {"tool_count": len(visible), "admitted": len(bound), "refused": len(turned)}
    begin_round(
        session,
        row.id,
        RoundStart(frozen_set, key.argument_rules),
        [NewEvent("round_started", started), *(refusal_event(verdict) for verdict in turned)],
    )
    loader = KnownTools(session, tools)
    planned = [
        _planned(verdict.call.position, loader.known(verdict.tool.snapshot_digest).snapshot)
        for verdict in bound
    ]
    return FrozenRound(row.id, frozen_set, len(visible), row.call_count, len(turned), planned, bool(pending))


def _planned(position: int, snapshot: ToolSnapshot) -> PlannedCall:
    return PlannedCall(
        position=position,
        tool=snapshot.exposed_name,
        server=snapshot.connection_name or snapshot.source_kind,
        parallel_safe=snapshot.parallel_safe,
        timeout_s=snapshot.timeout_s,
    )


def _request_filter(row: Round) -> RequestFilter:
    headers = row.request_filter
    request = parse_request_filter(headers.get("include_clients"), headers.get("include_tools"))
    if isinstance(request, InvalidFilter):
        raise _refusal(
            ROUND_UNKNOWN, f"The filter {request.header} holds {request.entry!r}: {request.reason}"
        )
    return request


def _place_of(session: Session, row: Round) -> CallerPlace:
    """Say where the caller of a round stands: with its conversation's program, or at the gateway."""
    conversation = None if row.conversation_id is None else session.get(Conversation, row.conversation_id)
    return place_in(session, conversation, row.profile_key, row.implementations)


def _bind(session: WriteSession, row: Round, bound: Sequence[AdmittedCall], ids: dict[str, str]) -> None:
    """Bind the calls that were admitted; `ids` are the bindings that a task has already."""
    wanted = {verdict.tool.exposed_name: verdict.tool for verdict in bound}
    missing = [tool for name, tool in wanted.items() if name not in ids]
    ids |= insert_bindings(session, BindingOwner(_version_of(session, row), round_id=row.id), missing)
    digests = store_payloads(session, [verdict.arguments for verdict in bound])
    bind_calls(
        session,
        row.id,
        [
            BoundCall(verdict.call.position, ids[verdict.tool.exposed_name], name)
            for verdict, name in zip(bound, digests, strict=True)
        ],
    )


def _version_of(session: Session, row: Round) -> str | None:
    conversation = None if row.conversation_id is None else session.get(Conversation, row.conversation_id)
    return None if conversation is None else conversation.program_version_id


def _stored_plan(session: WriteSession, row: Round, tools: ToolCache) -> FrozenRound:
    calls = load_round_calls(session, row.id)
    bindings = load_bindings_by_id(
        session, {call.binding_id for call in calls if call.binding_id is not None}
    )
    loader = KnownTools(session, tools)
    planned: list[PlannedCall] = []
    refused = 0
    for call in calls:
        if call.binding_id is None:
            refused += 1
            continue
        snapshot = loader.known(bindings[call.binding_id].snapshot_digest).snapshot
        planned.append(_planned(call.position, snapshot))
    frozen = row.frozen_set_digest or ""
    tool_count = session.scalar(select(FrozenSet.tool_count).where(FrozenSet.digest == frozen)) or 0
    guarded = any(call.guard_state == GuardState.PENDING for call in calls)
    return FrozenRound(row.id, frozen, tool_count, row.call_count, refused, planned, guarded)
