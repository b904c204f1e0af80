"""Providers of chat completions on the control plane, and the list of models on the data plane."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints

from api.schemas.connections import ConnectionURL
from models.connection import Network
from models.provider import OutputLimitParameter

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
"""What a provider is called in paths."""

NeutralName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$")]
"""What callers call a model."""

UpstreamName = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,256}$")]
"""What a provider calls a model."""

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")]
"""A token, as names of headers are."""

Credential = Annotated[
    SecretStr, Field(min_length=1, max_length=4096, description="Stored sealed, and never shown.")
]
"""What a provider knows us by."""

Price = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{1,9}(\.[0-9]{1,6})?$"),
    Field(description="For a million tokens, in the currency of the installation, as decimal text."),
]
"""An exact amount of money."""

Seconds = Annotated[float, Field(gt=0, le=24 * 3600, allow_inf_nan=False)]


class ModelSettings(BaseModel):
    """A model of a provider, as operators set it."""

    model_config = ConfigDict(extra="forbid")

    upstream_model: UpstreamName
    supports_tools: bool = True
    max_tools: Annotated[int, Field(ge=0, le=100_000)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    input_price: Price | None = None
    cached_input_price: Price | None = None
    output_price: Price | None = None


Aliases = Annotated[
    dict[NeutralName, ModelSettings],
    Field(max_length=500, description="Models by neutral name: the whole mapping, also in an edit."),
]


class ProviderFields(BaseModel):
    """What may be set of a provider, beside its address."""

    model_config = ConfigDict(extra="forbid")

    network: Network | None = None
    enabled: bool | None = None
    credential: Annotated[Credential | None, Field(description="null removes it; absent keeps it.")] = None
    credential_header: Annotated[
        HeaderName | None,
        Field(description="Carries the credential as it is; null means `Authorization: Bearer`."),
    ] = None
    output_limit_parameter: OutputLimitParameter | None = None
    reports_stream_usage: bool | None = None
    answer_timeout_s: Seconds | None = None
    idle_timeout_s: Seconds | None = None
    model_aliases: Aliases | None = None


class ProviderSettings(ProviderFields):
    """What to change of a provider; absent fields keep their value."""

    base_url: ConnectionURL | None = None


class CreateProviderBody(ProviderFields):
    """A provider to make; absent fields get their default."""

    slug: Slug
    base_url: ConnectionURL


class ProviderBody(BaseModel):
    """A provider and its models; of the credential only whether there is one."""

    id: str
    slug: str
    base_url: str
    network: Network
    enabled: bool
    has_credential: bool
    credential_header: str | None
    output_limit_parameter: OutputLimitParameter
    reports_stream_usage: bool
    answer_timeout_s: float
    idle_timeout_s: float
    model_aliases: dict[str, ModelSettings]
    created_at: datetime
    updated_at: datetime
    etag: str


class ProviderPage(BaseModel):
    """Providers by slug."""

    items: list[ProviderBody]
    next_cursor: str | None


class DeletedProviderBody(BaseModel):
    """What went with a provider."""

    id: str
    models: list[str]


class ListedModel(BaseModel):
    """A model that may be asked for, in OpenAI's form."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelListBody(BaseModel):
    """The models that may be asked for, by name."""

    object: Literal["list"]
    data: list[ListedModel]
