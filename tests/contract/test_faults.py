"""Every test that docs/faults.md names exists, so that no row promises what is gone."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/faults.md").read_text("utf-8")

NAMED = re.compile(r"`(test_\w+\.py)(?:::(test_\w+))?`")
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)


def defined() -> dict[str, set[str]]:
    """Return the tests of each file name; files of one name in several folders count together."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        if "site-packages" not in path.parts:
            names = re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
            found.setdefault(path.name, set()).update(names)
    return found


def test_every_test_that_the_page_names_exists() -> None:
    tests = defined()
    named = NAMED.findall(PAGE)
    missing = [
        f"{file}::{name}"
        for file, name in named
        if file not in tests or (name != "" and name not in tests[file])
    ]
    assert len(named) > 50
    assert missing == []


def test_every_row_names_a_test_or_says_why_not() -> None:
    rows = [row for row in ROW.findall(PAGE) if not row.startswith(("| report |", "|---"))]
    assert len(rows) > 50
    assert [row for row in rows if not row.strip("| ").rpartition("|")[2].strip()] == []
