"""Secrets of programs and runtimes: shown once, stored as hashes, told apart by their prefix.

Source: docs/decisions/0007-key-prefixes.md.
"""

import secrets
from dataclasses import dataclass
from typing import Final

from models.key import SECRET_BYTES, SHOWN_CHARACTERS, hash_secret

PROGRAM_PREFIX: Final = "sgp_"
"""What the secret of a program version begins with."""

RUNTIME_PREFIX: Final = "sgr_"
"""What the secret of an execution runtime begins with."""


@dataclass(frozen=True)
class FreshSecret:
    """A secret that was just made: its text, which is shown once, and what is stored of it."""

    text: str
    secret_hash: str
    hint: str


def fresh_secret(prefix: str) -> FreshSecret:
    """Make a secret of 256 random bits."""
    text = prefix + secrets.token_urlsafe(SECRET_BYTES)
    return FreshSecret(text, hash_secret(text), text[: len(prefix) + SHOWN_CHARACTERS] + "…")
