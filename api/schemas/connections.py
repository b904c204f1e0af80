"""Connections and policy overlays on the control plane."""

from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from api.ca_bundles import LARGEST_BUNDLE, checked_ca_bundle
from api.schemas.values import AnyJSON, Text
from governance.codes import IdempotencyClass
from governance.connection_auth import AuthKind, headers_problem
from models.connection import (
    ConnectionHealth,
    Elicitation,
    EventStream,
    Network,
    OnSessionLoss,
    SessionScope,
    Transport,
)


def _http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError("not a URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL begins with http:// or https:// and names a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL holds no user or password; credentials are configured apart from it")
    if parts.fragment or text.endswith("#"):
        raise ValueError("a URL has no fragment")
    if port == 0 or any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("a URL has a port above 0 and no blanks")
    return text


ConnectionURL = Annotated[Text, StringConstraints(min_length=1, max_length=2048), AfterValidator(_http_url)]
"""The address of an MCP server."""

Version = Annotated[str, StringConstraints(pattern=r"^(auto|\d{4}-\d{2}-\d{2})$")]
"""`auto`, or an MCP protocol version such as `2025-11-25`."""

RefusalStatus = Annotated[int, Field(ge=400, le=599)]
"""An HTTP status with which the server proves that a call did not run."""

ToolTimeout = Annotated[float, Field(gt=0, le=24 * 3600, allow_inf_nan=False)]
"""How long a tool of the connection may take, in seconds."""


QueueTimeout = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
"""How long a call may wait for its turn, in seconds."""

PricedTool = Annotated[Text, StringConstraints(min_length=1, max_length=512)]
"""The upstream name of a tool, or `*`."""

CABundle = Annotated[Text, StringConstraints(max_length=LARGEST_BUNDLE), AfterValidator(checked_ca_bundle)]
"""Certificates in PEM form."""

Price = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{1,6}(\.[0-9]{1,9})?$"),
    Field(description="For one call, in the currency of the installation, as decimal text."),
]
"""An exact amount of money."""


class NoAuth(BaseModel):
    """The connection sends no credential."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["none"]


class SharedAuth(BaseModel):
    """The connection sends the operator's headers with each request, whichever key calls."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["shared"]
    headers: Annotated[
        dict[str, SecretStr],
        Field(description="By name, such as `Authorization`. Stored sealed, and never shown."),
    ]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if problem := headers_problem(self.revealed()):
            raise ValueError(f"headers: {problem}")
        return self

    def revealed(self) -> dict[str, str]:
        """Return the headers with their values."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}


class ShownAuth(BaseModel):
    """How a connection proves itself; of headers only the names, and a fingerprint that tells of a change."""

    kind: AuthKind
    headers: list[str] | None = None
    fingerprint: str | None = None


class ConnectionFields(BaseModel):
    """What may be set of a connection, beside its address."""

    model_config = ConfigDict(extra="forbid")

    network: Network | None = None
    tools_to_execute: Annotated[
        AnyJSON, Field(description='Exact upstream names, ["*"] for all, [] or null for none (the default).')
    ] = None
    open_to_all_keys: bool | None = None
    session_scope: SessionScope | None = None
    on_session_loss: OnSessionLoss | None = None
    event_stream: EventStream | None = None
    protocol_version: Version | None = None
    transport: Annotated[
        Transport | None,
        Field(description="`http_sse` is the transport of 2024-11-05; it is never tried unasked."),
    ] = None
    elicitation: Annotated[
        Elicitation | None,
        Field(
            description="What a server is told that asks for a person's input in a call: `none` (the default)"
            " declares no support, `decline` declares it and declines each request."
        ),
    ] = None
    tool_timeout_s: ToolTimeout | None = None
    idempotency: IdempotencyClass | None = None
    refusal_statuses: Annotated[list[RefusalStatus], Field(max_length=50)] | None = None
    max_concurrency: Annotated[
        int | None,
        Field(ge=1, le=100_000, description="Calls at once, of all workers together; null for any."),
    ] = None
    queue_timeout_s: QueueTimeout | None = None
    tool_prices: Annotated[
        dict[PricedTool, Price] | None,
        Field(max_length=10_000, description="By upstream name, `*` for all others; null for no prices."),
    ] = None
    auth: Annotated[NoAuth | SharedAuth, Field(discriminator="kind")] | None = None
    ca_bundle: Annotated[
        CABundle | None,
        Field(
            description="Certificates in PEM form: one of these authorities must certify the server, and"
            " those of the system count for nothing; null (the default) for the system's."
        ),
    ] = None
    audit_arguments: bool | None = Field(
        default=None, description="Whether the audit trail keeps the arguments of calls, as they are sent."
    )
    enabled: bool | None = None


class ConnectionSettings(ConnectionFields):
    """What to change of a connection; absent fields keep their value."""

    url: ConnectionURL | None = None


class CreateConnectionBody(ConnectionFields):
    """A connection to make; absent fields get their default."""

    name: Annotated[Text, Field(max_length=100)]
    url: ConnectionURL


class FailureBody(BaseModel):
    """The last failed contact and how far it came."""

    stage: str
    code: str
    message: str
    at: str | None = None


class DroppedToolBody(BaseModel):
    """A tool that the server lists and that cannot be used."""

    name: str
    reason: str


class SyncBody(BaseModel):
    """What the verification that a request started came to."""

    state: Literal["finished", "running", "not_started"]
    ok: bool | None = None
    tools: int | None = None
    added: list[str] = []
    changed: list[str] = []
    retired: list[str] = []
    failure: FailureBody | None = None


class ConnectionBody(BaseModel):
    """A connection, its settings and what the last contact showed."""

    id: str
    name: str
    url: str
    network: Network
    enabled: bool
    tools_to_execute: list[str] | None
    open_to_all_keys: bool
    session_scope: SessionScope
    on_session_loss: OnSessionLoss
    event_stream: EventStream
    protocol_version: str
    transport: Transport
    elicitation: Elicitation
    tool_timeout_s: float
    idempotency: IdempotencyClass
    refusal_statuses: list[int]
    max_concurrency: int | None
    queue_timeout_s: float
    tool_prices: dict[str, str] | None
    auth: ShownAuth
    ca_bundle: str | None
    audit_arguments: bool
    health: ConnectionHealth
    last_failure: FailureBody | None
    dropped_tools: list[DroppedToolBody]
    tool_count: int
    synced_at: datetime | None
    created_at: datetime
    updated_at: datetime
    etag: str
    sync: SyncBody | None = None


class ConnectionPage(BaseModel):
    """Connections by name."""

    items: list[ConnectionBody]
    next_cursor: str | None


class DeletedConnectionBody(BaseModel):
    """What went with a connection."""

    id: str
    retired_tools: list[str]


class ConnectionToolBody(BaseModel):
    """A live tool of a connection, as rounds would freeze it now."""

    name: str
    upstream_name: str
    description: str | None
    input_schema: AnyJSON
    parallel_safe: bool
    policy_provenance: list[dict[str, AnyJSON]]
    timeout_s: float
    idempotency: IdempotencyClass
    on_connection_list: bool


class ConnectionToolsBody(BaseModel):
    """The live tools of a connection, and those it lists that cannot be used."""

    tools: list[ConnectionToolBody]
    dropped_tools: list[DroppedToolBody]


class OverlayBody(BaseModel):
    """A change of execution policy for every tool for which all of `match` holds."""

    match: dict[str, str]
    execution_policy: dict[str, AnyJSON]


class PutOverlaysBody(BaseModel):
    """The whole ordered list of overlays; later ones win."""

    model_config = ConfigDict(extra="forbid")

    overlays: Annotated[list[AnyJSON], Field(max_length=1000)]


class OverlaysBody(BaseModel):
    """The overlays in order, and the tools whose policy the change moved."""

    overlays: list[OverlayBody]
    changed_tools: list[str]
    etag: str
