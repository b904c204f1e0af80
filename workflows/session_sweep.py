"""The workflow that ends unused MCP sessions; a schedule runs it every half minute."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from activities.session_sweep import SessionSweeper, SweepReport
from workflows.messages import SESSION_SWEEP

SWEEP_TIMEOUT = timedelta(minutes=2)
"""A hundred servers of which none answers, ten at a time: each farewell may take five seconds."""

SWEEP_RETRY = RetryPolicy(maximum_attempts=2, initial_interval=timedelta(seconds=2))
"""For a database that is away; the next run of the schedule tries again."""


@workflow.defn(name=SESSION_SWEEP)
class SessionSweep:
    """Runs the sweep once."""

    @workflow.run
    async def run(self) -> SweepReport:
        """End unused sessions and report."""
        return await workflow.execute_activity_method(
            SessionSweeper.sweep_sessions,
            start_to_close_timeout=SWEEP_TIMEOUT,
            retry_policy=SWEEP_RETRY,
        )
