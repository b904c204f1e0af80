"""The workflow that repairs what crashes left behind; a schedule runs it every half minute."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from activities.reconciling import Reconciler, ReconcileReport, ReconcileRequest
from workflows.messages import RECONCILE

RECONCILE_TIMEOUT = timedelta(minutes=5)
"""One run looks at thousands of rounds; the schedule skips runs while one goes on."""

RECONCILE_RETRY = RetryPolicy(maximum_attempts=3, initial_interval=timedelta(seconds=2))
"""For a database that is away; the next run of the schedule tries again."""


@workflow.defn(name=RECONCILE)
class Reconcile:
    """Runs the reconciler once."""

    @workflow.run
    async def run(self, request: ReconcileRequest) -> ReconcileReport:
        """Repair and report."""
        return await workflow.execute_activity_method(
            Reconciler.reconcile,
            request,
            start_to_close_timeout=RECONCILE_TIMEOUT,
            retry_policy=RECONCILE_RETRY,
        )
