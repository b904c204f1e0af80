"""`sluicegate status`: where the server of a data folder is."""

import time
from typing import Annotated

import httpx
import typer

from api.commands.data_files import RunningServer, find_server
from api.commands.failures import ServerNotReachable
from api.commands.option_groups import with_groups
from api.commands.output import print_facts, print_json
from api.commands.server import Place

LOOK_EVERY_S = 0.1

app = typer.Typer()


@app.command()
@with_groups
def status(
    place: Place,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a server that is starting.")] = 0.0,
) -> None:
    """Show where the server of this data folder is, and whether it is ready for work."""
    folder = place.data_dir.expanduser().resolve()
    deadline = time.monotonic() + wait
    while True:
        server = find_server(folder)
        problem = _problem_of(server)
        if problem is None or time.monotonic() >= deadline:
            break
        time.sleep(LOOK_EVERY_S)
    if server is None or problem is not None:
        raise ServerNotReachable(
            f"the data folder {str(folder)!r}: {problem}; `sluicegate up` starts a server"
        )
    if place.as_json:
        print_json(server.to_json())
        return
    print_facts(
        [
            ("Process", server.process.pid),
            ("API", server.url),
            ("API docs", f"{server.url}/docs"),
            ("Temporal UI", server.temporal_ui_url),
            ("Temporal", server.temporal_address),
        ]
    )


def _problem_of(server: RunningServer | None) -> str | None:
    if server is None:
        return "no server runs on it"
    try:
        answer = httpx.get(f"{server.url}/readyz", timeout=5.0, trust_env=False)
    except httpx.TransportError as exc:
        return f"the server at {server.url} does not answer ({exc or type(exc).__name__})"
    return None if answer.is_success else f"the server at {server.url} is not ready: {answer.text}"
