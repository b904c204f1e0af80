"""The audit trail's chain on demand: seal everything, walk along it, and remove what is old.

Each step is a short transaction of its own, so that a long trail holds up nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from governance.audit_chain import GENESIS, ChainHead, ChainProblem, ChainWalk
from governance.canonical import JSON
from models.audit_chain import (
    SEAL_BATCH,
    Pruned,
    SealedHead,
    hashes_at,
    load_head,
    load_links,
    prune,
    seal_batch,
)
from models.database import Database, ReadSession

WALK_BATCH = 1000
"""Links that one transaction walks over."""


@dataclass(frozen=True)
class Verification:
    """What a walk along the trail found; `problems` is empty where it holds."""

    head: SealedHead
    checked: int
    problems: tuple[ChainProblem, ...]

    def to_json(self) -> dict[str, JSON]:
        """Return the verification as shown."""
        return {
            "holds": not self.problems,
            "checked": self.checked,
            "problems": [problem.to_json() for problem in self.problems],
            **show_head(self.head),
        }


def show_head(head: SealedHead) -> dict[str, JSON]:
    """Return a head as shown and exported."""
    return {
        "length": head.end.length,
        "hash": head.end.hash,
        "sealed_at": None if head.sealed_at is None else head.sealed_at.isoformat(),
        "pruned_length": head.start.length,
        "pruned_hash": head.start.hash,
        "pruned_at": None if head.pruned_at is None else head.pruned_at.isoformat(),
    }


async def seal_all(database: Database) -> SealedHead:
    """Chain every event that has no link yet, and return the head."""
    while await database.write(seal_batch, everything=True) >= SEAL_BATCH:
        pass
    return await database.read(load_head)


async def verify_trail(
    database: Database, heads: Sequence[ChainHead] = (), last: int | None = None
) -> Verification:
    """Seal everything, then walk along the whole chain, or along its `last` links, against every head.

    `heads` are heads that were exported earlier and kept apart: what ends before one of them was cut off, and
    the walk begins no later than at the earliest of them.
    """
    head = await seal_all(database)
    start = head.start
    first = min([head.end.length - last if last is not None else 0, *(kept.length for kept in heads)])
    if first > start.length:
        start = await database.read(_start_at, first)
    walk = ChainWalk(start, (head.end, *heads))
    while links := await database.read(load_links, walk.reached.length, WALK_BATCH):
        for link in links:
            walk.step(link)
    return Verification(head, walk.count, walk.finish())


async def prune_trail(database: Database, before: datetime, actor: str, request_id: str) -> Pruned:
    """Seal everything, then remove the events older than `before`."""
    await seal_all(database)
    return await database.write(prune, before, actor, request_id)


def _start_at(session: ReadSession, number: int) -> ChainHead:
    # A link that is gone is found as the first step of the walk.
    return ChainHead(number, hashes_at(session, [number]).get(number, GENESIS))
