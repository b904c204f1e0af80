"""Forgetting what must not stay: arguments that guardrails took out, or have never judged."""

from collections.abc import Iterable

from sqlalchemy import delete, exists, select

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
    """Delete payloads that no row names, once nobody is about to name them, see `store_payloads`."""
    names = sorted(digests)
    # A statement of its own: the next one sees what those have committed whom this one waited for.
    session.execute(
        select(Payload.digest).where(Payload.digest.in_(names)).order_by(Payload.digest).with_for_update()
    )
    session.execute(
        delete(Payload).where(
            Payload.digest.in_(names),
            *(~exists().where(column == Payload.digest) for column in USERS),
        ),
        execution_options={"synchronize_session": False},
    )
