"""What is wrong with a document, place by place, so that all of it can be told at once. Pure: no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from governance.canonical import JSON


@dataclass(frozen=True)
class Fault:
    """One place of a document and what it must be; `problem` reads after the path, as in "is an object"."""

    path: str
    problem: str

    def to_json(self) -> dict[str, JSON]:
        """Return the fault as callers see it: path, problem."""
        return {"path": self.path, "problem": self.problem}


class Faults(ValueError):
    """A document has faults; `found` lists all of them, at least one."""

    def __init__(self, found: Sequence[Fault]) -> None:
        """Name the first one."""
        super().__init__(f"{found[0].path} {found[0].problem}")
        self.found = tuple(found)
