"""Canonical JSON: one byte form for one value, and digests over it. Pure: no I/O."""

import hashlib
import json
from typing import Any, TypeAlias, TypeGuard

JSON: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, or lists and string-keyed dicts of these."""


class NotCanonicalError(ValueError):
    """The value has no JSON form in UTF-8: NaN, infinity, a lone surrogate, or too deep."""


def canonical_bytes(value: JSON) -> bytes:
    """Encode a JSON value as UTF-8 with sorted keys and no white space.

    Integers of any size keep every digit, floats keep Python's shortest exact form.

    Raises:
        NotCanonicalError: the value holds NaN, infinity, a lone surrogate, or nests too deep.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise NotCanonicalError("The value cannot be written as JSON in UTF-8.") from error


def digest(content: bytes) -> str:
    """Name bytes by their SHA-256, as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def digest_of(value: JSON) -> str:
    """Name a JSON value by the digest of its canonical bytes."""
    return digest(canonical_bytes(value))


def is_object(value: object) -> TypeGuard[dict[str, JSON]]:
    """Say whether a JSON value is an object; type checkers then know its keys and values."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[JSON]]:
    """Say whether a JSON value is an array; type checkers then know its items."""
    return isinstance(value, list)
