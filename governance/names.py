"""Names of connections and tools: what is allowed, what callers see, what was meant. Pure: no I/O."""

import base64
import hashlib
import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from heapq import nlargest
from itertools import pairwise
from typing import Final

SUBAGENT_TOOLS: Final = frozenset(
    {"subagent_spawn", "subagent_send", "subagent_wait", "subagent_close", "subagent_list"}
)
"""The built-in tools for subagents; no connection and no lower catalog layer may take these names."""

RESERVED_PREFIX: Final = "core_matrix"
"""Names beginning so belong to the built-in catalog."""

NOTHING_WORD: Final = "none"
"""What a filter header says to mean no tools, because curl and proxies drop empty headers."""

MAX_EXPOSED_LENGTH: Final = 64
"""Longest function name that every chat completion provider accepts."""

CONNECTION_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""Form of a connection name. It has no hyphen, so the first hyphen of an exposed name always splits it."""

EXPOSED_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_EXPOSED_LENGTH}}}")
"""Form of every name shown to a model."""

_HASH_MARK = "--"
# 24 characters of base 32 carry 120 bits: a server that chooses its own tool names would need about 2**60
# hashes to make two of them share an exposed name.
_HASH_LENGTH = 24
_IMITATION = re.compile(rf".*{_HASH_MARK}[a-z2-7]{{{_HASH_LENGTH}}}", re.DOTALL)
_ILLEGIBLE = re.compile(r"[^A-Za-z0-9_-]+")
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_UNNAMED = "tool"

_NEAR_ENOUGH = 0.6
_FULLY_COMPARED = 16
# Longer names cannot be exposed names; comparing them would cost time in proportion to their length.
_LONGEST_COMPARED = 2 * MAX_EXPOSED_LENGTH


def check_connection_name(name: str) -> str | None:
    """Return None for a usable connection name, else a sentence that says what to do."""
    if not CONNECTION_NAME.fullmatch(name):
        return (
            f"The connection name {name!r} must begin with a lower-case letter and hold at most 32 "
            "lower-case letters, digits and underscores; choose another name."
        )
    if name.startswith(RESERVED_PREFIX):
        return f"Names beginning with {RESERVED_PREFIX!r} belong to built-in tools; choose another name."
    if name in SUBAGENT_TOOLS:
        return f"{name!r} is the name of a built-in tool; choose another name."
    if name == NOTHING_WORD:
        return f"{name!r} means 'no tools' in filter headers; choose another name."
    return None


def exposed_name(connection: str, upstream_name: str) -> str:
    """Return the name under which models see a tool of a connection.

    It is `<connection>-<upstream name>` where that fits `EXPOSED_NAME`, else
    `<connection>-<legible part>--<hash>`. The result depends on the two names only, never on the other tools,
    and two upstream names never share one: a name that imitates the hashed form is hashed itself.
    """
    plain = f"{connection}-{upstream_name}"
    if upstream_name and EXPOSED_NAME.fullmatch(plain) and not _IMITATION.fullmatch(upstream_name):
        return plain
    # Upstream names come from JSON, where a lone surrogate can be written.
    hashed = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()
    suffix = _HASH_MARK + base64.b32encode(hashed).decode("ascii").lower()[:_HASH_LENGTH]
    room = MAX_EXPOSED_LENGTH - len(connection) - 1 - len(suffix)
    legible = _ILLEGIBLE.sub("_", upstream_name)[:room].strip("_-") or _UNNAMED
    return f"{connection}-{legible}{suffix}"


def nearest_name(wanted: str, visible: Iterable[str]) -> str | None:
    """Return the visible name that `wanted` most likely stands for, or None.

    A name that differs only in case, separators or an `mcp` prefix (`conn_tool`, `mcp__conn__tool`) wins over
    one that is merely similar; ties go to the first in alphabetical order.
    """
    target = folded_name(wanted[:_LONGEST_COMPARED])
    folded = [(folded_name(name), name) for name in sorted(visible)]
    for form, name in folded:
        if form == target:
            return name
    # Comparing in full is slow, so it is done for the few names that share most letter pairs.
    pairs = _letter_pairs(target)
    candidates = nlargest(_FULLY_COMPARED, folded, key=lambda item: len(pairs & _letter_pairs(item[0])))
    best, best_ratio = None, _NEAR_ENOUGH
    for form, name in candidates:
        ratio = SequenceMatcher(None, form, target, autojunk=False).ratio()
        if ratio > best_ratio:
            best, best_ratio = name, ratio
    return best


def folded_name(name: str) -> str:
    """Return the form that a name shares with those that differ in case, separators or an `mcp` prefix."""
    folded = _SEPARATORS.sub("_", name.casefold()).strip("_")
    return folded.removeprefix("mcp_")


def _letter_pairs(form: str) -> set[str]:
    return set(map("".join, pairwise(form)))
