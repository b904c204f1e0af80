"""Sessions of the console: who logged in with the admin token, until when."""

import hmac
import secrets
from datetime import datetime

from sqlalchemy import String, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base, PublicId, new_id, utc_now
from models.database import WriteSession
from models.key import SECRET_BYTES, hash_secret


class ConsoleSession(Base):
    """One login; the cookie's secret is stored as its hash, as keys are."""

    __tablename__ = "console_sessions"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    admin_token_hash: Mapped[str] = mapped_column(String(64))
    """What it was opened with: another admin token ends every session of the one before."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(index=True)


def open_console_session(
    session: WriteSession, admin_token_hash: str, expires_at: datetime
) -> tuple[ConsoleSession, str]:
    """Store a session and return it with its secret, which cannot be read again; expired ones go."""
    session.execute(delete(ConsoleSession).where(ConsoleSession.expires_at <= utc_now()))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    row = ConsoleSession(
        id=new_id(),
        secret_hash=hash_secret(secret),
        admin_token_hash=admin_token_hash,
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return row, secret


def find_console_session(
    session: Session, secret: str, admin_token_hash: str, now: datetime
) -> ConsoleSession | None:
    """Return the session of a secret; None for an unknown, an ended or an expired one."""
    wanted = hash_secret(secret)
    row = session.scalar(select(ConsoleSession).where(ConsoleSession.secret_hash == wanted))
    if row is None or not hmac.compare_digest(row.secret_hash, wanted):
        return None
    same_token = hmac.compare_digest(row.admin_token_hash, admin_token_hash)
    return row if same_token and row.expires_at > now else None
