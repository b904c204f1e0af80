"""Run the official suite on the production transport: ``python -m tests.conformance.run [SCENARIO ...]``.

Installs the pinned suite below this folder on first use and runs the scored client scenarios of its frozen
requirement sets, two at a time: all at once, as the suite itself would, clients are starved on a small
machine and time out. Fails when a scenario fails that ``expected-failures.yml`` does not name for its
revision, and when one it names passes.
"""

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.node_packages import install, node_binary

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
SUITE: Final = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
SCORED: Final = {"2025-11-25": 18, "2026-07-28": 32}
"""The frozen requirement sets and how many client scenarios each scores."""

AT_ONCE: Final = 2
ALONE: Final = frozenset({"sse-retry"})
"""Scenarios that measure time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario at one revision."""

    revision: str
    scenario: str
    passed: bool
    checks: str
    output: str


def names_in(text: str, section: str) -> list[str]:
    """Return the items of a top-level list of plain names in a YAML text."""
    found = re.search(
        rf"^{re.escape(section)}:[^\n]*\n((?:[ \t]+.*\n|[ \t]*#.*\n|\n)*)", text + "\n", re.MULTILINE
    )
    return re.findall(r"^\s*-\s+([\w./-]+)\s*$", found.group(1), re.MULTILINE) if found else []


def run_scenario(script: Path, revision: str, scenario: str) -> Outcome:
    """Run one scenario in a process of its own."""
    with tempfile.TemporaryDirectory() as results:
        command = [
            *(node_binary(), str(script), "client", "--scenario", scenario, "--spec-version", revision),
            *("--command", f"{sys.executable} -m tests.conformance.client"),
            *("--timeout", "60000", "-o", results),
        ]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    output = done.stdout + done.stderr
    checks = re.search(r"^Passed: (\d+/\d+)", output, re.MULTILINE)
    return Outcome(revision, scenario, done.returncode == 0, checks.group(1) if checks else "-", output)


def run_all(wanted: list[str]) -> list[Outcome]:
    """Run the scored scenarios of every revision, or only those named."""
    modules = install(HERE, [SUITE]) / "@modelcontextprotocol" / "conformance"
    jobs: list[tuple[Path, str, str]] = []
    for revision, count in SCORED.items():
        scenarios = names_in((modules / "requirements" / f"{revision}.yaml").read_text(), "client")
        if len(scenarios) != count:
            sys.exit(
                f"the requirement set of {revision} names {len(scenarios)} client scenarios, not {count}"
            )
        jobs += [
            (modules / "dist" / "index.js", revision, name)
            for name in scenarios
            if not wanted or name in wanted
        ]
    alone = [run_scenario(*job) for job in jobs if job[2] in ALONE]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return alone + list(pool.map(lambda job: run_scenario(*job), (j for j in jobs if j[2] not in ALONE)))


def main() -> int:
    """Run, print a table, and return the exit status."""
    expected = (HERE / "expected-failures.yml").read_text()
    wrong = 0
    for outcome in run_all(sys.argv[1:]):
        should_fail = outcome.scenario in names_in(expected, outcome.revision)
        verdict = "pass" if outcome.passed else "FAIL"
        if should_fail:
            verdict = "STALE: passes now, remove it" if outcome.passed else "fails as expected"
        _say(f"{outcome.revision}  {outcome.scenario:45} {outcome.checks:>6}  {verdict}")
        if outcome.passed == should_fail:
            wrong += 1
            _say("" if outcome.passed else outcome.output[-3000:])
    _say(
        f"{wrong} of the results are not as they should be" if wrong else "all results are as they should be"
    )
    return 1 if wrong else 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this is a command


if __name__ == "__main__":
    sys.exit(main())
