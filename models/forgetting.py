"""Forgetting what must not stay: arguments that guardrails took out, or have never judged."""

from collections.abc import Iterable

from sqlalchemy import delete, exists

from models.database import WriteSession
from models.invocation import ToolInvocation
from models.payload import Payload
from models.round import RoundCall
from models.task import Task

USERS = (
    RoundCall.arguments_digest,
    RoundCall.sent_arguments_digest,
    ToolInvocation.request_digest,
    ToolInvocation.response_digest,
    Task.input_digest,
)
"""Every column that names a payload; a test compares them with the foreign keys."""


def forget_arguments(session: WriteSession, calls: Iterable[RoundCall]) -> None:
    """Let calls name no arguments any more, and delete those that nobody else has."""
    old: set[str | None] = set()
    for call in calls:
        old |= {call.arguments_digest, call.sent_arguments_digest}
        call.arguments_digest = call.sent_arguments_digest = None
    session.flush()
    forget_payloads(session, filter(None, old))


def forget_payloads(session: WriteSession, digests: Iterable[str]) -> None:
    """Delete payloads that no row names."""
    session.execute(
        delete(Payload).where(
            Payload.digest.in_(sorted(digests)),
            *(~exists().where(column == Payload.digest) for column in USERS),
        ),
        execution_options={"synchronize_session": False},
    )
