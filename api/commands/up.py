"""`sluicegate up`: everything in one process, with its data in one folder."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from api.commands.data_files import (
    DEFAULT_DATA_DIR,
    TOKEN_NAME,
    RunningServer,
    find_token,
    remove_record,
    write_record,
)
from api.commands.draining import Drain
from api.commands.first_key import is_new, make_first_key
from api.commands.option_groups import with_groups
from api.commands.process_edge import load_settings, refusals, run_process
from api.commands.service import Service, admin_token_of, say
from api.commands.serving import Stopping, bind, url_of
from api.data_dir import DataDir
from api.deps import APIDeps
from api.embedded import EmbeddedOptions, EmbeddedTemporal
from api.processes import this_process
from models.database import Database
from models.key import hash_secret
from models.migration import migrate
from settings import Settings
from worker import WorkerParts, connect, database_of, running_worker, vault_of

app = typer.Typer()

FREE_PORT_HELP = "0 takes a free one."


@dataclass(frozen=True)
class UpOptions:
    """Where `up` keeps its data and what it listens on."""

    data_dir: Annotated[
        Path, typer.Option(envvar="SLUICEGATE_DATA_DIR", help="Where the data is kept; one `up` a folder.")
    ] = DEFAULT_DATA_DIR
    host: Annotated[str, typer.Option(envvar="SLUICEGATE_HOST", help="The API's address.")] = "127.0.0.1"
    port: Annotated[
        int,
        typer.Option(envvar="SLUICEGATE_PORT", min=0, max=65535, help=f"The API's port; {FREE_PORT_HELP}"),
    ] = 8080
    temporal_port: Annotated[
        int, typer.Option(min=0, max=65535, help=f"The embedded Temporal server's port; {FREE_PORT_HELP}")
    ] = 7233
    ui_port: Annotated[
        int, typer.Option(min=0, max=65535, help=f"The Temporal UI's port; {FREE_PORT_HELP}")
    ] = 8233
    drain: Annotated[
        float,
        typer.Option(
            envvar="SLUICEGATE_DRAIN_S", min=0, help="Seconds that running rounds get to end in when stopped."
        ),
    ] = 20.0
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning"


@dataclass(frozen=True)
class FirstSecrets:
    """What only the first start on a data folder shows."""

    admin_token: str | None
    first_key: str | None


@app.command()
@with_groups
def up(options: UpOptions) -> None:
    """Run everything in one process: embedded Temporal server, SQLite, API and worker.

    The first Ctrl-C lets running rounds finish and says what it waits for; the second settles running calls
    as unknown and stops at once.
    """
    run_process(run_up(options), options.log_level)


async def run_up(options: UpOptions) -> None:
    """Run until the process is told to stop.

    Raises:
        CommandFailed: a port, the data folder, the database or the engine cannot be used; says which and why.
    """
    stopping = Stopping()
    settings = load_settings(
        data_dir=options.data_dir.expanduser().resolve(),
        host=options.host,
        port=options.port,
        drain_s=options.drain,
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(refusals(settings))
        folder = stack.enter_context(DataDir(settings.data_dir)).path
        listener = stack.enter_context(bind(options.host, options.port))
        temporal = await stack.enter_async_context(EmbeddedTemporal(folder, _engine_options(options)))
        addresses = {"temporal_address": temporal.address, "temporal_ui_url": temporal.ui_url}
        settings = settings.model_copy(update=addresses)
        first_start = find_token(folder) is None
        token = admin_token_of(settings)
        database = await stack.enter_async_context(database_of(settings))
        first_key = await _prepare(database, settings)
        vault, client = vault_of(settings), await connect(settings)
        await stack.enter_async_context(
            # Draining has let calls finish by the time the worker stops; what still runs then is given up.
            running_worker(WorkerParts(settings.model_copy(update={"drain_s": 0.0}), database, vault, client))
        )
        deps = APIDeps(settings, database, vault, hash_secret(token), client)
        place = RunningServer(
            this_process(), url_of(listener), temporal.address, temporal.ui_url, str(folder)
        )
        stack.callback(remove_record, folder)
        service = Service(deps, listener, stopping, Drain(database, client, say))
        secrets = FirstSecrets(token if first_start else None, first_key)
        await service.run(lambda: _announce(place, secrets), _end_of(temporal))
        say("Stopped.")


def _engine_options(options: UpOptions) -> EmbeddedOptions:
    return EmbeddedOptions(port=options.temporal_port or None, ui=True, ui_port=options.ui_port or None)


async def _prepare(database: Database, settings: Settings) -> str | None:
    """Bring the database up to date; return the first key's secret if it was new."""
    new = await asyncio.to_thread(is_new, database)
    await asyncio.to_thread(migrate, database)
    return await database.write(make_first_key, settings.key_prefix) if new else None


async def _end_of(temporal: EmbeddedTemporal) -> str:
    status = await temporal.wait()
    return (
        f"the embedded Temporal server ended by itself with status {status};"
        f" its log is {str(temporal.log_path)!r} and ends:\n{temporal.log_tail()}"
    )


def _announce(place: RunningServer, secrets: FirstSecrets) -> None:
    write_record(place)
    lines = [
        f"Sluicegate is up: process {place.process.pid}, data in {place.data_dir}",
        f"  API          {place.url}",
        f"  API docs     {place.url}/docs",
        f"  Console      {place.url}/console",
        f"  Temporal UI  {place.temporal_ui_url}",
        f"  Temporal     {place.temporal_address}",
    ]
    if secrets.admin_token is not None:
        kept = Path(place.data_dir) / TOKEN_NAME
        lines.append(f"  Admin token  {secrets.admin_token}  (kept in {kept}; the commands find it there)")
    if secrets.first_key is not None:
        lines.append(f"  First key    {secrets.first_key}  (shown this once; its name is 'first')")
    say("\n".join([*lines, "Ctrl-C stops it."]))
