"""The audit trail: one append-only row for each decision and each physical send, refusals included."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from governance.canonical import JSON
from models.base import Base, Configuration, Digest, EnumByValue, PublicId, table_of, utc_now
from models.database import WriteSession


class AuditKind(StrEnum):
    """What an audit row tells of."""

    REQUEST_REFUSED = "request_refused"
    CALL_ADMITTED = "call_admitted"
    CALL_REFUSED = "call_refused"
    CALL_SENT = "call_sent"
    CALL_SETTLED = "call_settled"
    LATE_RESULT = "late_result"
    ROUND_CANCEL_REQUESTED = "round_cancel_requested"
    CALL_CANCEL_REQUESTED = "call_cancel_requested"
    OUTCOME_RESOLVED = "outcome_resolved"
    RECONCILED = "reconciled"
    CHAT_SENT = "chat_sent"
    CHAT_SETTLED = "chat_settled"
    CONTROL_CHANGE = "control_change"
    TOOL_DRIFTED = "tool_drifted"
    CALL_GUARDED = "call_guarded"
    AUDIT_PRUNED = "audit_pruned"


class AuditEvent(Base):
    """One fact; never updated and never deleted by the application."""

    __tablename__ = "audit_events"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    kind: Mapped[AuditKind] = mapped_column(EnumByValue(AuditKind))
    actor: Mapped[str] = mapped_column(String(64))
    """The public id of the key, `admin`, or `unknown` for a caller that was not recognised."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    round_id: Mapped[str | None] = mapped_column(PublicId, index=True)
    invocation_id: Mapped[str | None] = mapped_column(PublicId)
    tool_name: Mapped[str | None] = mapped_column(String(512))
    code: Mapped[str | None] = mapped_column(String(64))
    """The stable code of a refusal or failure; None when it was allowed or succeeded."""
    arguments_digest: Mapped[str | None] = mapped_column(Digest)
    data: Mapped[dict[str, JSON]] = mapped_column(Configuration)
    """Further facts: level, reason, revision, outcome. Never arguments, results or secrets."""


def _no_data() -> dict[str, JSON]:
    return {}


@dataclass(frozen=True)
class AuditFact:
    """A row to append."""

    kind: AuditKind
    actor: str
    request_id: str | None = None
    round_id: str | None = None
    invocation_id: str | None = None
    tool_name: str | None = None
    code: str | None = None
    arguments_digest: str | None = None
    data: Mapping[str, JSON] = field(default_factory=_no_data)


_INSERT = table_of(AuditEvent).insert()


def append_audit(session: WriteSession, *facts: AuditFact) -> None:
    """Append facts, in the caller's transaction, so that a fact and what it tells of commit together."""
    if not facts:
        return
    now = utc_now()
    session.connection().execute(
        _INSERT,
        [
            {
                "at": now,
                "kind": fact.kind,
                "actor": fact.actor,
                "request_id": fact.request_id,
                "round_id": fact.round_id,
                "invocation_id": fact.invocation_id,
                "tool_name": None if fact.tool_name is None else fact.tool_name[:512],
                "code": fact.code,
                "arguments_digest": fact.arguments_digest,
                "data": dict(fact.data),
            }
            for fact in facts
        ],
    )
