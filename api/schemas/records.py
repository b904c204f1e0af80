"""Rounds of all keys and explanations on the control plane."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from api.schemas.calls import RoundBody
from api.schemas.programs import BindingBody
from governance.codes import RoundState
from governance.decision import Level


class RoundSummary(BaseModel):
    """A round without its results."""

    round_id: str
    key_id: str
    workflow_id: str
    state: RoundState
    state_reason: str | None
    has_unknown: bool
    call_count: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class RoundPage(BaseModel):
    """Rounds, newest first."""

    items: list[RoundSummary]
    next_cursor: str | None


class OperatorRoundBody(RoundBody):
    """A round of any key, and where the engine's own page of it is."""

    key_id: str
    workflow_id: str
    engine_url: str | None
    task_id: str | None
    conversation_id: str | None
    profile_key: str | None
    bindings: list[BindingBody]
    """Those of the tools that were called, with the sessions that they use."""


class ExplainedTool(BaseModel):
    """A live tool and the decision for it."""

    tool: str
    client: str | None
    upstream_name: str
    decision: Literal["allowed", "needs_approval", "denied"]
    level: Level | None
    code: str | None
    reason: str | None


class ExplanationBody(BaseModel):
    """What a key may use in a request with these headers, tool by tool."""

    key: str
    tools: list[ExplainedTool]
