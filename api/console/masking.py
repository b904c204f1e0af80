"""Takes secrets out of text that is about to be written down. Pure: no I/O."""

import re
from typing import Final

_SECRET: Final = re.compile(r"\b([a-z]{2,8}[_-])[A-Za-z0-9_-]{32,}")
"""What every secret of ours looks like: a prefix of the form that settings allow, then random text."""

SHOWN: Final = r"\1…"


def without_secrets(text: str) -> str:
    """Return the text with whatever looks like a secret cut down to its prefix.

    Callers put keys where they do not belong, such as in a path; the audit trail outlives the key.
    """
    return _SECRET.sub(SHOWN, text)
