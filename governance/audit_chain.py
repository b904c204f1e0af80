"""The hash chain over the audit trail: what a link is made of, and what a walk along it finds. Pure: no I/O.

Each link names its number, its event and the link before it, so that a changed, removed or moved event breaks
the chain where it stood. That the chain was cut at its end shows only against a head that was kept apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from governance.canonical import JSON, digest_of

FORMAT: Final = "sluicegate-audit-1"
"""The first member of what a link is the digest of; another format begins otherwise."""

GENESIS: Final = "0" * 64
"""What stands for the link before the first."""

MOST_PROBLEMS: Final = 20
"""Problems kept of one walk: the first few tell where to look."""


class ChainFault(StrEnum):
    """What is wrong at one place of the trail."""

    CHANGED = "changed"
    """The event, or its link, is not what was chained."""

    DELETED = "deleted"
    """The event of a link is gone."""

    REORDERED = "reordered"
    """A link is missing or stands at another number than the one it was made for."""

    TRUNCATED = "truncated"
    """The trail ends before its head."""

    HEAD_MISMATCH = "head_mismatch"
    """The link at a head's number is not the one that the head names."""

    PRUNED = "pruned"
    """A head lies in what was removed on purpose, so nothing can be held against it."""


@dataclass(frozen=True)
class ChainHead:
    """The end of a chain: how many links it has, and the last one's hash; the genesis of an empty chain."""

    length: int
    hash: str


EMPTY: Final = ChainHead(0, GENESIS)
"""The head of a chain without links."""


@dataclass(frozen=True)
class ChainProblem:
    """A fault and where it is; `event_id` is None where no event is known."""

    fault: ChainFault
    number: int
    event_id: int | None = None

    def to_json(self) -> dict[str, JSON]:
        """Return the problem as shown."""
        return {"fault": self.fault.value, "number": self.number, "event_id": self.event_id}


@dataclass(frozen=True)
class ChainedEvent:
    """A stored link and its event as it is now, JSON; None where the event is gone."""

    number: int
    event_id: int
    hash: str
    event: Mapping[str, JSON] | None


def link_hash(previous: str, number: int, event: Mapping[str, JSON]) -> str:
    """Return the hash of the link that puts an event at a number, behind the link of hash `previous`."""
    return digest_of([FORMAT, previous, number, dict(event)])


def _no_problems() -> list[ChainProblem]:
    return []


@dataclass
class ChainWalk:
    """A walk along a chain from `start`, a head that is trusted; `problems` is what it found so far.

    After a fault the walk goes on from the stored link, so that one fault is told once.
    """

    start: ChainHead = EMPTY
    expected: tuple[ChainHead, ...] = ()
    """Heads that were kept apart, each of which the chain has to run through."""
    problems: list[ChainProblem] = field(default_factory=_no_problems)
    count: int = 0

    def __post_init__(self) -> None:
        """Begin behind the start."""
        self._at = self.start

    @property
    def reached(self) -> ChainHead:
        """The last link that was walked over."""
        return self._at

    def step(self, link: ChainedEvent) -> None:
        """Walk over the next link that is stored."""
        self.count += 1
        if link.number != self._at.length + 1:
            self._note(ChainFault.REORDERED, self._at.length + 1, link.event_id)
        if link.event is None:
            self._note(ChainFault.DELETED, link.number, link.event_id)
        elif (
            link.number == self._at.length + 1
            and link_hash(self._at.hash, link.number, link.event) != link.hash
        ):
            self._note(ChainFault.CHANGED, link.number, link.event_id)
        self._at = ChainHead(link.number, link.hash)
        for head in self.expected:
            if head.length == link.number and head.hash != link.hash:
                self._note(ChainFault.HEAD_MISMATCH, link.number, link.event_id)

    def finish(self) -> tuple[ChainProblem, ...]:
        """End the walk: the chain must have come as far as every head; return all that was found."""
        for head in self.expected:
            if head.length > self._at.length:
                self._note(ChainFault.TRUNCATED, self._at.length + 1, None)
            elif head.length < self.start.length:
                self._note(ChainFault.PRUNED, head.length, None)
            elif head.length == self.start.length and head.hash != self.start.hash:
                self._note(ChainFault.HEAD_MISMATCH, head.length, None)
        return tuple(self.problems)

    def _note(self, fault: ChainFault, number: int, event_id: int | None) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(ChainProblem(fault, number, event_id))
