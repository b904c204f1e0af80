"""Argument rules on the control plane."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.values import AnyJSON


class PutArgumentRulesBody(BaseModel):
    """The whole list of rules of a key, a connection or a tool; an empty one removes them."""

    model_config = ConfigDict(extra="forbid")

    rules: Annotated[
        AnyJSON,
        Field(
            description="[{id, schema, tools?}]: a JSON Schema that arguments have to fit, and the tools"
            " that it holds for: of a key exposed names, `<connection>-*` or `*`, of a connection exact"
            " upstream names."
        ),
    ]


class ArgumentRuleBody(BaseModel):
    """One rule."""

    id: str
    schema_: dict[str, AnyJSON] = Field(alias="schema")
    tools: list[str] | None = None


class ArgumentRulesBody(BaseModel):
    """The rules as they are; `revision` counts their edits and stands in the audit trail."""

    rules: list[ArgumentRuleBody]
    revision: int
    etag: str
