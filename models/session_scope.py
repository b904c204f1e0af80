"""Names of what shares an MCP session: a key, a conversation of it or one binding, at one address."""

import hashlib
from dataclasses import dataclass

from models.connection import SessionScope


@dataclass(frozen=True)
class ScopeOwner:
    """Whose call wants a session; `conversation_id` is None for a round without one."""

    key_id: str
    binding_id: str
    conversation_id: str | None = None

    def scope(self, kind: SessionScope) -> str:
        """Name what shares a session of a kind; a round without a conversation shares its key's."""
        if kind is SessionScope.BINDING:
            return f"binding:{self.binding_id}"
        if kind is SessionScope.CONVERSATION and self.conversation_id is not None:
            return f"conversation:{self.conversation_id}"
        return f"key:{self.key_id}"


def scope_at(scope: str, frozen_url: str | None, url: str) -> str:
    """Return the scope of a call at its frozen address; a session of one address serves no other."""
    return scope if frozen_url in (None, url) else marked_scope(scope, frozen_url)


def marked_scope(scope: str, frozen_url: str | None) -> str:
    """Return the scope of a call at an address that its connection has no more."""
    address = (frozen_url or "").encode("utf-8", "surrogatepass")
    return f"{scope}@{hashlib.sha256(address).hexdigest()[:16]}"
