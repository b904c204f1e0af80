"""Let running rounds finish before a server ends, and say what it waits for."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from api.commands.serving import Stopping
from governance.codes import InvocationStatus, RoundState
from models.database import Database, DatabaseError, ReadSession
from models.invocation import ToolInvocation
from models.round import Round, RoundCall
from models.send import ToolSend

LOOK_EVERY_S = 0.2
"""How often the running rounds are looked at."""

DESCRIBE_TIMEOUT = timedelta(seconds=1)
"""The engine is on this machine, or it is not worth waiting for."""

MOST_ROUNDS = 500
"""Rounds waited for; more than this many do not end within a drain anyway."""

SHOWN_ROUNDS = 5
"""Rounds named in the line that says what is waited for."""


@dataclass(frozen=True)
class OpenRound:
    """A round that has not ended, and the tools that it is running now."""

    id: str
    workflow_id: str
    tools: tuple[str, ...]

    def __str__(self) -> str:
        """Name the round and what it runs."""
        return f"round {self.id} ({', '.join(self.tools) or 'between two stages'})"


def load_open_rounds(session: ReadSession, worker: str | None = None) -> tuple[OpenRound, ...]:
    """Return the rounds under way, oldest first; with `worker`, those with a call that runs there."""
    rounds = session.execute(
        select(Round.id, Round.workflow_id)
        .where(Round.state.in_((RoundState.REQUESTED, RoundState.RUNNING)))
        .order_by(Round.created_at)
        .limit(MOST_ROUNDS)
    ).all()
    running = (
        select(RoundCall.round_id, RoundCall.tool_name)
        .join(ToolInvocation, ToolInvocation.id == RoundCall.invocation_id)
        .where(ToolInvocation.status == InvocationStatus.RUNNING)
        .order_by(RoundCall.position)
    )
    if worker is not None:
        sends = select(ToolSend.invocation_id).where(ToolSend.worker == worker)
        running = running.where(ToolInvocation.id.in_(sends))
    tools: dict[str, list[str]] = {}
    for round_id, tool in session.execute(running):
        tools.setdefault(round_id, []).append(tool)
    return tuple(
        OpenRound(row.id, row.workflow_id, tuple(tools.get(row.id, ())))
        for row in rounds
        if worker is None or row.id in tools
    )


class Drain:
    """Waits for the rounds that are under way when it begins; later ones are left to others.

    With `worker`, the identity of this process's worker, it waits for the calls that run there alone: the
    rounds of a cluster go on at its other workers.
    """

    def __init__(
        self, database: Database, client: Client, say: Callable[[str], None], worker: str | None = None
    ) -> None:
        self._database = database
        self._client = client
        self._say = say
        self._worker = worker

    async def wait(self, stopping: Stopping, patience_s: float) -> None:
        """Wait until every round has ended, `patience_s` have passed or the end is urgent; tells which."""
        waited_for = await self._live_rounds()
        if not waited_for:
            return
        self._say(
            f"Stopping. Waiting up to {patience_s:g} s for {_named(waited_for)}. Ctrl-C again stops at once."
        )
        urgent = asyncio.create_task(stopping.urgent.wait())
        ended = asyncio.create_task(self._all_ended({round_.id for round_ in waited_for}))
        await asyncio.wait({urgent, ended}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        done = ended.done()
        for task in (urgent, ended):
            task.cancel()
        await asyncio.gather(urgent, ended, return_exceptions=True)
        if not done:
            left = await self._still_open({round_.id for round_ in waited_for})
            self._say(
                f"Not waiting any longer for {_named(left)}. What was sent and not answered has an unknown"
                " outcome; what was not sent goes on at the next start."
            )

    async def _live_rounds(self) -> list[OpenRound]:
        """Return the open rounds that can end: not those whose workflow the engine does not have any more."""
        rounds = await self._open_rounds()
        live = await asyncio.gather(*(self._runs(round_.workflow_id) for round_ in rounds))
        return [round_ for round_, runs in zip(rounds, live, strict=True) if runs]

    async def _runs(self, workflow_id: str) -> bool:
        try:
            handle = self._client.get_workflow_handle(workflow_id)
            description = await handle.describe(rpc_timeout=DESCRIBE_TIMEOUT)
        except RPCError:
            return False
        return description.status is WorkflowExecutionStatus.RUNNING

    async def _all_ended(self, ids: set[str]) -> None:
        while await self._still_open(ids):  # noqa: ASYNC110 - The database calls nobody.
            await asyncio.sleep(LOOK_EVERY_S)

    async def _still_open(self, ids: set[str]) -> list[OpenRound]:
        return [round_ for round_ in await self._open_rounds() if round_.id in ids]

    async def _open_rounds(self) -> tuple[OpenRound, ...]:
        try:
            return await self._database.read(load_open_rounds, self._worker)
        except DatabaseError:
            # A database that is away now tells nothing about what runs: there is nothing to wait for by name.
            return ()


def _named(rounds: Iterable[OpenRound]) -> str:
    named = [str(round_) for round_ in rounds]
    rest = f" and {len(named) - SHOWN_ROUNDS} more" if len(named) > SHOWN_ROUNDS else ""
    return ", ".join(named[:SHOWN_ROUNDS]) + rest
