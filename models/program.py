"""Agent programs and their versions, registered by an operator; a version never changes.

A program acts as the sub-account of one key: that key's tool configuration, sessions and quota are the
program's. A credential belongs to one version, so it says exactly who speaks.
"""

import json
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ForeignKey, String, UniqueConstraint, event, select
from sqlalchemy.engine import Connection as EngineConnection
from sqlalchemy.orm import Mapped, Mapper, Session, mapped_column

from governance.handshake import ProgramDefinition
from models.base import Base, Digest, PublicId, new_id, utc_now
from models.credential import PROGRAM_PREFIX, fresh_secret
from models.database import WriteSession
from models.key import NewSecret, hash_secret


class AgentProgram(Base):
    """A logical program; its key is the sub-account that it acts as."""

    __tablename__ = "agent_programs"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    key_id: Mapped[str] = mapped_column(PublicId, ForeignKey("api_keys.id"), unique=True)
    execution_runtime_id: Mapped[str | None] = mapped_column(
        PublicId, ForeignKey("execution_runtimes.id"), index=True
    )
    declares_runtime: Mapped[bool] = mapped_column(default=False)
    """Whether the program speaks for its runtime too; else only the runtime's own credential does."""
    may_relax_policy: Mapped[bool] = mapped_column(default=False)
    """Whether the overlays of the program's own default configuration count."""
    enabled: Mapped[bool] = mapped_column(default=True)
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy reads it from the class.


class ProgramVersion(Base):
    """One immutable release of a program, under the fingerprint that its program gave it."""

    __tablename__ = "program_versions"
    __table_args__ = (UniqueConstraint("program_id", "fingerprint"),)

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    program_id: Mapped[str] = mapped_column(PublicId, ForeignKey("agent_programs.id"))
    fingerprint: Mapped[str] = mapped_column(String(255))
    definition_digest: Mapped[str] = mapped_column(Digest)
    content: Mapped[bytes]
    """`governance.handshake.ProgramDefinition` as JSON; the order of profiles counts, so it is no jsonb."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)

    def definition(self) -> ProgramDefinition:
        """Return what the version declares."""
        return ProgramDefinition.from_json(json.loads(self.content))


class ProgramCredential(Base):
    """One secret of a program version; several may be valid while it rotates."""

    __tablename__ = "program_credentials"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    program_version_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("program_versions.id", ondelete="CASCADE"), index=True
    )
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    hint: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime | None]


class ImmutableRowError(Exception):
    """Something tried to change a row that is never changed."""

    def __init__(self, table: str) -> None:
        """Name the table."""
        super().__init__(f"A row of {table!r} is never changed; insert another one.")


def refuse_update(mapper: Mapper[Base], _connection: EngineConnection, _target: Base) -> None:
    """Stop a flush that would update an immutable row; listened to by the tables that have such rows."""
    raise ImmutableRowError(mapper.local_table.description)


event.listen(ProgramVersion, "before_update", refuse_update)


@dataclass(frozen=True)
class NewProgram:
    """A program to register."""

    name: str
    key_id: str
    execution_runtime_id: str | None = None
    declares_runtime: bool = False
    may_relax_policy: bool = False


def add_program(session: WriteSession, new: NewProgram) -> AgentProgram:
    """Insert a program."""
    program = AgentProgram(
        id=new_id(),
        name=new.name,
        key_id=new.key_id,
        execution_runtime_id=new.execution_runtime_id,
        declares_runtime=new.declares_runtime,
        may_relax_policy=new.may_relax_policy,
        enabled=True,
    )
    session.add(program)
    session.flush()
    return program


def add_version(
    session: WriteSession, program_id: str, definition: ProgramDefinition, version_id: str
) -> ProgramVersion:
    """Insert a version of a program under an id that was made before its catalog was read."""
    version = ProgramVersion(
        id=version_id,
        program_id=program_id,
        fingerprint=definition.fingerprint,
        definition_digest=definition.digest,
        content=json.dumps(definition.to_json(), ensure_ascii=True).encode("ascii"),
    )
    session.add(version)
    session.flush()
    return version


def add_program_secret(session: WriteSession, version_id: str) -> NewSecret:
    """Make and store a secret of a version, and return its text, which cannot be read again."""
    secret = fresh_secret(PROGRAM_PREFIX)
    row = ProgramCredential(
        id=new_id(), program_version_id=version_id, secret_hash=secret.secret_hash, hint=secret.hint
    )
    session.add(row)
    session.flush()
    return NewSecret(secret.text, row.id)


def find_version_by_secret(
    session: Session, secret: str, now: datetime
) -> tuple[AgentProgram, ProgramVersion] | None:
    """Return the program, enabled or not, and the version of a secret; None for an unknown or expired one."""
    row = session.execute(
        select(AgentProgram, ProgramVersion)
        .join(ProgramVersion, ProgramVersion.program_id == AgentProgram.id)
        .join(ProgramCredential, ProgramCredential.program_version_id == ProgramVersion.id)
        .where(ProgramCredential.secret_hash == hash_secret(secret))
        .where(ProgramCredential.expires_at.is_(None) | (ProgramCredential.expires_at > now))
    ).one_or_none()
    return None if row is None else (row[0], row[1])


def find_program(session: Session, name: str) -> AgentProgram | None:
    """Return the program of a name, or None."""
    return session.scalar(select(AgentProgram).where(AgentProgram.name == name))


def find_version(session: Session, program_id: str, fingerprint: str) -> ProgramVersion | None:
    """Return a program's version of a fingerprint, or None."""
    return session.scalar(
        select(ProgramVersion).where(
            ProgramVersion.program_id == program_id, ProgramVersion.fingerprint == fingerprint
        )
    )


def program_of(session: Session, version: ProgramVersion) -> AgentProgram:
    """Return the program of a version."""
    return session.get_one(AgentProgram, version.program_id)


def load_versions(session: Session, runtime_id: str | None = None) -> tuple[ProgramVersion, ...]:
    """Return every version, or those of programs that are bound to a runtime, oldest first."""
    query = select(ProgramVersion).order_by(ProgramVersion.id)
    if runtime_id is not None:
        query = query.join(AgentProgram, AgentProgram.id == ProgramVersion.program_id).where(
            AgentProgram.execution_runtime_id == runtime_id
        )
    return tuple(session.scalars(query))
