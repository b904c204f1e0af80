"""`sluicegate serve`: the API against a Temporal server and a database that run elsewhere."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

import typer
from temporalio.client import Client

from api.commands.draining import Drain
from api.commands.engine_check import connect_later, connect_now, knows_search_attributes
from api.commands.failures import CommandFailed
from api.commands.option_groups import with_groups
from api.commands.process_edge import load_settings, refusals, run_process
from api.commands.service import Service, admin_token_of, say
from api.commands.serving import Stopping, bind, url_of
from api.deps import APIDeps
from models.database import Database
from models.key import hash_secret
from models.migration import is_current
from settings import Settings
from worker import WorkerParts, database_of, running_worker, vault_of

app = typer.Typer()

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    """What the API listens on; everything else comes from the environment, see settings.py."""

    host: Annotated[str, typer.Option(envvar="SLUICEGATE_HOST", help="The address to listen on.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int,
        typer.Option(
            envvar="SLUICEGATE_PORT", min=0, max=65535, help="The port to listen on; 0 takes a free one."
        ),
    ] = 8080
    with_worker: Annotated[bool, typer.Option("--with-worker", help="Run a worker in this process too.")] = (
        False
    )
    drain: Annotated[
        float,
        typer.Option(envvar="SLUICEGATE_DRAIN_S", min=0, help="Seconds that requests get to end in."),
    ] = 20.0
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning"


@app.command()
@with_groups
def serve(options: ServeOptions) -> None:
    """Run the API against a Temporal server and a database; any number of these share them.

    The database must have been brought up to date with `sluicegate migrate`.
    """
    run_process(run_serve(options), options.log_level)


async def run_serve(
    options: ServeOptions, open_database: Callable[[Settings], Database] = database_of
) -> None:
    """Run until the process is told to stop.

    Raises:
        CommandFailed: the port or the database cannot be used, or, for the worker, the Temporal server.
    """
    stopping = Stopping()
    settings = load_settings(host=options.host, port=options.port, drain_s=options.drain)
    async with AsyncExitStack() as stack:
        stack.enter_context(refusals(settings))
        listener = stack.enter_context(bind(options.host, options.port))
        database = await stack.enter_async_context(open_database(settings))
        await _require_current(database)
        vault = vault_of(settings)
        client = await (connect_now(settings) if options.with_worker else connect_later(settings))
        drain: Drain | None = None
        if options.with_worker:
            parts = WorkerParts(settings.model_copy(update={"drain_s": 0.0}), database, vault, client)
            worker = await stack.enter_async_context(running_worker(parts))
            drain = Drain(database, client, say, str(dict(worker.config())["identity"]))
        deps = APIDeps(
            settings,
            database,
            vault,
            hash_secret(admin_token_of(settings)),
            client,
            search_attributes=await _check_engine(client, settings),
            eager_start=options.with_worker,
        )
        service = Service(deps, listener, stopping, drain)
        await service.run(lambda: say(f"Sluicegate serves {url_of(listener)} (docs: /docs)"), None)
        say("Stopped.")


async def _require_current(database: Database) -> None:
    if not await asyncio.to_thread(is_current, database):
        raise CommandFailed("the database does not have this release's schema: run `sluicegate migrate`")


async def _check_engine(client: Client, settings: Settings) -> bool:
    known = await knows_search_attributes(client)
    if known is None:
        logger.warning(
            "The Temporal server at %s does not answer yet; rounds are refused until it does.",
            settings.temporal_address,
        )
    if known is False:
        logger.warning(
            "The Temporal namespace %s lacks our search attributes, so rounds start without them;"
            " `sluicegate migrate` registers them.",
            settings.temporal_namespace,
        )
    return known is not False
