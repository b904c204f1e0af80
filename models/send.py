"""Physical sends: when the first byte of a call could leave, by whose hand, and what came back.

Whoever changes a send holds its invocation's row first, so that on PostgreSQL a send is never marked while
another worker takes the call over or settles it as not sent.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from sqlalchemy import ForeignKey, String, UniqueConstraint, bindparam, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from governance.codes import InvocationStatus, SendOutcome
from models.base import Base, Configuration, Digest, EnumByValue, PublicId, new_id, table_of, utc_now
from models.database import WriteSession
from models.invocation import ToolInvocation


class ToolSend(Base):
    """One physical send of an invocation: when its first byte could leave, and what came back."""

    __tablename__ = "tool_sends"
    __table_args__ = (UniqueConstraint("invocation_id", "number"),)

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    invocation_id: Mapped[str] = mapped_column(
        PublicId, ForeignKey("tool_invocations.id", ondelete="CASCADE")
    )
    number: Mapped[int]
    worker: Mapped[str] = mapped_column(String(255))
    lease_token: Mapped[str] = mapped_column(String(36))
    session_digest: Mapped[str | None] = mapped_column(Digest)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    sent_at: Mapped[datetime | None]
    """Committed before the first byte leaves: null proves that nothing was sent."""
    answered_at: Mapped[datetime | None]
    outcome: Mapped[SendOutcome | None] = mapped_column(EnumByValue(SendOutcome))
    cursor: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """Where to resume the answer: {"request_id", "last_event_id"}."""

    @property
    def may_have_run(self) -> bool:
        """Whether bytes left and no answer or refusal says what became of them."""
        return self.sent_at is not None and self.outcome in (None, SendOutcome.UNKNOWN)


_SENDS = table_of(ToolSend)
_INVOCATIONS = table_of(ToolInvocation)
_OF_INVOCATION = (
    select(ToolSend)
    .where(ToolSend.invocation_id == bindparam("invocation"))
    .order_by(ToolSend.number)
    .execution_options(populate_existing=True)
)
_INSERT = _SENDS.insert()
_OF_SEND = select(_SENDS.c.invocation_id).where(_SENDS.c.id == bindparam("send")).scalar_subquery()
# Both statements below hold the invocation's row before they look at its send: on PostgreSQL a mere look at
# the lease could pass while another transaction changes it.
_OWNED = (
    select(_INVOCATIONS.c.id)
    .where(_INVOCATIONS.c.id == _OF_SEND, _INVOCATIONS.c.lease_token == bindparam("token"))
    .where(_INVOCATIONS.c.status == InvocationStatus.RUNNING)
    .with_for_update()
    .scalar_subquery()
)
_DOUBTFUL = (
    select(ToolSend.invocation_id)
    .where(ToolSend.invocation_id.in_(bindparam("ids", expanding=True)), ToolSend.sent_at.is_not(None))
    .where(ToolSend.outcome.is_(None) | (ToolSend.outcome == SendOutcome.UNKNOWN))
)
_MARK = (
    _SENDS.update()
    .where(_SENDS.c.id == bindparam("send"), _SENDS.c.sent_at.is_(None))
    .where(_SENDS.c.lease_token == bindparam("token"), _SENDS.c.invocation_id == _OWNED)
    .values(sent_at=bindparam("now"), session_digest=bindparam("digest"))
    .returning(_SENDS.c.id)
)
_CLOSE = (
    _SENDS.update()
    .where(_SENDS.c.id == bindparam("send"))
    # Two workers may wait for the answer to one send: that it came is not untold by the one that missed it.
    .where(_SENDS.c.outcome.is_(None) | (_SENDS.c.outcome != SendOutcome.ANSWERED))
    .values(outcome=bindparam("known"), answered_at=bindparam("now"))
)
_CLOSE_HELD = _CLOSE.where(
    _SENDS.c.invocation_id
    == select(_INVOCATIONS.c.id).where(_INVOCATIONS.c.id == _OF_SEND).with_for_update().scalar_subquery()
)


def load_sends(session: Session, invocation_id: str) -> tuple[ToolSend, ...]:
    """Return the sends of an invocation, oldest first, as they are in the database now."""
    return tuple(session.scalars(_OF_INVOCATION, {"invocation": invocation_id}))


def load_doubtful(session: Session, invocation_ids: Iterable[str]) -> frozenset[str]:
    """Return which of the invocations have a send that may have run."""
    ids = list(invocation_ids)
    return frozenset(session.scalars(_DOUBTFUL, {"ids": ids})) if ids else frozenset()


def open_send(session: WriteSession, invocation: ToolInvocation, number: int, worker: str) -> ToolSend:
    """Record that a send is about to be tried; nothing has left yet. What comes back is not the session's."""
    if invocation.lease_token is None:
        raise ValueError("A send needs the lease of its invocation.")
    send = ToolSend(
        id=new_id(),
        invocation_id=invocation.id,
        number=number,
        worker=worker,
        lease_token=invocation.lease_token,
        created_at=utc_now(),
    )
    row = {
        "id": send.id,
        "invocation_id": send.invocation_id,
        "number": number,
        "worker": worker,
        "lease_token": send.lease_token,
        "created_at": send.created_at,
    }
    session.connection().execute(_INSERT, row)
    return send


def mark_sent(session: WriteSession, send_id: str, lease_token: str, session_digest: str | None) -> bool:
    """Record that the first byte is about to leave; False when the sender no longer may.

    It may not when the invocation is terminal, when another worker has taken it over, or when this very send
    was marked before: one row is one send.
    """
    marked = {"send": send_id, "token": lease_token, "now": utc_now(), "digest": session_digest}
    return session.connection().scalar(_MARK, marked) is not None


def save_cursor(session: WriteSession, send_id: str, cursor: Mapping[str, JSON]) -> None:
    """Keep where the answer of a running send can be resumed."""
    session.execute(
        update(ToolSend)
        .where(ToolSend.id == send_id)
        .values(cursor=dict(cursor))
        .execution_options(synchronize_session=False)
    )


def close_send(session: WriteSession, send_id: str, outcome: SendOutcome) -> None:
    """Record what is known of a send at its end, unless it was answered; the caller holds its invocation."""
    session.connection().execute(_CLOSE, _closed(send_id, outcome))


def hold_and_close_send(session: WriteSession, send_id: str, outcome: SendOutcome) -> None:
    """Hold the row of a send's invocation until the commit, and then record what is known of the send."""
    session.connection().execute(_CLOSE_HELD, _closed(send_id, outcome))


def _closed(send_id: str, outcome: SendOutcome) -> dict[str, object]:
    answered = outcome in (SendOutcome.ANSWERED, SendOutcome.REFUSED)
    return {"send": send_id, "known": outcome, "now": utc_now() if answered else None}
