"""API keys: the sub-accounts that call tools, their secrets and their tool configuration.

A key is the stable identity; a secret is what a caller sends. Secrets are shown once and stored as
SHA-256, which is enough because they carry 256 random bits.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ForeignKey, String, bindparam, delete, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from governance.decision import KeyRules, RequestFilterMode
from models.base import Base, Configuration, EnumByValue, PublicId, new_id, utc_now
from models.connection import Connection
from models.database import WriteSession

SECRET_BYTES = 32
"""Random bytes in a secret."""

SHOWN_CHARACTERS = 8
"""Characters of a secret, after its prefix, that stay readable, so that secrets can be told apart."""


class ApiKey(Base):
    """A sub-account: who calls, what it may call, and how its filters combine."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    enabled: Mapped[bool] = mapped_column(default=True)
    request_filter: Mapped[RequestFilterMode] = mapped_column(
        EnumByValue(RequestFilterMode), default=RequestFilterMode.OVERRIDE
    )
    has_tool_config: Mapped[bool] = mapped_column(default=False)
    may_explain: Mapped[bool] = mapped_column(default=False)
    core_tools: Mapped[bool] = mapped_column(default=False)
    """Whether the key may use tools that belong to no connection: built-in, runtime and program tools."""
    has_quota: Mapped[bool] = mapped_column(default=False)
    """Whether `models.quota` has an account for it; without one, nothing is asked."""
    argument_rules: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """See `models.argument_rule`."""
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy reads it from the class.


class KeySecret(Base):
    """One secret of a key; several may be valid while a caller rotates."""

    __tablename__ = "key_secrets"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    key_id: Mapped[str] = mapped_column(PublicId, ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    hint: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime | None]


class KeyToolGrant(Base):
    """What a key's configuration grants on one connection, by its id: a re-used name grants nothing."""

    __tablename__ = "key_tool_grants"

    key_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("api_keys.id", ondelete="CASCADE"), primary_key=True
    )
    connection_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("connections.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    position: Mapped[int]
    tools_to_execute: Mapped[list[str]] = mapped_column(Configuration)


@dataclass(frozen=True)
class NewSecret:
    """A secret as shown once to the operator, and its row."""

    text: str
    secret_id: str


@dataclass(frozen=True)
class ToolGrant:
    """One entry of a key's tool configuration, by connection name."""

    client: str
    tools_to_execute: tuple[str, ...]


def hash_secret(secret: str) -> str:
    """Return the form in which a secret is stored and looked up."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def add_secret(
    session: WriteSession, key_id: str, prefix: str, expires_at: datetime | None = None
) -> NewSecret:
    """Make and store a secret of a key, and return its text, which cannot be read again."""
    text = prefix + secrets.token_urlsafe(SECRET_BYTES)
    row = KeySecret(
        id=new_id(),
        key_id=key_id,
        secret_hash=hash_secret(text),
        hint=text[: len(prefix) + SHOWN_CHARACTERS] + "…",
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return NewSecret(text=text, secret_id=row.id)


_BY_SECRET = (
    select(ApiKey, KeySecret.secret_hash, KeySecret.expires_at)
    .join(KeySecret, KeySecret.key_id == ApiKey.id)
    .where(KeySecret.secret_hash == bindparam("hash"))
)
_GRANTS = (
    select(Connection.name, KeyToolGrant.tools_to_execute)
    .join(Connection, Connection.id == KeyToolGrant.connection_id)
    .where(KeyToolGrant.key_id == bindparam("key"))
    .order_by(KeyToolGrant.position)
)


def find_by_secret(session: Session, secret: str, now: datetime) -> ApiKey | None:
    """Return the key of a secret, enabled or not; None for an unknown or expired secret."""
    wanted = hash_secret(secret)
    row = session.execute(_BY_SECRET, {"hash": wanted}).one_or_none()
    if row is None:
        return None
    key, stored, expires_at = row
    if not hmac.compare_digest(stored, wanted) or (expires_at is not None and expires_at <= now):
        return None
    return key


def load_key_rules(session: Session, key: ApiKey) -> KeyRules:
    """Return what `decide` needs to know of a key, by connection name."""
    configs: dict[str, tuple[str, ...]] | None = None
    if key.has_tool_config:
        configs = {grant.client: grant.tools_to_execute for grant in load_tool_grants(session, key.id)}
    return KeyRules(
        enabled=key.enabled,
        mcp_configs=configs,
        request_filter=key.request_filter,
        core_tools=bool(key.core_tools),
        revision=key.version or 0,
    )


def load_tool_grants(session: Session, key_id: str) -> tuple[ToolGrant, ...]:
    """Return a key's tool configuration in the operator's order; empty also where there is none."""
    rows = session.execute(_GRANTS, {"key": key_id}).all()
    return tuple(ToolGrant(client=name, tools_to_execute=tuple(tools)) for name, tools in rows)


def replace_tool_grants(
    session: WriteSession, key: ApiKey, grants: tuple[tuple[str, tuple[str, ...]], ...] | None
) -> None:
    """Set a key's tool configuration, as (connection id, tools); None removes it, which widens access."""
    session.execute(delete(KeyToolGrant).where(KeyToolGrant.key_id == key.id))
    key.has_tool_config = grants is not None
    key.updated_at = utc_now()
    for position, (connection_id, tools) in enumerate(grants or ()):
        session.add(
            KeyToolGrant(
                key_id=key.id, connection_id=connection_id, position=position, tools_to_execute=list(tools)
            )
        )
    session.flush()


def expire_secrets(session: WriteSession, key_id: str, keep: str, at: datetime) -> int:
    """Let every other secret of a key end at `at`, and tell how many that were."""
    changed = session.scalars(
        update(KeySecret)
        .where(KeySecret.key_id == key_id, KeySecret.id != keep)
        .where(KeySecret.expires_at.is_(None) | (KeySecret.expires_at > at))
        .values(expires_at=at)
        .returning(KeySecret.id)
    ).all()
    return len(changed)
