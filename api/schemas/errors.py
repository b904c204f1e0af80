"""The body of every refusal."""

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.values import AnyJSON
from governance.codes import Classification, ErrorCode


class ErrorFacts(BaseModel):
    """Why a request was refused or its call failed."""

    model_config = ConfigDict(extra="forbid")

    code: ErrorCode
    message: str = Field(description="A sentence in the language that Accept-Language asks for.")
    request_id: str
    retryable: bool = Field(description="Whether the same request may succeed later.")
    details: dict[str, AnyJSON] = Field(description="Every value that the message names.")


class ErrorBody(BaseModel):
    """The one form of refusal on every route."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorFacts


class CallErrorBody(BaseModel):
    """Why a call of a round has no good result."""

    classification: Classification
    code: ErrorCode
    message: str
    retryable: bool
    details: dict[str, AnyJSON]
