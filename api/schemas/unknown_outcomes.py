"""Unknown outcomes as operators see and resolve them, and what a reconciliation repaired."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.schemas.values import AnyJSON, Text
from governance.codes import InvocationStatus, SendOutcome
from governance.resolutions import ResolutionKind


class SendBody(BaseModel):
    """One physical send: when its first byte could leave, and what is known of its end."""

    number: int
    worker: str
    sent_at: datetime | None
    answered_at: datetime | None
    outcome: SendOutcome | None


class ResolutionBody(BaseModel):
    """What an operator said of an unknown outcome; `retry_key` is the idempotency key of a retry."""

    kind: ResolutionKind
    by: str
    at: datetime
    note: str | None
    result_digest: str | None
    retry_key: str | None


class UnknownOutcomeBody(BaseModel):
    """A call that was sent and whose effect nobody knows; `resolution` is null until somebody says."""

    invocation_id: str
    round_id: str
    key_id: str
    position: int | None
    tool_call_id: str | None
    tool: str
    status: InvocationStatus
    reason: str | None
    idempotency_key: str | None
    attempt_no: int
    started_at: datetime
    finished_at: datetime | None
    sends: list[SendBody]
    resolution: ResolutionBody | None


class UnknownOutcomePage(BaseModel):
    """Unknown outcomes, newest first."""

    items: list[UnknownOutcomeBody]
    next_cursor: str | None


class ResolveBody(BaseModel):
    """What became of the call: `succeeded` with its result, `failed`, or `retry` to make it once more."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "resolution": "succeeded",
                    "result": {"content": [{"type": "text", "text": "order 42 was placed"}]},
                    "note": "seen in the shop's own list",
                }
            ]
        },
    )

    resolution: ResolutionKind
    result: Annotated[AnyJSON, Field(description="The tool's result; only with `succeeded`.")] = None
    note: Annotated[Text, StringConstraints(max_length=1000)] | None = None


class ResolvedBody(UnknownOutcomeBody):
    """The outcome as it stands now; `told` is false where the engine was away and is told later."""

    told: bool


class ReconcileBody(BaseModel):
    """What was repaired, by count; null while the reconciliation goes on."""

    state: Literal["finished", "running"]
    started: int | None = None
    finalized: int | None = None
    woken: int | None = None
    canceled: int | None = None
    retried: int | None = None
    settled: int | None = None
    unreachable: int | None = None
    failed: int | None = None


class CanceledCallBody(BaseModel):
    """A call that was told to stop; its status as last read."""

    round_id: str
    position: int
    tool_call_id: str
    status: InvocationStatus | Literal["refused", "pending"]
