"""`sluicegate reconcile`: repair what crashes left behind, now, and say what was repaired."""

from typing import Annotated

import typer

from api.commands.option_groups import with_groups
from api.commands.output import print_facts, print_json, print_line
from api.commands.server import Admin

COUNTS = {
    "started": "Rounds started",
    "finalized": "Rounds ended",
    "woken": "Waiting rounds told",
    "canceled": "Cancels told again",
    "retried": "Retries started",
    "settled": "Retries settled",
    "unreachable": "Not looked into",
    "failed": "Repairs that failed",
}
"""What each count of a report is called."""

app = typer.Typer()


@app.command()
@with_groups
def reconcile(
    admin: Admin,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that something may take before it is looked into.")
    ] = 10.0,
) -> None:
    """Repair rounds without a workflow, ends not written and words not delivered; the server does so too."""
    with admin.server() as server:
        answer = server.send("POST", f"/api/v1/reconcile?grace_s={grace:g}").json()
    if admin.as_json:
        print_json(answer)
    elif answer["state"] == "running":
        print_line("The reconciliation goes on; the audit trail tells what it repairs.")
    else:
        print_facts([(name, answer[key]) for key, name in COUNTS.items()])
