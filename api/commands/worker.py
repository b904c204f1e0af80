"""`sluicegate worker`: the same as `python worker.py`, with a sentence where that shows a traceback."""

import typer

import worker as entry_point
from api.commands.engine_check import connect_now
from api.commands.process_edge import load_settings, refusals, run_process
from settings import Settings

app = typer.Typer()


@app.command()
def worker() -> None:
    """Run a worker against a Temporal server and a database; any number of these share them."""
    run_process(run_worker(load_settings()), "info")


async def run_worker(settings: Settings) -> None:
    """Run until the process is told to stop.

    Raises:
        CommandFailed: the database cannot be used.
        ServerNotReachable: the Temporal server does not answer.
    """
    with refusals(settings):
        await connect_now(settings)
        await entry_point.run(settings)
