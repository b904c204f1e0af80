"""The one governed wrapper around every tool call: ledger, runner, result, audit; the only way to a tool."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import Heartbeat
from activities.ledger import (
    MAX_SENDS,
    CallOutcome,
    CallPlace,
    LeaseLostError,
    OpenCall,
    Owner,
    SettledCall,
    close_unsent,
    mark_call_sent,
    open_another_send,
    open_call,
    save_cursor,
    settle_call,
    unknown_outcome,
)
from activities.runner import RepeatLaterError, Runner
from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import (
    Classification,
    ErrorCode,
    InvocationOutcome,
    InvocationStatus,
    SendOutcome,
)
from governance.tool_cache import ToolCache
from models.base import new_id
from models.database import Database, DatabaseError
from models.invocation import Settlement
from models.tool import SourceKind

NOT_RUN = "NotRun"
"""Failure type: the call surely did not run; Temporal repeats it."""

REPLACED = "ReplacedByAnotherWorker"
"""Failure type: another worker has the call; this attempt ends without a word."""

SETTLE_PATIENCE_S = 60.0
"""How long an answer is held in memory while the database is away, before it is given up as unknown."""

CURSOR_DELAY_S = 0.25
"""A call that is answered sooner needs no stored cursor, which would cost a transaction."""

REPEAT_DELAY_S = 0.2
"""The wait before a repeat where the server named none."""

REPEAT_DELAY_MAX_S = 30.0
"""The longest wait that a server's Retry-After may cause."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CallTool:
    """Which call to make. Arguments are read from the database and never travel through the engine."""

    round_id: str
    position: int
    stage: int


@dataclass(frozen=True)
class CallToolResult:
    """How the call ended, without its content."""

    status: str
    outcome: str
    code: str | None
    result_digest: str | None
    result_bytes: int


class ToolCalls:
    """Holds what calling tools needs: the database, the runners by source kind, and who this worker is."""

    def __init__(
        self, database: Database, tools: ToolCache, runners: Mapping[SourceKind, Runner], worker: str
    ) -> None:
        """Use `runners` for the source kinds they stand under."""
        self._database = database
        self._tools = tools
        self._runners = runners
        self._worker = worker

    @activity.defn(name="call_tool")
    async def call_tool(self, request: CallTool) -> CallToolResult:
        """Make one call, at most once where the tool is unsafe; idempotent by round and activity id."""
        info = activity.info()
        place = CallPlace(request.round_id, request.position, request.stage, info.activity_id)
        owner = Owner(self._worker, new_id())
        opened = await self._database.write(open_call, place, owner, self._tools)
        if isinstance(opened, SettledCall):
            return _result(opened)
        async with Heartbeat(info.heartbeat_timeout) as heartbeat:
            gate = _Gate(self._database, opened, heartbeat)
            try:
                outcome = await self._run(opened, gate)
            except asyncio.CancelledError:
                await asyncio.shield(self._settle_canceled(opened, gate))
                raise
            except RepeatLaterError as error:
                if gate.send_number < MAX_SENDS:
                    raise await self._repeat_later(opened, gate, error) from error
                outcome = error.outcome
            except LeaseLostError as error:
                raise ApplicationError(str(error), type=REPLACED, non_retryable=True) from error
            settled = await asyncio.shield(
                self._patiently(lambda: self._database.write(settle_call, opened, gate.send_id, outcome))
            )
        return _result(settled)

    async def _run(self, call: OpenCall, gate: "_Gate") -> CallOutcome:
        runner = self._runners[SourceKind(call.snapshot.source_kind)]
        try:
            return await runner.run(call, gate)
        finally:
            await gate.close()

    async def _repeat_later(self, call: OpenCall, gate: "_Gate", error: RepeatLaterError) -> ApplicationError:
        """Record that the send did not run; make the failure after which Temporal tries again."""
        await self._database.write(close_unsent, gate.send_id, error.outcome.send_outcome)
        wait_s = min(error.after_s or REPEAT_DELAY_S * 2 ** (gate.send_number - 1), REPEAT_DELAY_MAX_S)
        return ApplicationError(
            f"{call.snapshot.exposed_name} was not run; another attempt follows.",
            type=NOT_RUN,
            next_retry_delay=timedelta(seconds=wait_s),
        )

    async def _settle_canceled(self, call: OpenCall, gate: "_Gate") -> None:
        """Record a cancel truly: what was sent may have run."""
        details = {"tool": call.snapshot.exposed_name, "outcome": "unknown" if gate.is_sent else "not_sent"}
        if gate.is_sent and not gate.tell_upstream_on_cancel():
            outcome = unknown_outcome(call.snapshot, "worker_shutdown")
        else:
            known = InvocationOutcome.UNKNOWN if gate.is_sent else InvocationOutcome.KNOWN
            error = call_error(ErrorCode.CANCELED, details, Classification.RUNTIME)
            outcome = CallOutcome(
                Settlement(InvocationStatus.CANCELED, known, error=error),
                SendOutcome.UNKNOWN if gate.is_sent else SendOutcome.NOT_SENT,
            )
        await self._patiently(lambda: self._database.write(settle_call, call, gate.send_id, outcome))

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a transaction while the database is away: an answer that came must not be lost."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_PATIENCE_S
        pause_s = 0.05
        while True:
            try:
                return await attempt()
            except DatabaseError:
                if loop.time() + pause_s >= deadline:
                    raise
                logger.warning("The database is away while a tool call is settled; trying again.")
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 2.0)


class _Gate:
    """The wrapper's side of one call's sends."""

    def __init__(self, database: Database, call: OpenCall, heartbeat: Heartbeat) -> None:
        self._database = database
        self._call = call
        self._heartbeat = heartbeat
        self._saver: asyncio.Task[None] | None = None
        self._cursor: Mapping[str, JSON] = {}
        self.send_id = call.send_id
        self.send_number = call.send_number
        self.is_sent = False

    async def before_send(self, session_digest: str | None) -> None:
        # Whatever interrupts this transaction, a cancel too, vetoes the send: no byte has left yet.
        await self._database.write(mark_call_sent, self._call, self.send_id, session_digest)
        self.is_sent = True

    async def next_send(self) -> None:
        await self._database.write(close_unsent, self.send_id, SendOutcome.REFUSED)
        self.send_id, self.send_number = await self._database.write(open_another_send, self._call)
        self.is_sent = False

    async def on_cursor(self, cursor: Mapping[str, JSON]) -> None:
        self._heartbeat.details = (dict(cursor),)
        self._cursor = cursor
        if self._saver is None or self._saver.done():
            self._saver = asyncio.create_task(self._save_later())

    async def _save_later(self) -> None:
        await asyncio.sleep(CURSOR_DELAY_S)
        await self._database.write(save_cursor, self.send_id, self._cursor)

    async def close(self) -> None:
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.gather(self._saver, return_exceptions=True)

    def tell_upstream_on_cancel(self) -> bool:
        details = activity.cancellation_details()
        return details is None or not details.worker_shutdown


def _result(settled: SettledCall) -> CallToolResult:
    return CallToolResult(
        status=settled.status.value,
        outcome=settled.outcome.value,
        code=settled.code.value if settled.code else None,
        result_digest=settled.result_digest,
        result_bytes=settled.result_bytes,
    )
