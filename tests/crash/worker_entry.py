"""A worker at whose named points something dies: python -m tests.crash.worker_entry.

It is the production worker on a database of `tests.crash.dying`. While the file CRASH_FAULT names exists, the
worker forgets what was sent before, which is what the suite must be able to notice.
"""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from sqlalchemy import select, update

from activities.finalizing import finalize
from activities.freezing import freeze
from activities.ledger import mark_call_sent, settle_call
from activities.opening import open_call
from models.database import WriteSession
from models.invocation import ToolInvocation
from models.send import ToolSend
from settings import Settings
from tests.crash.dying import MortalDatabase, Points
from worker import WorkerParts, connect, running_worker, vault_of

POINTS = Points(
    before={
        freeze: "before_freeze",
        mark_call_sent: "before_send",
        settle_call: "before_settle",
        finalize: "before_finalize",
    },
    during={finalize: "during_finalize"},
    after={
        freeze: "after_freeze",
        open_call: "after_open",
        mark_call_sent: "after_send",
        settle_call: "after_settle",
    },
)


class ForgetfulDatabase(MortalDatabase):
    """A database in which the sends of a call can be made to look as if they had never left."""

    def prepare(self, session: WriteSession, work: Any, arguments: tuple[Any, ...]) -> None:
        if work is open_call and Path(os.environ["CRASH_FAULT"]).exists():
            mine = select(ToolInvocation.id).where(ToolInvocation.round_id == arguments[0].round_id)
            session.execute(
                update(ToolSend)
                .where(ToolSend.invocation_id.in_(mine))
                .values(sent_at=None, cursor=None)
                .execution_options(synchronize_session=False)
            )


async def run(settings: Settings) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    database = ForgetfulDatabase(settings, POINTS)
    parts = WorkerParts(settings, database, vault_of(settings), await connect(settings))
    async with running_worker(parts):
        print("ready", flush=True)  # noqa: T201 - The parent waits for it.
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(Settings()))
