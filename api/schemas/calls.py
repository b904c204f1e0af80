"""Tool calls as models give them, and rounds as callers see them."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from api.schemas.errors import CallErrorBody
from api.schemas.values import AnyJSON, CallId, StoredId, Text, ToolName
from governance.canonical import is_object
from governance.codes import InvocationOutcome, InvocationStatus, RoundState
from governance.decision import Level
from governance.resolutions import OnUnknown, ResolutionKind


class FunctionBody(BaseModel):
    """Which function a model wants called; `arguments` is JSON text or an object, and may be missing."""

    name: ToolName
    arguments: AnyJSON = None


class ToolCallBody(BaseModel):
    """A tool call object exactly as the model gave it; further members are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "search-fetch_record", "arguments": '{"id": "42"}'},
                }
            ]
        }
    )

    id: CallId
    type: Literal["function"] = "function"
    function: FunctionBody


class AskedRoundBody(BaseModel):
    """Tool calls to run as one round; an assistant message with `tool_calls` is one.

    A message says `role`, and its other members are ignored; without one, an unknown member is refused.
    """

    tool_calls: Annotated[list[ToolCallBody], Field(min_length=1)]
    on_unknown: Annotated[
        OnUnknown,
        Field(
            description="What the round does when nobody knows whether a call ran: go on, or wait for an"
            " operator's resolution before its next stage."
        ),
    ] = OnUnknown.FAIL
    implementations: Annotated[
        dict[ToolName, ToolName],
        Field(
            max_length=256,
            description="The implementation to bind of a tool, by reference, where it is not the default.",
        ),
    ] = {}
    task_id: Annotated[
        StoredId | None,
        Field(description="A task of this key's program: the round runs on the bindings frozen with it."),
    ] = None
    conversation_id: Annotated[
        StoredId | None,
        Field(description="A conversation of this key: the round sees its program's tools and profiles."),
    ] = None
    profile_key: Annotated[
        Annotated[Text, StringConstraints(min_length=1, max_length=255)] | None,
        Field(description="The profile to see the tools through; by default the program's configured one."),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_member(cls, body: AnyJSON) -> AnyJSON:
        if is_object(body) and "role" not in body:
            unknown = sorted(name for name in body if name not in cls.model_fields)
            if unknown:
                raise PydanticCustomError(
                    "unknown_member", "has no member {member}", {"member": unknown[0][:100]}
                )
        return body


class StartRoundBody(AskedRoundBody):
    """A round to run now."""

    wait: Annotated[
        float | None,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Seconds to wait for the end before answering 202; the server has a limit.",
        ),
    ] = None


class StartGrantBody(BaseModel):
    """What starts one round through Temporal: a workflow of this type, id and input on this queue."""

    model_config = ConfigDict(extra="forbid")

    workflow_type: str
    workflow_id: str
    task_queue: str
    input: Annotated[
        dict[str, AnyJSON],
        Field(description="The workflow's one argument, with the grant in it; a change makes it useless."),
    ]
    expires_at: Annotated[datetime, Field(description="The round has to begin before this time.")]


class ToolMessageBody(BaseModel):
    """A tool message, ready to append to the conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["tool"]
    content: str
    tool_call_id: str


class ResultBody(BaseModel):
    """What became of one call of a round; `content` is null until it has ended."""

    tool_call_id: str
    role: Literal["tool"]
    content: str | None
    status: InvocationStatus | Literal["refused", "pending"]
    outcome: InvocationOutcome | None
    error: CallErrorBody | None
    is_error: bool
    invocation_id: str | None
    resolution: ResolutionKind | None = Field(
        None, description="What an operator said later of an unknown outcome."
    )
    stage: int | None
    tool: str
    started_at: datetime | None
    finished_at: datetime | None


class RoundBody(BaseModel):
    """A round; results stand in the model's order, `messages` is null until the round has ended."""

    round_id: str
    state: RoundState
    state_reason: str | None
    has_unknown: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    results: list[ResultBody]
    messages: list[ToolMessageBody] | None


class AcceptedBody(BaseModel):
    """The round goes on; look again at the Location."""

    round_id: str
    state: RoundState


class FunctionTool(BaseModel):
    """A function as chat completion providers take it."""

    name: str
    description: str
    parameters: dict[str, AnyJSON]


class ToolBody(BaseModel):
    """A tool in function format."""

    type: Literal["function"]
    function: FunctionTool


class HiddenToolBody(BaseModel):
    """A tool that the request may not use, and which level of the filter removed it."""

    name: str
    level: Level
    reason: str


class ToolListBody(BaseModel):
    """The tools that the request may use, in the order of their names."""

    tools: list[ToolBody]
    hidden: list[HiddenToolBody] | None = Field(None, description="With explain=1 only.")
