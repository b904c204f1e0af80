"""Covering arrays: few rows in which every pair of values of any two columns stands together."""

from collections.abc import Sequence
from itertools import combinations, product


def pairwise_rows(columns: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return rows that hold each pair of values at least once; one value a column, always the same rows."""
    wanted = {
        (first, one, second, other)
        for first, second in combinations(range(len(columns)), 2)
        for one, other in product(columns[first], columns[second])
    }
    rows: list[tuple[str, ...]] = []
    while wanted:
        best = max(product(*columns), key=lambda row: (len(pairs_of(row) & wanted), row))
        wanted -= pairs_of(best)
        rows.append(best)
    return rows


def pairs_of(row: Sequence[str]) -> set[tuple[int, str, int, str]]:
    """Return the pairs of a row."""
    return {(first, row[first], second, row[second]) for first, second in combinations(range(len(row)), 2)}
