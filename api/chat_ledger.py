"""What is written of a chat request: that it was sent, before it is, and what it came to, after it ended."""

import logging
from dataclasses import dataclass

from activities.chat_http.types import Usage
from api.chat import PreparedChat
from api.deps import APIDeps
from api.errors import APIProblem, Audited
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.quotas import Exceeded
from models.audit import AuditFact, AuditKind, append_audit
from models.database import DatabaseError, WriteSession
from models.quota import close_lease, spend_chat, spend_cost
from models.usage import UsageKind, UsageStatus, Used, append_usage

CANCELED = "canceled"
"""The code of a request whose caller went away."""

LEASE_SLACK_S = 30.0
"""How much longer than its answer may take a request counts as running, if its process dies."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChatOutcome:
    """How a chat request ended: `code` is None for an answer that came to its end.

    `usage` is None where the provider told none, as when an answer broke off; it may be billed all the same.
    """

    usage: Usage | None
    code: str | None = None


async def open_chat(deps: APIDeps, chat: PreparedChat) -> None:
    """Write down that a request is about to be sent.

    Raises:
        APIProblem: quota_exceeded; nothing may be sent.
        DatabaseError: it could not be written, so nothing may be sent.
    """
    exceeded = await deps.database.write(_open, chat)
    if exceeded is not None:
        audited = Audited(data={"model": chat.model.name, "limit": exceeded.limit.value})
        raise APIProblem(ErrorCode.QUOTA_EXCEEDED, exceeded.details, headers=chat.headers, audited=audited)


async def meter_chat(deps: APIDeps, chat: PreparedChat, outcome: ChatOutcome) -> None:
    """Account for a request that was sent, exactly once for each, however it ended.

    The one place that sees key, model and usage together: `chat.key_id`, `chat.model` with its prices, and
    `outcome`. An answer that has been paid for is not taken back where it cannot be written down.
    """
    try:
        await deps.database.write(_settle, chat, outcome)
    except DatabaseError:
        logger.exception("the usage of chat request %s could not be written", chat.request_id)


def cost_of(chat: PreparedChat, usage: Usage | None) -> int | None:
    """Return what an answer costs, in billionths of the currency; None without prices or usage."""
    if usage is None:
        return None
    return chat.model.prices.cost(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


def _open(session: WriteSession, chat: PreparedChat) -> Exceeded | None:
    if chat.has_quota:
        # An answer that takes longer than it may is broken off, so the lease outlives every request.
        lease_s = chat.model.provider.answer_timeout_s + LEASE_SLACK_S
        exceeded = spend_chat(session, chat.key_id, chat.lease_id, lease_s)
        if exceeded is not None:
            append_usage(session, _used(chat, UsageStatus.DENIED, ErrorCode.QUOTA_EXCEEDED.value))
            return exceeded
    _append(session, chat, AuditKind.CHAT_SENT, None, {"tools": len(chat.injection.names)})
    return None


def _settle(session: WriteSession, chat: PreparedChat, outcome: ChatOutcome) -> None:
    usage = outcome.usage
    facts: dict[str, JSON] = {}
    if usage is not None:
        facts = {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "cost_billionths": cost_of(chat, usage),
        }
    _append(session, chat, AuditKind.CHAT_SETTLED, outcome.code, facts)
    append_usage(session, _used(chat, _status(outcome), outcome.code, usage))
    if chat.has_quota:
        spend_cost(session, chat.key_id, cost_of(chat, usage) or 0)
        close_lease(session, chat.key_id, chat.lease_id)


def _status(outcome: ChatOutcome) -> UsageStatus:
    if outcome.code is None:
        return UsageStatus.SUCCEEDED
    return UsageStatus.CANCELED if outcome.code == CANCELED else UsageStatus.FAILED


def _used(chat: PreparedChat, status: UsageStatus, code: str | None, usage: Usage | None = None) -> Used:
    return Used(
        key_id=chat.key_id,
        kind=UsageKind.CHAT,
        status=status,
        model=chat.model.name,
        request_id=chat.request_id[:64],
        code=code,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        cached_tokens=usage.cached_tokens if usage else 0,
        completion_tokens=usage.completion_tokens if usage else 0,
        cost=cost_of(chat, usage) or 0,
    )


def _append(
    session: WriteSession, chat: PreparedChat, kind: AuditKind, code: str | None, facts: dict[str, JSON]
) -> None:
    data = {
        "model": chat.model.name,
        "provider": chat.model.provider.slug,
        "upstream_model": chat.model.upstream_model,
        "streamed": chat.wants_stream,
        **facts,
    }
    append_audit(
        session, AuditFact(kind, actor=chat.key_id, request_id=chat.request_id, code=code, data=data)
    )
