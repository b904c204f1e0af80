"""Start grants: the API's word that a key may start one round through Temporal. Pure: no clock, no I/O.

Source of the form: RFC 2104 (HMAC) over canonical JSON, so that no two rounds have the same bytes.
"""

import hashlib
import hmac
from collections.abc import Mapping
from enum import StrEnum

from governance.canonical import JSON, NotCanonicalError, canonical_bytes

GRANT_PURPOSE = "start-grant-v1"
"""What the key that signs grants is derived for from the vault's key."""

GRANT_PREFIX = "sgg_"
"""What every start grant begins with."""


GRANTED_FIELDS = (
    "key_id",
    "round_key",
    "calls",
    "include_clients",
    "include_tools",
    "on_unknown",
    "task_id",
    "conversation_id",
    "implementations",
    "profile_key",
)
"""The fields of a round's input that decide what it does: a grant holds for their values and no others."""


class GrantFault(StrEnum):
    """Why a grant does not let a round start."""

    MISSING = "missing"
    MALFORMED = "malformed"
    EXPIRED = "expired"
    OTHER_ROUND = "other_round"


def mint_grant(secret: bytes, asked: Mapping[str, JSON], expires_at: int) -> str:
    """Write a grant as `sgg_<expiry>_<64 hexadecimal digits>`.

    `asked` holds at least the granted fields; `expires_at` is in Unix seconds.
    """
    return f"{GRANT_PREFIX}{expires_at}_{_mac(secret, asked, expires_at)}"


def check_grant(secret: bytes, asked: Mapping[str, JSON], grant: str, now: float) -> GrantFault | None:
    """Say what is wrong with a grant, None where the round may start; `now` is in Unix seconds."""
    if not grant:
        return GrantFault.MISSING
    expiry, _, mac = grant.removeprefix(GRANT_PREFIX).partition("_")
    if not (grant.startswith(GRANT_PREFIX) and grant.isascii() and expiry.isdecimal() and len(expiry) <= 12):
        return GrantFault.MALFORMED
    # Compared before the time is looked at: nobody learns from the answer whether another's grant is old.
    try:
        wanted = _mac(secret, asked, int(expiry))
    except NotCanonicalError:
        # No grant was ever minted for what has no JSON form.
        return GrantFault.OTHER_ROUND
    if not hmac.compare_digest(mac, wanted):
        return GrantFault.OTHER_ROUND
    return GrantFault.EXPIRED if now >= int(expiry) else None


def _mac(secret: bytes, asked: Mapping[str, JSON], expires_at: int) -> str:
    message = {"expires_at": expires_at, "round": {name: asked[name] for name in GRANTED_FIELDS}}
    return hmac.new(secret, canonical_bytes(message), hashlib.sha256).hexdigest()
