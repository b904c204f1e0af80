"""The one governed wrapper around every tool call: ledger, runner, result, audit; the only way to a tool."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.flights import Flight, Stop
from activities.guardrails import Guardrails, unguarded
from activities.heartbeat import Heartbeat
from activities.ledger import (
    MAX_SENDS,
    CallOutcome,
    CallPlace,
    LeaseLostError,
    OpenCall,
    Owner,
    SettledCall,
    canceled_outcome,
    close_for_repeat,
    hand_over,
    settle_call,
    unknown_outcome,
)
from activities.opening import open_call
from activities.runner import RepeatLaterError, Runner, no_runner, runner_of
from activities.send_gate import LedgerGate
from activities.slots import BUSY, CallBusyError, SlotLeases
from activities.wanted import NotThisCallError
from governance.admission import call_error
from governance.canonical import JSON, is_object
from governance.codes import Classification, ErrorCode, IdempotencyClass, InvocationStatus, SendOutcome
from governance.tool_cache import ToolCache
from models.base import new_id
from models.database import Database, DatabaseError
from models.invocation import RequestMismatchError, Settlement
from models.slot import SLOT_LEASE_S, SlotBusy
from models.tool import SourceKind

NOT_RUN = "NotRun"
"""Failure type: the call did not run, or may run again; Temporal repeats it."""

HANDED_OVER = "HandedOver"
"""Failure type: this worker ends or was paused; another attempt goes on with the call."""

REPLACED = "ReplacedByAnotherWorker"
"""Failure type: another worker has the call; this attempt ends without a word."""

NOT_WANTED = "CallNotWanted"
"""Failure type: nothing in the database says that this call is to be made."""

SETTLE_PATIENCE_S = 60.0
"""How long one attempt holds an answer while the database is away; the next one on this worker goes on."""

REPEAT_DELAY_S = 0.2
"""The wait before a repeat where the server named none."""

REPEAT_DELAY_MAX_S = 30.0
"""The longest wait before a repeat; a server that asks for a longer one is not asked again by this call."""

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
    """How the call ended, without its content; or that it is `busy`: to be started again after `wait_s`."""

    status: str
    outcome: str
    code: str | None
    result_digest: str | None
    result_bytes: int
    wait_s: float = 0.0
    ahead: int = 0
    """Calls before this one in the queue for its connection."""


@dataclass(frozen=True)
class _Ending:
    """What is to be recorded of a call, kept while the database is away."""

    call: OpenCall
    send_id: str
    outcome: CallOutcome


class ToolCalls:
    """Holds what calling tools needs: the database, the runners by source kind, and who this worker is."""

    def __init__(
        self,
        database: Database,
        tools: ToolCache,
        runners: Mapping[SourceKind, Runner],
        worker: str,
        slot_lease_s: float = SLOT_LEASE_S,
        *,
        guardrails: Guardrails | None = None,
    ) -> None:
        """Use `runners` for the source kinds they stand under."""
        self._database = database
        self._tools = tools
        self._runners = runners
        self._worker = worker
        self._guardrails = guardrails
        self._slots = SlotLeases(database, slot_lease_s)
        self._unsettled: dict[str, _Ending] = {}
        self._flights: dict[str, Flight] = {}
        self._gives_up = False

    @activity.defn(name="call_tool")
    async def call_tool(self, request: CallTool) -> CallToolResult:
        """Make one call, at most once where the tool is unsafe; idempotent by round and activity id."""
        info = activity.info()
        place = CallPlace(request.round_id, request.position, request.stage, info.activity_id)
        joined = self._flights.get(place.idempotency_key)
        flight = joined or self._take_off(place, tuple(info.heartbeat_details))
        async with Heartbeat(info.heartbeat_timeout, flight):
            try:
                settled = await flight.land()
            except ApplicationError as error:
                if joined is None or error.type != REPLACED:
                    raise
                # What had lost its lease is the earlier attempt; whether this one may send, the ledger says.
                raise _expected("The attempt before was replaced.", NOT_RUN) from error
            except CallBusyError as busy:
                return CallToolResult(BUSY, "known", None, None, 0, busy.wait_s, busy.ahead)
        if settled.status is InvocationStatus.CANCELED and flight.stop is Stop.WISH:
            raise asyncio.CancelledError
        return _result(settled)

    def give_up(self) -> None:
        """Stop every call of this worker, which ends: another one goes on with what may still be done."""
        self._gives_up = True
        for flight in self._flights.values():
            flight.ask_to_stop(Stop.HAND_OVER)

    def _take_off(self, place: CallPlace, details: tuple[Any, ...]) -> Flight:
        key = place.idempotency_key
        flight = self._flights[key] = Flight(details)
        if self._gives_up:
            flight.ask_to_stop(Stop.HAND_OVER)
        flight.task = asyncio.create_task(self._fly(place, flight))
        flight.task.add_done_callback(lambda _: self._flights.pop(key, None))
        return flight

    async def _fly(self, place: CallPlace, flight: Flight) -> SettledCall:
        """Make the call from its opening to its settlement; nothing interrupts this but the end of all."""
        ending = self._unsettled.get(place.idempotency_key)
        if ending is None:
            opened = await self._open(place, flight.details)
            self._slots.wake(opened.wake)
            if isinstance(opened, SettledCall):
                return opened
            try:
                async with self._slots.held(opened.slot_lease):
                    ending = await self._attempt(opened, flight)
            except LeaseLostError as error:
                raise _replaced(error) from error
        async with self._slots.held(ending.call.slot_lease):
            settled = await self._settle(ending)
        self._slots.wake(settled.wake)
        return settled

    async def _open(self, place: CallPlace, details: Sequence[Any]) -> OpenCall | SettledCall:
        heard = details[0] if details and is_object(details[0]) else None
        owner = Owner(self._worker, new_id(), activity.info().workflow_id or "", self._slots.lease_s)
        try:
            opened = await self._database.write(open_call, place, owner, self._tools, heard)
        except (NotThisCallError, RequestMismatchError) as error:
            raise _expected(str(error), NOT_WANTED, non_retryable=True) from error
        if isinstance(opened, SlotBusy):
            raise CallBusyError(opened.wait_s, opened.ahead)
        return opened

    async def _attempt(self, call: OpenCall, flight: Flight) -> _Ending:
        """Send the call once, or fetch the answer to one that left; say what is to be recorded.

        Raises:
            ApplicationError: another attempt follows.
            LeaseLostError: another worker has the call, or it is terminal.
        """
        gate = LedgerGate(self._database, call, flight)
        try:
            if flight.stop is not None:
                return await self._after_stop(call, gate, flight.stop)
            # The runner may open another send, so which one it was is asked after it has run.
            outcome = await self._run(call, gate, flight)
            return _Ending(call, gate.send_id, outcome)
        except asyncio.CancelledError:
            if flight.stop is None:
                raise
            return await self._after_stop(call, gate, flight.stop)
        except RepeatLaterError as error:
            if flight.stop is not None:
                return await self._after_stop(call, gate, flight.stop)
            return await self._repeat_later(call, gate, error)
        except DatabaseError as error:
            if gate.is_sent:
                raise
            # The ledger could not say yes, so nothing left.
            return await self._repeat_later(call, gate, RepeatLaterError(_not_sent(call), None), cause=error)

    async def _run(self, call: OpenCall, gate: LedgerGate, flight: Flight) -> CallOutcome:
        runner = runner_of(self._runners, call.snapshot.source_kind)
        if runner is None:
            await gate.close()
            return no_runner(call)
        flight.runner = asyncio.create_task(runner.run(call, gate))
        try:
            # Waiting on the task keeps an answer that comes together with a cancel: the answer wins.
            outcome = await flight.runner
        finally:
            await gate.close()
        if not call.guardrails:
            return outcome
        if self._guardrails is None:
            return unguarded(call, outcome)
        return await self._guardrails.judge_answer(call, outcome)

    async def _repeat_later(
        self, call: OpenCall, gate: LedgerGate, error: RepeatLaterError, cause: Exception | None = None
    ) -> _Ending:
        """Let Temporal try again, unless the sends, the round's repeats or the server's wait forbid it."""
        ending = _Ending(call, gate.send_id, error.outcome)
        too_long = error.after_s is not None and error.after_s > REPEAT_DELAY_MAX_S
        if too_long or gate.send_number >= MAX_SENDS:
            return ending
        outcome = error.outcome.send_outcome if gate.is_sent else gate.unsent_outcome
        may_repeat, waiter = await self._patiently(
            lambda: self._database.write(close_for_repeat, call, gate.send_id, outcome)
        )
        self._slots.wake(waiter)
        if not may_repeat:
            return ending
        wait_s = error.after_s or REPEAT_DELAY_S * 2 ** (gate.send_number - 1)
        raise _expected(
            f"{call.snapshot.exposed_name} is to be tried again.",
            NOT_RUN,
            next_retry_delay=timedelta(seconds=wait_s),
        ) from (cause or error)

    async def _after_stop(self, call: OpenCall, gate: LedgerGate, stop: Stop) -> _Ending:
        """Say truly what a stop left behind: what was sent may have run.

        A worker that ends is no wish to cancel: the call goes to another worker, unless it was sent, may
        not be repeated, and its answer cannot be fetched.
        """
        tool = call.snapshot.exposed_name
        if stop is Stop.WISH:
            return _Ending(call, gate.send_id, canceled_outcome(tool, was_sent=gate.is_sent))
        if stop is Stop.OVERDUE:
            overdue = unknown_outcome(tool, "overdue") if gate.is_sent else _not_sent(call)
            return _Ending(call, gate.send_id, overdue)
        unsafe = call.snapshot.idempotency is IdempotencyClass.UNSAFE
        if gate.can_be_resumed:
            await gate.keep_cursor()
        elif gate.is_sent and unsafe:
            return _Ending(call, gate.send_id, unknown_outcome(tool, "worker_shutdown"))
        else:
            outcome = SendOutcome.UNKNOWN if gate.is_sent else gate.unsent_outcome
            self._slots.wake(
                await self._patiently(lambda: self._database.write(hand_over, call, gate.send_id, outcome))
            )
        raise _expected(f"{tool} goes on at another worker.", HANDED_OVER)

    async def _settle(self, ending: _Ending) -> SettledCall:
        """Record how a call ended; what could not be recorded is kept for the next attempt on this worker."""
        key = ending.call.place.idempotency_key
        self._unsettled[key] = ending
        try:
            settled = await self._patiently(
                lambda: self._database.write(settle_call, ending.call, ending.send_id, ending.outcome)
            )
        except LeaseLostError as error:
            self._unsettled.pop(key, None)
            raise _replaced(error) from error
        self._unsettled.pop(key, None)
        return settled

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


def _replaced(error: LeaseLostError) -> ApplicationError:
    return _expected(str(error), REPLACED, non_retryable=True)


def _expected(
    message: str, kind: str, *, non_retryable: bool = False, next_retry_delay: timedelta | None = None
) -> ApplicationError:
    # It is how the wrapper's attempts end, and no fault of the worker, which would log it with a traceback.
    return ApplicationError(
        message,
        type=kind,
        non_retryable=non_retryable,
        next_retry_delay=next_retry_delay,
        category=ApplicationErrorCategory.BENIGN,
    )


def _not_sent(call: OpenCall) -> CallOutcome:
    details: dict[str, JSON] = {"tool": call.snapshot.exposed_name, "outcome": "not_sent"}
    error = call_error(ErrorCode.NOT_SENT, details, Classification.RUNTIME, retryable=True)
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)


def _result(settled: SettledCall) -> CallToolResult:
    return CallToolResult(
        status=settled.status.value,
        outcome=settled.outcome.value,
        code=settled.code.value if settled.code else None,
        result_digest=settled.result_digest,
        result_bytes=settled.result_bytes,
    )
