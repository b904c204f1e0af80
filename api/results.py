"""What became of a round, read from the database: result rows, and messages ready to append."""

import json
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from governance.admission import call_error
from governance.canonical import JSON, is_object
from governance.codes import (
    TERMINAL_ROUND_STATES,
    ErrorCode,
    InvocationOutcome,
    InvocationStatus,
    RoundState,
)
from governance.content import cut_content, error_content, message_content
from governance.failures import CallError
from governance.messages import Language, message_for
from governance.resolutions import ResolutionKind
from models.invocation import ToolInvocation
from models.payload import Payload, load_payload
from models.round import Round, RoundCall

REFUSED = "refused"
"""Status of a call that was not admitted."""

PENDING = "pending"
"""Status of a call whose turn has not come."""


@dataclass(frozen=True)
class CallResult:
    """What became of one call; `content` is the text of its tool message, None until the call has ended."""

    tool_call_id: str
    tool: str
    status: str
    content: str | None = None
    outcome: str | None = None
    error: CallError | None = None
    is_error: bool = False
    invocation_id: str | None = None
    resolution: ResolutionKind | None = None
    stage: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None

    def to_json(self, language: Language) -> dict[str, JSON]:
        """Return the result row, its error's sentence in the caller's language."""
        return {
            "tool_call_id": self.tool_call_id,
            "role": "tool",
            "content": self.content,
            "status": self.status,
            "outcome": self.outcome,
            "error": None if self.error is None else _localised(self.error, language),
            "is_error": self.is_error,
            "invocation_id": self.invocation_id,
            "resolution": None if self.resolution is None else self.resolution.value,
            "stage": self.stage,
            "tool": self.tool,
            "started_at": _time(self.started_at),
            "finished_at": _time(self.finished_at),
        }

    def message(self) -> dict[str, JSON]:
        """Return the tool message of an ended call."""
        return {"role": "tool", "content": self.content, "tool_call_id": self.tool_call_id}


@dataclass(frozen=True)
class RoundAnswer:
    """What became of a round so far, with its calls in the model's order."""

    round_id: str
    workflow_id: str
    round_key: str
    key_id: str
    state: RoundState
    state_reason: str | None
    has_unknown: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    results: tuple[CallResult, ...]

    @property
    def has_ended(self) -> bool:
        """Whether nothing about the round will change any more."""
        return self.state in TERMINAL_ROUND_STATES

    def to_json(self, language: Language) -> dict[str, JSON]:
        """Return the round as the data plane shows it; messages only once it has ended."""
        return {
            "round_id": self.round_id,
            "state": self.state.value,
            "state_reason": self.state_reason,
            "has_unknown": self.has_unknown,
            "created_at": _time(self.created_at),
            "started_at": _time(self.started_at),
            "finished_at": _time(self.finished_at),
            "results": [result.to_json(language) for result in self.results],
            "messages": [result.message() for result in self.results] if self.has_ended else None,
        }


@dataclass(frozen=True)
class _Made:
    """A call of a round, its invocation if it was made, and the result that the tool gave."""

    call: RoundCall
    invocation: ToolInvocation | None
    content: bytes | None


_MADE = (
    select(RoundCall, ToolInvocation, Payload.content)
    .outerjoin(ToolInvocation, ToolInvocation.id == RoundCall.invocation_id)
    .outerjoin(Payload, Payload.digest == ToolInvocation.response_digest)
    .where(RoundCall.round_id == bindparam("round"))
    .order_by(RoundCall.position)
)


def load_answer(session: Session, row: Round, inline_max_bytes: int) -> RoundAnswer:
    """Read what became of a round; contents longer than `inline_max_bytes` are cut, with a link."""
    made = session.execute(_MADE, {"round": row.id}).all()
    results = tuple(
        _result_of(session, row, _Made(call, invocation, content), inline_max_bytes)
        for call, invocation, content in made
    )
    return RoundAnswer(
        round_id=row.id,
        workflow_id=row.workflow_id,
        round_key=row.round_key,
        key_id=row.key_id,
        state=row.state,
        state_reason=row.state_reason,
        has_unknown=row.has_unknown,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        results=results,
    )


def result_link(invocation_id: str) -> str:
    """Return the path of the whole result of an invocation."""
    return f"/v1/invocations/{invocation_id}/result"


def _result_of(session: Session, row: Round, made: _Made, inline_max_bytes: int) -> CallResult:
    call, invocation = made.call, made.invocation
    if call.refusal is not None:
        refusal = CallError.from_json(call.refusal)
        return CallResult(call.call_id, call.tool_name, REFUSED, error_content(refusal), error=refusal)
    if invocation is None:
        return _never_started(row, call)
    error = None if invocation.error is None else CallError.from_json(invocation.error)
    settled = invocation.status is not InvocationStatus.RUNNING
    return CallResult(
        tool_call_id=call.call_id,
        tool=call.tool_name,
        status=invocation.status.value,
        content=_content(session, made, invocation, error, inline_max_bytes) if settled else None,
        outcome=invocation.outcome.value if settled else None,
        error=error,
        is_error=invocation.is_error,
        invocation_id=invocation.id,
        resolution=invocation.resolution_kind,
        stage=call.stage,
        started_at=invocation.started_at,
        finished_at=invocation.finished_at,
    )


def _never_started(row: Round, call: RoundCall) -> CallResult:
    """Describe a call without an invocation: its turn has not come, or its round ended before it did."""
    if row.state not in TERMINAL_ROUND_STATES:
        return CallResult(call.call_id, call.tool_name, PENDING, stage=call.stage)
    details: dict[str, JSON] = {"tool": call.tool_name, "outcome": "not_sent"}
    if row.state is RoundState.CANCELED:
        error = call_error(ErrorCode.CANCELED, details)
        status = InvocationStatus.CANCELED
    elif row.state is RoundState.ABANDONED:
        error = call_error(ErrorCode.ROUND_ABANDONED, {"round_id": row.id})
        status = InvocationStatus.FAILED
    else:
        error = call_error(ErrorCode.NOT_SENT, details, retryable=True)
        status = InvocationStatus.FAILED
    return CallResult(
        tool_call_id=call.call_id,
        tool=call.tool_name,
        status=status.value,
        content=error_content(error),
        outcome=InvocationOutcome.KNOWN.value,
        error=error,
        stage=call.stage,
    )


def _content(
    session: Session,
    made: _Made,
    invocation: ToolInvocation,
    error: CallError | None,
    inline_max_bytes: int,
) -> str:
    stored = made.content
    # What an operator found out later is what the model is told.
    resolved: str | None = (invocation.resolution or {}).get("result_digest")
    if invocation.response_digest is None and resolved is not None:
        stored = load_payload(session, resolved)
    if stored is not None:
        text = message_content(json.loads(stored))
        return cut_content(text, inline_max_bytes, result_link(invocation.id))
    # A settled call has a response or an error; a payload that was purged leaves neither.
    shown = error or call_error(ErrorCode.INTERNAL_ERROR, {"tool": made.call.tool_name})
    return error_content(shown)


def _localised(error: CallError, language: Language) -> dict[str, JSON]:
    payload = error.to_json()
    if language is not Language.EN and is_object(payload["details"]):
        payload["message"] = message_for(error.code, payload["details"], language)
    return payload


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
