"""Stored histories are append-only: each is what a released workflow really did, so none is ever edited.

Source: docs/architecture.md; a changed history would let a change pass that running rounds cannot replay.
"""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
HISTORIES = "tests/workflows/histories"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_no_commit_has_changed_renamed_or_removed_a_history() -> None:
    touched = git("log", "--no-renames", "--diff-filter=MD", "--format=", "--name-only", "--", HISTORIES)
    assert touched.split() == []


def test_the_working_tree_changes_no_committed_history() -> None:
    assert git("diff", "--no-renames", "--diff-filter=MD", "--name-only", "HEAD", "--", HISTORIES) == ""
    assert git("ls-files", "--", HISTORIES).count(".json") >= 6
