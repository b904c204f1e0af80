"""What the demo claims of a round, checked on what the API and the MCP servers' own counters say."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.commands.timeline import Span, barrier_breaches, spans_of

BUILT_IN: Mapping[str, tuple[str, str | None]] = {
    "call_1": ("succeeded", None),
    "call_2": ("succeeded", None),
    "call_3": ("refused", "tool_not_allowed"),
    "call_4": ("succeeded", None),
    "call_5": ("refused", "invalid_arguments"),
    "call_6": ("failed", "tool_result_error"),
    "call_7": ("refused", "tool_not_found"),
}
"""Status and error code of each of the built-in calls."""


@dataclass(frozen=True)
class Claim:
    """A sentence, and what speaks against it; nothing does when `faults` is empty."""

    sentence: str
    faults: Sequence[str]


def claims_of_round(call_ids: Sequence[str], found: dict[str, Any], runs: Counter[str]) -> list[Claim]:
    """Check what holds for any calls: `found` is the round, `runs` how often each tool ran."""
    results: list[dict[str, Any]] = found["results"]
    state = found["state"]
    messages: list[dict[str, Any]] = found["messages"] or []
    answered = [message["tool_call_id"] for message in messages]
    spans = spans_of(results)
    stages = len({span.stage for span in spans})
    barrier = f"the barrier held: of {stages} stages, each began after every call of the one before had ended"
    executed = Counter[str](one["tool"] for one in results if one["invocation_id"] is not None)
    return [
        Claim("the round completed", [] if state == "completed" else [f"its state is {state}"]),
        Claim(
            f"one tool message for each of the {len(call_ids)} calls, in the model's order",
            [] if answered == list(call_ids) else [f"the messages answer {answered}"],
        ),
        # With one stage there is nothing that could have begun too early.
        *([Claim(barrier, barrier_breaches(spans))] if stages > 1 else []),
        Claim(
            "no tool ran more often than it was admitted, by the servers' own counters",
            [f"{tool} ran {runs[tool]} times for {executed[tool]} calls" for tool in runs - executed],
        ),
    ]


def claims_of_built_in(found: dict[str, Any], runs: Counter[str]) -> list[Claim]:
    """Check what holds for the seven built-in calls."""
    results: list[dict[str, Any]] = found["results"]
    actual = {one["tool_call_id"]: (one["status"], one["error"] and one["error"]["code"]) for one in results}
    executed = Counter[str](one["tool"] for one in results if one["invocation_id"] is not None)
    first = [span for span in spans_of(results) if span.stage == 0]
    return [
        Claim(
            "three calls succeeded, one failed and said why, three were refused for three reasons",
            [f"{one} is {actual.get(one)}" for one, wanted in BUILT_IN.items() if actual.get(one) != wanted],
        ),
        Claim(
            "every admitted call ran once and no refused one did, by the servers' own counters",
            [] if executed == runs else [f"admitted {dict(executed)}, ran {dict(runs)}"],
        ),
        Claim("parallel-safe calls ran at the same time", _overlap_faults(first)),
    ]


def claims_of_repeat(
    first: dict[str, Any], again: dict[str, Any], runs: Counter[str], runs_after: Counter[str]
) -> list[Claim]:
    """Check that sending a round again under its key changed nothing."""
    return [
        Claim(
            "the same Idempotency-Key gives the same round and the same results",
            [] if again == first else ["the two answers differ"],
        ),
        Claim(
            "no tool ran again, by the servers' own counters",
            [] if runs == runs_after else [f"they went from {dict(runs)} to {dict(runs_after)}"],
        ),
    ]


def _overlap_faults(spans: Sequence[Span]) -> list[str]:
    if len(spans) < 2:
        return ["the first stage has fewer than two calls"]
    last_begin, first_end = max(span.begin_s for span in spans), min(span.end_s for span in spans)
    return [] if last_begin < first_end else ["the calls of the first stage ran one after another"]
