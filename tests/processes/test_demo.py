"""The demo notices when a claim does not hold, and leaves nothing behind when it is stopped."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from api.commands.demo_claims import BUILT_IN, Claim, claims_of_built_in, claims_of_repeat, claims_of_round
from api.commands.json_input import read_json_file
from api.commands.timeline import barrier_breaches, spans_of
from tests.support.command_line import COMMAND_S, ROOT, environment, run

ZERO = datetime(2026, 6, 1, tzinfo=UTC)

RAN = {
    "call_1": ("reports-build_report", 0, 0.0, 1.5),
    "call_2": ("orders-find_order", 0, 0.05, 0.1),
    "call_4": ("orders-refund_order", 1, 1.6, 1.7),
    "call_6": ("reports-mail_report", 2, 1.8, 1.9),
}
"""Tool, stage, begin and end of the calls that the built-in round runs."""

RUNS = Counter(tool for tool, *_ in RAN.values())


def good_round() -> dict[str, Any]:
    results: list[dict[str, Any]] = []
    for call_id, (status, code) in BUILT_IN.items():
        tool, stage, begin, end = RAN.get(call_id, ("other-tool", None, None, None))
        results.append(
            {
                "tool_call_id": call_id,
                "tool": tool,
                "stage": stage,
                "status": status,
                "error": None if code is None else {"code": code},
                "invocation_id": None if stage is None else f"invocation of {call_id}",
                "started_at": None if begin is None else (ZERO + timedelta(seconds=begin)).isoformat(),
                "finished_at": None if end is None else (ZERO + timedelta(seconds=end)).isoformat(),
            }
        )
    messages = [{"role": "tool", "tool_call_id": call_id, "content": ""} for call_id in BUILT_IN]
    return {"state": "completed", "results": results, "messages": messages}


def result(found: dict[str, Any], call_id: str) -> dict[str, Any]:
    results: list[dict[str, Any]] = found["results"]
    return next(one for one in results if one["tool_call_id"] == call_id)


def all_claims(found: dict[str, Any], runs: Counter[str], runs_after: Counter[str]) -> list[Claim]:
    return [
        *claims_of_round(list(BUILT_IN), found, runs),
        *claims_of_built_in(found, runs),
        *claims_of_repeat(good_round(), found, runs, runs_after),
    ]


def begin_early(found: dict[str, Any]) -> None:
    result(found, "call_4")["started_at"] = (ZERO + timedelta(seconds=1.4)).isoformat()


def run_in_turn(found: dict[str, Any]) -> None:
    result(found, "call_1")["finished_at"] = (ZERO + timedelta(seconds=0.04)).isoformat()


def fail_the_refund(found: dict[str, Any]) -> None:
    result(found, "call_4").update(status="failed", error={"code": "tool_timeout"})


def lose_a_message(found: dict[str, Any]) -> None:
    del found["messages"][2]


def end_canceled(found: dict[str, Any]) -> None:
    found["state"] = "canceled"


def test_every_claim_holds_for_a_round_as_it_should_be() -> None:
    assert [claim.faults for claim in all_claims(good_round(), RUNS, RUNS)] == [[]] * 9


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (begin_early, "the barrier held"),
        (run_in_turn, "parallel-safe calls ran at the same time"),
        (fail_the_refund, "three calls succeeded"),
        (lose_a_message, "one tool message for each"),
        (end_canceled, "the round completed"),
    ],
)
def test_a_round_that_went_wrong_breaks_its_claim(
    spoil: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    found = deepcopy(good_round())
    spoil(found)
    broken = [claim.sentence for claim in all_claims(found, RUNS, RUNS) if claim.faults]
    assert any(one.startswith(sentence) for one in broken)


def test_a_tool_that_ran_twice_breaks_the_claims_on_counters() -> None:
    twice = RUNS + Counter({"orders-refund_order": 1})
    in_one_round = [claim.sentence for claim in all_claims(good_round(), twice, twice) if claim.faults]
    assert [one[:18] for one in in_one_round] == ["no tool ran more o", "every admitted cal"]
    by_repeat = [claim.sentence for claim in all_claims(good_round(), RUNS, twice) if claim.faults]
    assert [one[:17] for one in by_repeat] == ["no tool ran again"]


def test_the_barrier_is_judged_on_every_earlier_stage() -> None:
    spans = spans_of(good_round()["results"])
    assert barrier_breaches(spans) == []
    assert [span.call_id for span in spans] == list(RAN)


def test_the_built_in_calls_are_the_seven_that_are_judged() -> None:
    calls = read_json_file(ROOT / "examples" / "calls.json")["tool_calls"]
    assert [call["id"] for call in calls] == list(BUILT_IN)


@pytest.mark.anyio
async def test_calls_that_cannot_be_read_end_the_demo_at_once(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    path.write_text('{"tool_calls": [}')
    done = await run([sys.executable, "-m", "api.commands.demo"], environment(tmp_path, {"CALLS": str(path)}))
    assert (done.status, done.out) == (2, "")
    assert "line 1 column 17" in done.err


@pytest.mark.anyio
@pytest.mark.timeout(400)
async def test_a_stopped_demo_ends_its_processes_and_removes_its_folder(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "api.commands.demo"),
        cwd=ROOT,
        env=environment(tmp_path, {"TMPDIR": str(tmp_path)}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # A test run in the background of a shell inherits a SIGINT that is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(2 * COMMAND_S):
            # By then `up`, its Temporal server and both MCP servers run.
            while b"ready after" not in await process.stdout.readline():
                assert process.returncode is None
            assert processes_in(tmp_path)
            process.send_signal(signal.SIGINT)
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 130
    assert processes_in(tmp_path) == []
    assert left_in(tmp_path) == []


def left_in(folder: Path) -> list[str]:
    """Return the names of what stands in a folder."""
    return [path.name for path in folder.iterdir()]


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of all processes whose environment or arguments name the folder."""
    wanted = str(folder).encode()
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if wanted in told:
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found
