"""`sluicegate migrate`: the database's schema and Temporal's search attributes."""

import asyncio
from typing import Annotated

import typer
from temporalio.service import RPCError

from api.commands.engine_check import connect_now
from api.commands.failures import ServerNotReachable
from api.commands.process_edge import load_settings, refusals, run_process
from api.commands.service import say
from api.search_attributes import SearchAttributeConflict, register_search_attributes
from models.migration import migrate as upgrade
from settings import Settings
from worker import database_of

app = typer.Typer()


@app.command()
def migrate(
    *,
    schema_only: Annotated[
        bool, typer.Option("--schema-only", help="Leave the Temporal server alone.")
    ] = False,
) -> None:
    """Bring the database to this release's schema and register the search attributes; safe to repeat.

    A cluster that forbids the registration is a warning: rounds then start without search attributes.
    """
    run_process(run_migrate(load_settings(), schema_only=schema_only), "warning")


async def run_migrate(settings: Settings, *, schema_only: bool) -> None:
    """Do both, or the first.

    Raises:
        CommandFailed: the database cannot be used.
        ServerNotReachable: the Temporal server does not answer; the schema is up to date by then.
    """
    if settings.database_url is None:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with refusals(settings):
        async with database_of(settings) as database:
            revision = await asyncio.to_thread(upgrade, database)
        say(f"Schema: up to date at revision {revision}.")
    if schema_only:
        return
    client = await connect_now(settings)
    try:
        added = await register_search_attributes(client)
    except SearchAttributeConflict as exc:
        say(f"Warning: {exc}.")
    except RPCError as exc:
        say(
            "Warning: the Temporal cluster did not take the search attributes, and rounds start without them"
            f" until its operator adds them ({exc.status.name}: {exc.message})."
        )
    except TimeoutError as exc:
        raise ServerNotReachable(
            "the Temporal cluster took the search attributes and cannot use them yet: run this again later"
        ) from exc
    else:
        say(f"Search attributes: {', '.join(added) + ' added' if added else 'all there'}.")
