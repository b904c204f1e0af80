"""Execution runtimes: environments that bring tools of their own, registered by an operator."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ForeignKey, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from models.base import Base, Configuration, PublicId, new_id, utc_now
from models.credential import RUNTIME_PREFIX, fresh_secret
from models.database import WriteSession
from models.key import NewSecret, hash_secret


class ExecutionRuntime(Base):
    """An environment in which tools run, and what it last declared of itself."""

    __tablename__ = "execution_runtimes"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    fingerprint: Mapped[str] = mapped_column(String(255))
    enabled: Mapped[bool] = mapped_column(default=True)
    capability_payload: Mapped[dict[str, JSON]] = mapped_column(Configuration, default=dict)
    tool_catalog: Mapped[list[JSON]] = mapped_column(Configuration, default=list)
    """The catalog as declared, checked already: `governance.catalog_entries.read_runtime_catalog`."""
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy reads it from the class.


class RuntimeCredential(Base):
    """One secret of a runtime; several may be valid while it rotates."""

    __tablename__ = "runtime_credentials"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    execution_runtime_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("execution_runtimes.id", ondelete="CASCADE"), index=True
    )
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    hint: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime | None]


@dataclass(frozen=True)
class NewRuntime:
    """A runtime to register."""

    name: str
    fingerprint: str


def add_runtime(session: WriteSession, new: NewRuntime) -> ExecutionRuntime:
    """Insert a runtime that has declared nothing yet."""
    runtime = ExecutionRuntime(
        id=new_id(), name=new.name, fingerprint=new.fingerprint, capability_payload={}, tool_catalog=[]
    )
    session.add(runtime)
    session.flush()
    return runtime


def add_runtime_secret(session: WriteSession, runtime_id: str) -> NewSecret:
    """Make and store a secret of a runtime, and return its text, which cannot be read again."""
    secret = fresh_secret(RUNTIME_PREFIX)
    row = RuntimeCredential(
        id=new_id(), execution_runtime_id=runtime_id, secret_hash=secret.secret_hash, hint=secret.hint
    )
    session.add(row)
    session.flush()
    return NewSecret(secret.text, row.id)


def find_runtime_by_secret(session: Session, secret: str, now: datetime) -> ExecutionRuntime | None:
    """Return the runtime of a secret, enabled or not; None for an unknown or expired secret."""
    return session.scalar(
        select(ExecutionRuntime)
        .join(RuntimeCredential, RuntimeCredential.execution_runtime_id == ExecutionRuntime.id)
        .where(RuntimeCredential.secret_hash == hash_secret(secret))
        .where(RuntimeCredential.expires_at.is_(None) | (RuntimeCredential.expires_at > now))
    )


def find_runtime(session: Session, name: str) -> ExecutionRuntime | None:
    """Return the runtime of a name, or None."""
    return session.scalar(select(ExecutionRuntime).where(ExecutionRuntime.name == name))
