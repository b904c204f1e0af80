"""The outer edge of the commands that are servers: known failures become sentences, and the process ends."""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from api.commands.data_files import find_server
from api.commands.failures import REFUSED, CommandFailed, UsageFailed
from api.data_dir import DataDirInUse, DataDirUnusable
from api.embedded import EmbeddedServerError
from api.processes import PortTaken, command_of
from models.database import DatabaseError
from models.vault import VaultError
from settings import Settings

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"

logger = logging.getLogger(__name__)


def run_process(main: Coroutine[Any, Any, None], log_level: str) -> NoReturn:
    """Run an entry point to its end, and end the process with its exit status.

    By then everything is closed. The interpreter's own exit is left out: the threads of Temporal's SDK crash
    it in one of ten runs.
    """
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT)
    status = 0
    try:
        asyncio.run(main)
    except CommandFailed as failed:
        sys.stderr.write(f"error: {failed}\n")
        status = failed.status
    except KeyboardInterrupt:
        status = 130
    except Exception:
        # The edge of the process: what nobody expected is logged whole, and the end is orderly all the same.
        logger.exception("the process ended by an error that nobody expected")
        status = REFUSED
    end_now(status)


def end_now(status: int) -> NoReturn:
    """End the process at this instant; what was written arrives."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def refusals(settings: Settings) -> Generator[None]:
    """Say what was in the way of a server in a sentence that names it and what to do.

    Raises:
        CommandFailed: instead of each failure that an operator can do something about.
    """
    try:
        yield
    except DataDirInUse as exc:
        server = find_server(exc.path)
        raise CommandFailed(f"{exc}\nit serves {server.url}" if server else str(exc)) from exc
    except (PortTaken, DataDirUnusable, EmbeddedServerError, VaultError) as exc:
        raise CommandFailed(str(exc)) from exc
    except (DatabaseError, OperationalError) as exc:
        raise CommandFailed(_database_sentence(exc, settings)) from exc


def load_settings(**given: Any) -> Settings:
    """Read the settings, some of them given on the command line.

    Raises:
        UsageFailed: a variable of the environment has a value that its setting cannot have.
    """
    try:
        return Settings(**given)
    except ValidationError as exc:
        # The value stays out: it may be a secret.
        wrong = "; ".join(f"SLUICEGATE_{str(e['loc'][0]).upper()}: {e['msg']}" for e in exc.errors())
        raise UsageFailed(f"the settings cannot be used: {wrong}") from exc


def _database_sentence(exc: Exception, settings: Settings) -> str:
    url = make_url(settings.resolved_database_url())
    name = f"the database {url.render_as_string(hide_password=True)!r}"
    reason = str(getattr(exc, "orig", None) or exc).strip()
    if "locked" not in reason.lower():
        return f"{name} cannot be used: {reason}"
    holders = holders_of(Path(url.database or "").resolve())
    named = ", ".join(f"process {pid} ({command_of(pid) or 'command not readable'})" for pid in holders)
    return (
        f"{name} is locked by {named or 'another process'}: end that process, or wait for it, and try again"
    )


def holders_of(path: Path) -> list[int]:
    """Tell the pids of other processes that have a file open, as far as they can be seen."""
    holders: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        # Processes end while they are looked at, and those of other users cannot be looked at.
        with suppress(OSError):
            if any(fd.readlink() == path for fd in (process / "fd").iterdir()):
                holders.add(int(process.name))
    return sorted(holders - {os.getpid()})
