"""Where the time of a governed call goes, read from the times that the ledger keeps of each call."""

from datetime import datetime
from pathlib import Path

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from benchmarks.row import Row, percentile
from models.invocation import ToolInvocation
from models.round import Round
from models.send import ToolSend

STEPS = (
    "stored, then started and frozen",
    "frozen, then dispatched and opened",
    "opened, then about to send",
    "sent, then answered and settled",
    "settled, then finalized",
)
"""The steps between the six times of a call."""


def timeline_rows(database: Path, newest: int) -> list[Row]:
    """Return the median milliseconds of each step over the newest rounds of one call."""
    engine = create_engine(f"sqlite:///file:{database}?mode=ro&uri=true")
    with Session(engine) as session:
        found = session.execute(
            select(
                Round.created_at,
                Round.started_at,
                ToolInvocation.started_at,
                ToolSend.sent_at,
                ToolInvocation.finished_at,
                Round.finished_at,
            )
            .join(ToolInvocation, ToolInvocation.round_id == Round.id)
            .join(ToolSend, ToolSend.invocation_id == ToolInvocation.id)
            .where(Round.call_count == 1)
            .order_by(Round.id.desc())
            .limit(newest)
        ).all()
    engine.dispose()
    whole = [tuple(times) for times in found if None not in times]
    return [
        Row(f"  of it: {name}", percentile([_gap(times, step) for times in whole], 0.5), "ms")
        for step, name in enumerate(STEPS)
    ]


def _gap(times: tuple[datetime | None, ...], step: int) -> float:
    first, second = times[step], times[step + 1]
    if first is None or second is None:
        raise ValueError("A call of the timeline has not ended.")
    return (second - first).total_seconds() * 1000
