"""`sluicegate reconcile`: repair at once what crashes left behind, as the schedule does twice a minute."""

from dataclasses import asdict
from datetime import timedelta

import typer
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from activities.reconciling import ReconcileReport, ReconcileRequest
from api.commands.engine_check import connect_now
from api.commands.failures import CommandFailed
from api.commands.process_edge import load_settings, refusals, run_process
from api.commands.service import say
from settings import Settings
from workflows.messages import RECONCILE

RUN_TIMEOUT = timedelta(minutes=2)
"""One run takes seconds; a longer wait means that no worker takes it."""

app = typer.Typer()


@app.command()
def reconcile() -> None:
    """Start, end and settle what a crash left between the database and the engine; safe at any time.

    Needed by hand only where the cluster forbids the schedule that does it twice a minute.
    """
    run_process(run_reconcile(load_settings()), "warning")


async def run_reconcile(settings: Settings) -> None:
    """Have a worker run the reconciler once, and say what it repaired.

    Raises:
        ServerNotReachable: the Temporal server does not answer.
        CommandFailed: no worker took it, or it failed.
    """
    with refusals(settings):
        report = await _run_once(await connect_now(settings), settings.task_queue)
    counts = {name: count for name, count in asdict(report).items() if count}
    say(
        "Repaired: "
        + (", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing needed it.")
    )


async def _run_once(client: Client, task_queue: str) -> ReconcileReport:
    try:
        report: ReconcileReport = await client.execute_workflow(
            RECONCILE,
            ReconcileRequest(),
            id="reconcile-by-hand",
            task_queue=task_queue,
            result_type=ReconcileReport,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            execution_timeout=RUN_TIMEOUT,
        )
    except (WorkflowFailureError, RPCError) as exc:
        raise CommandFailed(
            f"the reconciler did not run to its end; does a worker poll task queue {task_queue!r}? ({exc})"
        ) from exc
    return report
