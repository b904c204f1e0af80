"""What the API itself accounts for: calls that it refuses, and quotas spent before a round begins."""

from sqlalchemy.orm import Session

from api.errors import APIProblem, Audited
from governance.codes import ErrorCode
from governance.quotas import Demand
from models.audit import AuditFact
from models.database import WriteSession
from models.key import ApiKey
from models.quota import look, spend_refused
from models.usage import UsageKind, UsageStatus, Used, append_usage


def refuse_when_spent(session: Session, key: ApiKey, tool: str) -> None:
    """Refuse a call of a key whose quota is spent, so that nothing is stored or started for it.

    It takes nothing: the wrapper does, when the call is made, and has the last word. Nothing is asked for a
    key without limits.

    Raises:
        APIProblem: quota_exceeded.
    """
    exceeded = look(session, key.id, Demand(1, 1)) if key.has_quota else None
    if exceeded is not None:
        details = {**exceeded.details, "tool": tool, "outcome": "not_sent"}
        audited = Audited(tool_name=tool, data={"limit": exceeded.limit.value}, denies_call=True)
        raise APIProblem(ErrorCode.QUOTA_EXCEEDED, details, audited=audited)


def meter_denied_call(session: WriteSession, fact: AuditFact) -> None:
    """Meter a call that was refused before it belonged to a round, by its audit row."""
    used = Used(
        key_id=fact.actor,
        kind=UsageKind.TOOL_CALL,
        status=UsageStatus.DENIED,
        tool=fact.tool_name or "",
        request_id=fact.request_id,
        code=fact.code,
    )
    append_usage(session, used)
    key = session.get(ApiKey, fact.actor)
    if key is not None and key.has_quota:
        spend_refused(session, key.id, 1)
