"""The least that the engine can do for a round: one workflow, one activity, nothing in either."""

from datetime import timedelta

from temporalio import activity, workflow


@activity.defn
async def do_nothing() -> None:
    """Return at once."""


@workflow.defn
class NoopRound:
    """Runs one activity that does nothing."""

    @workflow.run
    async def run(self) -> None:
        """Wait for the activity."""
        await workflow.execute_activity(do_nothing, start_to_close_timeout=timedelta(seconds=10))
