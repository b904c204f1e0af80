"""Writes what an operator changed to the audit trail, in the transaction that changes it."""

from api.identity import ADMIN_ACTOR
from governance.canonical import JSON
from models.audit import AuditFact, AuditKind, append_audit
from models.database import WriteSession


def record_change(session: WriteSession, request_id: str, change: str, **facts: JSON) -> None:
    """Append what was changed and to what; never a secret."""
    data = {"change": change, **facts}
    fact = AuditFact(AuditKind.CONTROL_CHANGE, actor=ADMIN_ACTOR, request_id=request_id, data=data)
    append_audit(session, fact)
