"""Sessions of the legacy era: names for what one client asks, which hold no state and no authority.

A session id says for itself which version was agreed on, and is tied to its key by a digest. So every API
process knows every session, also after a restart, and none has to be stored or swept. Whoever holds the key
could make one up and would gain nothing: each request is authenticated by its key, and a session only keeps
the request ids of two clients apart.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from api.mcp_server.eras import LEGACY
from api.mcp_server.frames import RequestId
from models.base import new_id

_FORM: Final = re.compile(r"(\d{4}-\d{2}-\d{2})\.([0-9a-f]{32})\.([0-9a-f]{32})")


@dataclass(frozen=True)
class LegacySession:
    """A session: its own name and the version that was agreed on."""

    name: str
    version: str

    def round_key(self, request_id: RequestId) -> str:
        """Return the idempotency key of the round of a request.

        A client never uses a request id twice in a session, so a repeat is a repeat of the same call.
        """
        kind = "s" if isinstance(request_id, str) else "i"
        digest = hashlib.sha256(f"{kind}:{request_id}".encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.prefix}{digest[:32]}"

    @property
    def prefix(self) -> str:
        """What the idempotency key of every round of this session begins with."""
        return f"mcp:{self.name}:"


def new_session(key_id: str, version: str) -> tuple[LegacySession, str]:
    """Make a session of a key; return it with the id that its client sends ever after."""
    session = LegacySession(new_id().replace("-", ""), version)
    return session, f"{version}.{session.name}.{_tag(key_id, session)}"


def find_session(session_id: str | None, key_id: str) -> LegacySession | None:
    """Return the session of an id; None for none of ours, or one of another key."""
    form = _FORM.fullmatch(session_id or "")
    if form is None or form.group(1) not in LEGACY:
        return None
    session = LegacySession(form.group(2), form.group(1))
    return session if hmac.compare_digest(form.group(3), _tag(key_id, session)) else None


def _tag(key_id: str, session: LegacySession) -> str:
    text = f"sluicegate mcp session {key_id} {session.version} {session.name}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
