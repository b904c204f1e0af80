"""`make` alone lists every target that a person would call, and no target is listed that is not there."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
WANTED = {
    *("help", "demo", "test", "test-postgres", "check", "format", "bench", "lock", "clean"),
    *("acceptance", "browser", "conformance", "crash", "fuzz", "interop", "processes"),
}


def test_make_alone_lists_the_targets_with_what_they_do() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    described = dict(re.findall(r"^  (\S+) +(\S.*)$", listed, flags=re.MULTILINE))
    assert set(described) == WANTED
