"""Chat completions: what is read of a request, and the form of an answer; everything else passes through."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from api.schemas.values import AnyJSON


class ChatBody(BaseModel):
    """A chat completion request in OpenAI's form; fields that are not named here pass through as they are.

    Source: the OpenAI API reference, Create chat completion.
    """

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: Annotated[str, Field(min_length=1, max_length=512, description="The neutral name of a model.")]
    messages: Annotated[list[AnyJSON], Field(min_length=1)]
    stream: StrictBool | None = None
    stream_options: dict[str, AnyJSON] | None = None
    tools: Annotated[
        list[AnyJSON] | None, Field(description="The caller's own tools; the key's visible ones are added.")
    ] = None
    tool_choice: AnyJSON = None
    functions: AnyJSON = None
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=0)] | None = None


class ChatChoiceBody(BaseModel):
    """One choice of an answer."""

    model_config = ConfigDict(extra="allow")

    message: dict[str, AnyJSON]


class ChatCompletionBody(BaseModel):
    """An answer as the provider gave it, under the neutral name of its model."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str
    choices: Annotated[list[ChatChoiceBody], Field(min_length=1)]
