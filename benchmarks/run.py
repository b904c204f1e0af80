"""Run the benchmarks and print one table: `make bench`.

Figures are of this machine in this run; compare rows with one another, not with another machine's.
"""

import asyncio
import os
import sys

from rich.console import Console
from rich.table import Table

from benchmarks import chat, governance, quota, rounds, transport
from benchmarks.row import Row


def show(rows: list[Row]) -> None:
    """Print the table."""
    table = Table("measured", "value", "unit", "wanted", "holds")
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        wanted = "" if row.bound is None else f"{sign} {row.bound:g}"
        holds = "" if row.holds is None else ("yes" if row.holds else "NO")
        table.add_row(row.name, f"{row.value:.2f}", row.unit, wanted, holds)
    Console(width=110).print(table)


async def measure() -> list[Row]:
    """Measure everything."""
    # In threads: they run event loops of their own.
    governed = [*await asyncio.to_thread(governance.measure), *await asyncio.to_thread(quota.measure)]
    return [*await rounds.measure(), *await chat.rows(), *await transport.measure(), *governed]


def main() -> None:
    """Measure and print; a bound that is not kept is told in the table and fails nothing."""
    show(asyncio.run(measure()))
    sys.stdout.flush()
    os._exit(0)  # The SDK's threads can crash the interpreter's own exit.


if __name__ == "__main__":
    main()
