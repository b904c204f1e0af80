"""A worker whose process kills itself at a named point of the ledger: python -m tests.crash.worker_entry.

The production worker, with a database whose transactions look whether they are the point at which to die:
CRASH_ARM names a file that holds the point's name; who dies there takes the file away first. With CRASH_FAULT
the worker forgets what was sent before, which is what the suite must be able to notice.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import update

from activities.finalizing import finalize
from activities.freezing import freeze
from activities.ledger import mark_call_sent, settle_call
from activities.opening import open_call
from models.database import Database, WriteSession
from models.send import ToolSend
from settings import Settings
from worker import WorkerParts, connect, running_worker, vault_of

BEFORE: dict[Callable[..., Any], str] = {
    freeze: "before_freeze",
    mark_call_sent: "before_send",
    settle_call: "before_settle",
}
"""Points just before a transaction begins."""

AFTER: dict[Callable[..., Any], str] = {
    freeze: "after_freeze",
    open_call: "after_open",
    mark_call_sent: "after_send",
    settle_call: "after_settle",
}
"""Points just after a transaction has committed."""

DURING: dict[Callable[..., Any], str] = {finalize: "during_finalize"}
"""Points between the work of a transaction and its commit."""


class MortalDatabase(Database):
    """A database that ends its process at the armed point."""

    arm: Path
    faulty: bool

    async def write(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        self.die_at(BEFORE.get(work))
        result = await super().write(self.mortal(work), *args, **kwargs)
        self.die_at(AFTER.get(work))
        return result

    def mortal(self, work: Any) -> Any:
        def transaction(session: WriteSession, *args: Any, **kwargs: Any) -> Any:
            if self.faulty and work is open_call:
                session.execute(update(ToolSend).values(sent_at=None, cursor=None))
            result = work(session, *args, **kwargs)
            self.die_at(DURING.get(work))
            return result

        return transaction

    def die_at(self, point: str | None) -> None:
        if point is None:
            return
        try:
            armed = self.arm.read_text()
        except FileNotFoundError:
            return
        if armed == point:
            self.arm.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)


async def run(settings: Settings) -> None:
    database = MortalDatabase(settings.resolved_database_url(), busy_timeout_ms=10_000)
    database.arm = Path(os.environ["CRASH_ARM"])
    database.faulty = "CRASH_FAULT" in os.environ
    parts = WorkerParts(settings, database, vault_of(settings), await connect(settings))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    async with running_worker(parts):
        print("ready", flush=True)  # noqa: T201 - The parent waits for it.
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(Settings()))
