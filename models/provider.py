"""Providers of chat completions: where they are, with which credential, and the models they serve.

A model has a neutral name, by which callers ask for it, and the provider's own; callers never see the latter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, EnumByValue, PublicId, new_id, utc_now
from models.connection import Network

PRICE_UNITS: Final = 1_000_000
"""Prices are stored as whole numbers, in millionths of the currency for a million tokens."""


class OutputLimitParameter(StrEnum):
    """How a provider is told how long an answer may be."""

    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    MAX_TOKENS = "max_tokens"


class Provider(Base):
    """An OpenAI-compatible endpoint for chat completions."""

    __tablename__ = "providers"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    slug: Mapped[str] = mapped_column(String(64), unique=True)
    base_url: Mapped[str] = mapped_column(String(2048))
    network: Mapped[Network] = mapped_column(EnumByValue(Network), default=Network.PUBLIC)
    enabled: Mapped[bool] = mapped_column(default=True)
    sealed_credential: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Sealed for the purpose `credential_purpose`; None where the provider asks for none."""
    credential_header: Mapped[str | None] = mapped_column(String(64))
    """Carries the credential as it is; None means `Authorization: Bearer`."""
    output_limit_parameter: Mapped[OutputLimitParameter] = mapped_column(
        EnumByValue(OutputLimitParameter), default=OutputLimitParameter.MAX_COMPLETION_TOKENS
    )
    reports_stream_usage: Mapped[bool] = mapped_column(default=True)
    """Whether it takes `stream_options`, by which a stream is made to end with its usage."""
    answer_timeout_s: Mapped[float] = mapped_column(default=600.0)
    idle_timeout_s: Mapped[float] = mapped_column(default=120.0)
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy reads it from the class.


class ModelAlias(Base):
    """A model of a provider, under the neutral name that callers use."""

    __tablename__ = "model_aliases"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    provider_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("providers.id", ondelete="CASCADE"), index=True
    )
    upstream_model: Mapped[str] = mapped_column(String(256))
    supports_tools: Mapped[bool] = mapped_column(default=True)
    max_tools: Mapped[int | None]
    """Most tools that a request may carry, the caller's own included."""
    max_output_tokens: Mapped[int | None]
    input_price: Mapped[int | None] = mapped_column(BigInteger)
    cached_input_price: Mapped[int | None] = mapped_column(BigInteger)
    output_price: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


@dataclass(frozen=True)
class TokenPrices:
    """What tokens cost, in millionths of the currency for a million of them; None where nobody said."""

    input: int | None
    cached_input: int | None
    output: int | None

    def cost(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int | None:
        """Return the cost of an answer in billionths of the currency, rounded up; None without prices.

        `cached_tokens` are part of `prompt_tokens`; without a price of their own they cost as much as others.
        """
        if self.input is None or self.output is None:
            return None
        cached = min(cached_tokens, prompt_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        parts = (
            (prompt_tokens - cached) * self.input + cached * cached_price + completion_tokens * self.output
        )
        # Millionths for a million tokens make 1e-12 of the currency for each unit; shown are billionths.
        return -(-parts // 1000)


@dataclass(frozen=True)
class ProviderTarget:
    """What dialling a provider takes; holds the credential sealed."""

    id: str
    slug: str
    base_url: str
    network: Network
    sealed_credential: bytes | None = field(repr=False)
    credential_header: str | None
    output_limit_parameter: OutputLimitParameter
    reports_stream_usage: bool
    answer_timeout_s: float
    idle_timeout_s: float
    version: int


@dataclass(frozen=True)
class ChatModel:
    """A model that callers may ask for and all that asking takes; a value that outlives the transaction."""

    name: str
    upstream_model: str
    supports_tools: bool
    max_tools: int | None
    max_output_tokens: int | None
    prices: TokenPrices
    provider: ProviderTarget


def credential_purpose(provider_id: str) -> str:
    """Return what a provider's credential is sealed for, so that it opens for no other row."""
    return f"provider:{provider_id}:credential"


def find_provider(session: Session, slug: str) -> Provider | None:
    """Return the provider of a slug, or None."""
    return session.scalar(select(Provider).where(Provider.slug == slug))


def load_aliases(session: Session, provider_ids: list[str]) -> dict[str, list[ModelAlias]]:
    """Return the models of providers by provider, each list by neutral name."""
    found: dict[str, list[ModelAlias]] = {provider_id: [] for provider_id in provider_ids}
    query = select(ModelAlias).where(ModelAlias.provider_id.in_(provider_ids)).order_by(ModelAlias.name)
    for alias in session.scalars(query):
        found[alias.provider_id].append(alias)
    return found


def find_model(session: Session, name: str) -> ChatModel | None:
    """Return the model of a neutral name; None for an unknown one and for those of a disabled provider."""
    row = session.execute(
        select(ModelAlias, Provider)
        .join(Provider, Provider.id == ModelAlias.provider_id)
        .where(ModelAlias.name == name, Provider.enabled)
    ).one_or_none()
    return None if row is None else _chat_model(row[0], row[1])


def load_model_names(session: Session) -> list[tuple[str, str, datetime]]:
    """Return the neutral name, provider and time of making of every model that can be asked, by name."""
    rows = session.execute(
        select(ModelAlias.name, Provider.slug, ModelAlias.created_at)
        .join(Provider, Provider.id == ModelAlias.provider_id)
        .where(Provider.enabled)
        .order_by(ModelAlias.name)
    ).all()
    return [(name, slug, made_at) for name, slug, made_at in rows]


def alias_values(alias: ModelAlias) -> Mapping[str, object]:
    """Return what an operator set of a model, by column name; the neutral name left out."""
    return {name: getattr(alias, name) for name in ALIAS_SETTINGS}


ALIAS_SETTINGS: Final = (
    "upstream_model",
    "supports_tools",
    "max_tools",
    "max_output_tokens",
    "input_price",
    "cached_input_price",
    "output_price",
)
"""The columns of a model that an operator sets."""


def _chat_model(alias: ModelAlias, provider: Provider) -> ChatModel:
    return ChatModel(
        name=alias.name,
        upstream_model=alias.upstream_model,
        supports_tools=alias.supports_tools,
        max_tools=alias.max_tools,
        max_output_tokens=alias.max_output_tokens,
        prices=TokenPrices(alias.input_price, alias.cached_input_price, alias.output_price),
        provider=ProviderTarget(
            id=provider.id,
            slug=provider.slug,
            base_url=provider.base_url,
            network=provider.network,
            sealed_credential=provider.sealed_credential,
            credential_header=provider.credential_header,
            output_limit_parameter=provider.output_limit_parameter,
            reports_stream_usage=provider.reports_stream_usage,
            answer_timeout_s=provider.answer_timeout_s,
            idle_timeout_s=provider.idle_timeout_s,
            version=provider.version,
        ),
    )
