"""Keys and their tool configuration on the control plane."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.values import AnyJSON, ShortText, Text
from governance.decision import RequestFilterMode


class CreateKeyBody(BaseModel):
    """A key to make."""

    model_config = ConfigDict(extra="forbid")

    name: ShortText
    request_filter: RequestFilterMode = RequestFilterMode.OVERRIDE
    may_explain: bool = False
    core_tools: Annotated[
        bool, Field(description="Whether it may use tools that belong to no connection, such as subagents.")
    ] = False


class EditKeyBody(BaseModel):
    """What to change of a key; a field that is absent stays as it is."""

    model_config = ConfigDict(extra="forbid")

    name: ShortText | None = None
    enabled: bool | None = None
    request_filter: RequestFilterMode | None = None
    may_explain: bool | None = None
    core_tools: bool | None = None


class RotateSecretBody(BaseModel):
    """How long the secrets before the new one stay valid, in seconds."""

    model_config = ConfigDict(extra="forbid")

    overlap_s: Annotated[int, Field(ge=0, le=90 * 24 * 3600)] = 0


class SecretBody(BaseModel):
    """A secret without its text."""

    id: str
    hint: str
    created_at: datetime
    expires_at: datetime | None


class KeyBody(BaseModel):
    """A key: a sub-account with one or more secrets."""

    id: str
    name: str
    enabled: bool
    request_filter: RequestFilterMode
    may_explain: bool
    core_tools: bool
    has_tool_config: bool
    secrets: list[SecretBody]
    created_at: datetime
    updated_at: datetime
    etag: str


class NewSecretBody(KeyBody):
    """A key with the text of its new secret, which is never shown again."""

    secret: str


class KeyPage(BaseModel):
    """Keys, newest first."""

    items: list[KeyBody]
    next_cursor: str | None


class ToolConfigEntry(BaseModel):
    """What a key may use of one connection: exact upstream names, `["*"]` for all, `[]` for none."""

    model_config = ConfigDict(extra="forbid")

    client: Annotated[Text, Field(min_length=1, max_length=32)]
    tools_to_execute: Annotated[
        AnyJSON, Field(description='Exact upstream names, ["*"] for all, [] or null for none.')
    ]


class PutToolConfigBody(BaseModel):
    """A key's whole tool configuration; connections that it leaves out are blocked."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "mcp_configs": [
                        {"client": "knowledge_base", "tools_to_execute": ["search", "get_article"]},
                        {"client": "ticketing", "tools_to_execute": ["*"]},
                    ]
                }
            ]
        },
    )

    mcp_configs: Annotated[list[ToolConfigEntry], Field(max_length=1000)]


class ShownToolConfigEntry(BaseModel):
    """An entry of a tool configuration as stored."""

    client: str
    tools_to_execute: list[str]


class UnmatchedTool(BaseModel):
    """A configured name that no live tool of the connection has."""

    client: str
    tool: str


class ToolConfigBody(BaseModel):
    """A key's tool configuration; `mcp_configs` is null where the key has none."""

    mcp_configs: list[ShownToolConfigEntry] | None
    unmatched: list[UnmatchedTool]
    etag: str
