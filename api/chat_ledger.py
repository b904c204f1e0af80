"""What is written of a chat request: that it was sent, before it is, and what it came to, after it ended."""

import logging
from dataclasses import dataclass

from activities.chat_http.types import Usage
from api.chat import PreparedChat
from api.deps import APIDeps
from governance.canonical import JSON
from models.audit import AuditFact, AuditKind, append_audit
from models.database import DatabaseError, WriteSession

CANCELED = "canceled"
"""The code of a request whose caller went away."""

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
        DatabaseError: it could not be written, so nothing may be sent.
    """
    await deps.database.write(_open, chat)


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


def _open(session: WriteSession, chat: PreparedChat) -> None:
    _append(session, chat, AuditKind.CHAT_SENT, None, {"tools": len(chat.injection.names)})


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
