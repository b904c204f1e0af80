"""Field types that several bodies and parameters share."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError


def _without_nul(text: str) -> str:
    # PostgreSQL's text cannot hold NUL; refused here, it is a client's typo and not our failure.
    if "\x00" in text:
        raise ValueError("the character NUL is not allowed")
    return text


Text = Annotated[str, AfterValidator(_without_nul)]
"""Text that every database can hold."""

ShortText = Annotated[Text, StringConstraints(min_length=1, max_length=100)]
"""A name that a person gives."""

CallId = Annotated[Text, StringConstraints(min_length=1, max_length=512)]
"""The id that a model gave its call."""

ToolName = Annotated[Text, StringConstraints(min_length=1, max_length=512)]
"""The name of a tool as a model wrote it."""

AnyJSON = Annotated[Any, Field(description="Any JSON value.")]
"""A JSON value that is passed on as it is."""

IdempotencyKey = Annotated[
    Text,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=255, pattern=r"^[\x21-\x7e ]+$"),
]
"""A caller's own name for a request; printable ASCII, scoped to the key."""


StoredId = Annotated[str, AfterValidator(lambda text: str(UUID(text)))]
"""The id of something stored, in a body."""

UNKNOWN_ID = "unknown_id"
"""The type of the fault of a path that names nothing: answered 404 and not 400."""


def _public_id(text: str) -> str:
    # Ids are UUIDs; anything else names nothing, and must not reach the database's typed column.
    try:
        return str(UUID(text))
    except ValueError as error:
        raise PydanticCustomError(UNKNOWN_ID, "no such id") from error


PublicId = Annotated[str, AfterValidator(_public_id)]
"""The id of something stored, in a path."""
