"""Draw a round as bars over time: one line a call, stage by stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from api.commands.output import print_line, print_table

BAR_WIDTH = 48
"""Characters from the start of the first call to the end of the last one."""


@dataclass(frozen=True)
class Span:
    """When a call ran; seconds since the first call of its round began."""

    call_id: str
    tool: str
    stage: int
    begin_s: float
    end_s: float


def spans_of(results: Sequence[dict[str, Any]]) -> list[Span]:
    """Return when each call ran, in the order of stages; without those that did not run, or still run."""
    ran = [one for one in results if one["stage"] is not None and one["started_at"] and one["finished_at"]]
    if not ran:
        return []
    zero = min(datetime.fromisoformat(one["started_at"]) for one in ran)
    spans = [
        Span(
            one["tool_call_id"],
            one["tool"],
            one["stage"],
            (datetime.fromisoformat(one["started_at"]) - zero).total_seconds(),
            (datetime.fromisoformat(one["finished_at"]) - zero).total_seconds(),
        )
        for one in ran
    ]
    return sorted(spans, key=lambda span: (span.stage, span.begin_s))


def barrier_breaches(spans: Sequence[Span]) -> list[str]:
    """Name each stage that began before every call of the stage before it had ended; [] when none did."""
    breaches: list[str] = []
    for stage in sorted({span.stage for span in spans})[1:]:
        before = max(span.end_s for span in spans if span.stage < stage)
        begin = min(span.begin_s for span in spans if span.stage == stage)
        if begin < before:
            breaches.append(
                f"stage {stage + 1} began at {begin:.3f} s, and the stage before it ended at {before:.3f} s"
            )
    return breaches


def print_timeline(results: Sequence[dict[str, Any]]) -> None:
    """Print the bars; nothing when no call has run."""
    spans = spans_of(results)
    if not spans:
        return
    total = max(span.end_s for span in spans) or 1.0
    rows = [
        (
            span.stage + 1,
            span.call_id,
            span.tool,
            _bar(span, total),
            f"{span.begin_s:.3f}",
            f"{span.end_s:.3f}",
        )
        for span in spans
    ]
    print_line("")
    print_table(("stage", "call", "tool", "time →", "from s", "to s"), rows, empty="")


def _bar(span: Span, total_s: float) -> str:
    begin = min(round(span.begin_s / total_s * BAR_WIDTH), BAR_WIDTH - 1)
    length = max(1, round((span.end_s - span.begin_s) / total_s * BAR_WIDTH))
    return "·" * begin + "█" * min(length, BAR_WIDTH - begin) + "·" * max(0, BAR_WIDTH - begin - length)
