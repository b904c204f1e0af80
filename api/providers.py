"""Providers as the control plane edits and shows them; each function is one transaction."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from activities.chat_http.client import check_chat_endpoint
from activities.chat_http.errors import NotReached
from activities.chat_http.types import ChatEndpoint
from api.changes import record_change
from api.errors import APIProblem, malformed, not_found
from api.etags import check_if_match, etag_of
from api.pages import page_of
from api.schemas.providers import CreateProviderBody, ModelSettings, ProviderFields, ProviderSettings
from governance.canonical import JSON, digest
from governance.codes import ErrorCode
from models.base import new_id, utc_now
from models.database import ReadSession, WriteSession
from models.provider import (
    PRICE_UNITS,
    ModelAlias,
    Provider,
    alias_values,
    credential_purpose,
    find_provider,
    load_aliases,
)
from models.vault import Vault

SETTINGS = (
    "base_url",
    "network",
    "enabled",
    "credential_header",
    "output_limit_parameter",
    "reports_stream_usage",
    "answer_timeout_s",
    "idle_timeout_s",
)
"""What an operator sets as it is; the credential and the models are stored in other forms."""

PRICES = ("input_price", "cached_input_price", "output_price")


@dataclass(frozen=True)
class _Edit:
    """The settings of a body, and the models by neutral name where it names them."""

    values: dict[str, JSON]
    models: dict[str, dict[str, JSON]] | None


def create_provider(
    session: WriteSession, vault: Vault, body: CreateProviderBody, request_id: str
) -> dict[str, JSON]:
    """Insert a provider with its models.

    Raises:
        APIProblem: invalid_request for an address that may not be dialled, conflict for a name taken.
    """
    provider = Provider(id=new_id(), slug=body.slug, base_url=body.base_url)
    if find_provider(session, body.slug) is not None:
        raise _taken("provider", body.slug)
    edit = _edit_of(vault, provider.id, body)
    _apply(provider, edit.values)
    session.add(provider)
    try:
        session.flush()
    except IntegrityError as error:
        raise _taken("provider", body.slug) from error
    _check_address(provider)
    _replace_models(session, provider.id, edit.models or {})
    shown = _show(session, provider)
    record_change(session, request_id, "create_provider", provider=provider.id, settings=_audited(shown))
    return shown


def edit_provider(
    session: WriteSession,
    vault: Vault,
    slug: str,
    body: ProviderSettings,
    if_match: str | None,
    request_id: str,
) -> dict[str, JSON]:
    """Change a provider's settings, and the whole mapping of its models where the body holds one."""
    provider = load_provider(session, slug, for_update=True)
    before = _show(session, provider)
    check_if_match(if_match, before["etag"], "provider")
    edit = _edit_of(vault, provider.id, body)
    if _apply(provider, edit.values):
        provider.updated_at = utc_now()
    _check_address(provider)
    session.flush()
    if edit.models is not None:
        _replace_models(session, provider.id, edit.models)
    shown = _show(session, provider)
    record_change(
        session,
        request_id,
        "edit_provider",
        provider=provider.id,
        before=_audited(before),
        after=_audited(shown),
        credential_changed="sealed_credential" in edit.values,
    )
    return shown


def delete_provider(
    session: WriteSession, slug: str, if_match: str | None, request_id: str
) -> dict[str, JSON]:
    """Delete a provider with its credential and its models."""
    provider = load_provider(session, slug, for_update=True)
    shown = _show(session, provider)
    check_if_match(if_match, shown["etag"], "provider")
    session.delete(provider)
    record_change(session, request_id, "delete_provider", provider=provider.id, settings=_audited(shown))
    return {"id": provider.id, "models": list(shown["model_aliases"])}


def load_provider(session: Session, slug: str, *, for_update: bool = False) -> Provider:
    """Return a provider by slug, locked against other edits if asked; raises not_found."""
    provider = None if "\x00" in slug else find_provider(session, slug)
    if provider is None:
        raise not_found("provider", slug[:100])
    if for_update:
        session.refresh(provider, with_for_update=True)
    return provider


def read_provider(session: ReadSession, slug: str) -> dict[str, JSON]:
    """Return a provider as the control plane shows it."""
    return _show(session, load_provider(session, slug))


def list_providers(session: ReadSession, limit: int, cursor: str | None) -> dict[str, JSON]:
    """Return a page of providers by slug."""
    query = select(Provider).order_by(Provider.slug).limit(limit + 1)
    if cursor is not None:
        if "\x00" in cursor:
            raise malformed("cursor is the next_cursor of an earlier page")
        query = query.where(Provider.slug > cursor)
    rows = session.scalars(query).all()
    aliases = load_aliases(session, [row.id for row in rows])
    return page_of(rows, limit, lambda row: _shown(row, aliases[row.id]), lambda row: row.slug)


def _edit_of(vault: Vault, provider_id: str, body: ProviderFields) -> _Edit:
    """Read what a body sets; null and absent leave a field alone, but for the credential and its header."""
    given = {name: getattr(body, name) for name in body.model_fields_set}
    values = {name: given[name] for name in SETTINGS if given.get(name) is not None}
    if "credential_header" in given:
        values["credential_header"] = given["credential_header"]
    if "credential" in given:
        values["sealed_credential"] = None
        if body.credential is not None:
            secret = body.credential.get_secret_value()
            if not secret.isascii() or not secret.isprintable() or secret != secret.strip():
                raise malformed("credential: printable ASCII characters, without blanks around them")
            values["sealed_credential"] = vault.seal(secret.encode(), credential_purpose(provider_id))
    models = body.model_aliases
    return _Edit(values, None if models is None else {name: _stored(one) for name, one in models.items()})


def _apply(provider: Provider, values: Mapping[str, JSON]) -> bool:
    changed = [name for name, value in values.items() if getattr(provider, name, None) != value]
    for name in changed:
        setattr(provider, name, values[name])
    return bool(changed)


def _check_address(provider: Provider) -> None:
    """Refuse what would never be dialled; which addresses a name has is looked at when it is."""
    header = provider.credential_header
    headers = {} if header is None else {header: "x"}
    try:
        check_chat_endpoint(ChatEndpoint(provider.base_url, provider.network.value, headers))
    except NotReached as refused:
        raise malformed(refused.message.rstrip("."), status=422) from refused


def _stored(model: ModelSettings) -> dict[str, JSON]:
    values: dict[str, JSON] = model.model_dump()
    for name in PRICES:
        if values[name] is not None:
            values[name] = int(Decimal(values[name]) * PRICE_UNITS)
    return values


def _replace_models(session: WriteSession, provider_id: str, models: Mapping[str, dict[str, JSON]]) -> None:
    kept = {alias.name: alias for alias in load_aliases(session, [provider_id])[provider_id]}
    new = sorted(set(models) - set(kept))
    taken = session.scalar(select(ModelAlias.name).where(ModelAlias.name.in_(new)).limit(1))
    if taken is not None:
        raise _taken("model", taken)
    for name, alias in kept.items():
        if name not in models:
            session.delete(alias)
        else:
            for column, value in models[name].items():
                setattr(alias, column, value)
    session.add_all(ModelAlias(name=name, provider_id=provider_id, **models[name]) for name in new)
    try:
        session.flush()
    except IntegrityError as error:
        # Another process took a name between our look and our insert.
        raise _taken("model", new[0] if new else "") from error


def _taken(what: str, name: str) -> APIProblem:
    return APIProblem(ErrorCode.CONFLICT, {"what": what, "name": name})


def _show(session: Session, provider: Provider) -> dict[str, JSON]:
    return _shown(provider, load_aliases(session, [provider.id])[provider.id])


def _shown(provider: Provider, aliases: list[ModelAlias]) -> dict[str, JSON]:
    settings: dict[str, JSON] = {name: getattr(provider, name) for name in SETTINGS}
    settings["model_aliases"] = {alias.name: _shown_model(alias) for alias in aliases}
    sealed = provider.sealed_credential
    return {
        "id": provider.id,
        "slug": provider.slug,
        **settings,
        "has_credential": sealed is not None,
        "created_at": provider.created_at.isoformat(),
        "updated_at": provider.updated_at.isoformat(),
        "etag": etag_of({**settings, "credential": None if sealed is None else digest(sealed)}),
    }


def _shown_model(alias: ModelAlias) -> dict[str, JSON]:
    shown: dict[str, JSON] = dict(alias_values(alias))
    for name in PRICES:
        if shown[name] is not None:
            shown[name] = _money(shown[name])
    return shown


def _money(units: int) -> str:
    """Write a price as operators write it, without zeros that say nothing."""
    whole, part = divmod(units, PRICE_UNITS)
    return f"{whole}.{part:06}".rstrip("0").rstrip(".")


def _audited(shown: Mapping[str, JSON]) -> dict[str, JSON]:
    names = ("slug", *SETTINGS, "has_credential", "model_aliases")
    return {name: shown[name] for name in names}
