"""How often what was killed, and how the calls in flight stood at that moment."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

PHASES = ("requested", "frozen", "opened", "sent", "sent, and has run")
"""Where a call can stand that has not ended, in the order of its way."""


@dataclass
class Tally:
    """Kills at named points, and kills at random moments with the phases that calls stood in."""

    named: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    """By kind of database, victim and point."""
    random: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By kind of database and victim."""
    hit: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    """Kills at random that met a call in a phase, by kind of database, victim and phase."""
    stood: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    """Calls that stood in a phase at those kills, by the same."""
    told: Counter[str] = field(default_factory=Counter[str])
    """What the callers of the random kills were told, by kind of database, status and outcome."""

    def add_random(self, kind: str, victim: str, phases: Counter[str]) -> None:
        """Count a kill at a random moment."""
        self.random[kind, victim] += 1
        for phase, calls in phases.items():
            self.hit[kind, victim, phase] += calls > 0
            self.stood[kind, victim, phase] += calls

    def lines(self) -> list[str]:
        """Return the tables, one string a line; empty where nothing was killed."""
        if not (self.named or self.random):
            return []
        rows = [("database", "victim", "point", "kills")]
        rows += [(*place, str(count)) for place, count in sorted(self.named.items())]
        found = ["", "Kills at named points", *_table(rows)]
        rows_of_phases: list[Sequence[str]] = [("database", "victim", "kills", *PHASES)]
        for (kind, victim), count in sorted(self.random.items()):
            met = [f"{self.hit[kind, victim, phase]} ({self.stood[kind, victim, phase]})" for phase in PHASES]
            rows_of_phases.append((kind, victim, str(count), *met))
        total = [
            f"{sum(count for (_, _, at), count in self.hit.items() if at == phase)}"
            f" ({sum(count for (_, _, at), count in self.stood.items() if at == phase)})"
            for phase in PHASES
        ]
        rows_of_phases.append(("all", "", str(self.random.total()), *total))
        found += ["", "Kills at random: how many met calls in each phase (and how many calls)"]
        found += [*_table(rows_of_phases), ""]
        return [*found, *(f"{what}: {count}" for what, count in sorted(self.told.items()))]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
