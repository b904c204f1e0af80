"""Repair what crashes left behind: rounds without a workflow, ends not written, words not delivered.

The database says what should be, the engine what is. Every repair is idempotent and safe beside a live
round: starting is by the derived workflow id, ending and settling are compare-and-set, waking is a hint.
"""

import logging
from collections.abc import Awaitable
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from temporalio import activity

from activities.finalizing import FinalizeRound, SettleLost, finalize, settle_lost
from governance.canonical import JSON
from governance.codes import TERMINAL_ROUND_STATES, RoundState
from models.audit import AuditFact, AuditKind, append_audit
from models.base import utc_now
from models.database import Database, DatabaseError, WriteSession
from models.reconciliation import (
    LOST_ROUND,
    WORKFLOW_ENDED_EARLY,
    RunningRetry,
    UnfinishedRound,
    load_running_retries,
    load_unfinished,
    load_unheard_cancels,
)
from models.resolution import OpenRetry, load_open_retries, load_undelivered
from models.round import Round

__all__ = ["OpenRetry", "ReconcileReport", "ReconcileRequest", "Reconciler", "Standing", "UnfinishedRound"]
"""Two are of `models`: whoever implements `RoundEngine` takes them from here."""

PAGE = 200
"""Rounds looked at in one transaction."""

MOST = 10_000
"""Rounds looked at in one run; the next run goes on."""

ACTOR = "reconciler"
"""How the audit trail names whoever repaired something here."""


logger = logging.getLogger(__name__)


class Standing(StrEnum):
    """What the engine says of a workflow."""

    RUNNING = "running"
    COMPLETED = "completed"
    CANCELED = "canceled"
    BROKEN = "broken"
    """It failed, was terminated or timed out."""
    MISSING = "missing"
    UNREACHABLE = "unreachable"


class RoundEngine(Protocol):
    """The workflow engine as the reconciler uses it; each request tells whether it was carried out."""

    async def standing(self, workflow_id: str) -> Standing:
        """Say how a workflow stands."""
        ...

    async def start_round(self, round_: UnfinishedRound) -> bool:
        """Start the workflow of a round that is only requested; one that there is already stays as it is."""
        ...

    async def wake_round(self, workflow_id: str, invocation_id: str) -> bool:
        """Tell a round that waits that an outcome was resolved."""
        ...

    async def cancel_call(self, workflow_id: str, position: int) -> bool:
        """Tell a round to stop one call."""
        ...

    async def retry_call(self, retry: OpenRetry) -> bool:
        """Start the workflow of an operator's retry; one that there is already stays as it is."""
        ...

    def retry_workflow_id(self, retry_key: str) -> str:
        """Name the workflow of a retry."""
        ...


@dataclass(frozen=True)
class ReconcileRequest:
    """How long something may take by itself before it is looked into."""

    grace_s: float = 10.0


@dataclass(frozen=True)
class ReconcileReport:
    """What was repaired, by count; `unreachable` could not be looked into."""

    started: int = 0
    """Rounds that were requested and had no workflow."""
    finalized: int = 0
    """Rounds whose workflow was gone or over, and whose end was not written."""
    woken: int = 0
    """Resolutions told again to rounds that wait."""
    canceled: int = 0
    """Cancels of single calls told again."""
    retried: int = 0
    """Operators' retries that nobody had started."""
    settled: int = 0
    """Retries whose workflow was gone or over while their call was open."""
    unreachable: int = 0
    failed: int = 0
    """Repairs that raised; the log has the reason, and the next run tries them again."""

    @property
    def repaired(self) -> int:
        """How much was repaired."""
        return self.started + self.finalized + self.woken + self.canceled + self.retried + self.settled


class Reconciler:
    """Holds what reconciling needs."""

    def __init__(self, database: Database, engine: RoundEngine) -> None:
        """Use a database and the engine."""
        self._database = database
        self._engine = engine

    @activity.defn(name="reconcile")
    async def reconcile(self, request: ReconcileRequest) -> ReconcileReport:
        """Look at everything that should go on, repair what does not, and say what was repaired."""
        before = utc_now() - timedelta(seconds=request.grace_s)
        counts = dict.fromkeys((one.name for one in fields(ReconcileReport)), 0)
        after: str | None = None
        for _ in range(MOST // PAGE):
            rounds = await self._database.read(load_unfinished, before, after, PAGE)
            for round_ in rounds:
                await _count(counts, self._repair(round_))
            if len(rounds) < PAGE:
                break
            after = rounds[-1].id
        for workflow_id, invocation_id in await self._database.read(load_undelivered, PAGE):
            await _count(counts, _done("woken", self._engine.wake_round(workflow_id, invocation_id)))
        for workflow_id, position in await self._database.read(load_unheard_cancels, before, PAGE):
            await _count(counts, _done("canceled", self._engine.cancel_call(workflow_id, position)))
        await self._start_retries(counts)
        for retry in await self._database.read(load_running_retries, before, PAGE):
            await _count(counts, self._settle(retry))
        return ReconcileReport(**counts)

    async def _repair(self, round_: UnfinishedRound) -> str | None:
        """Repair one round; return which count that belongs to, None where nothing was wrong."""
        standing = await self._engine.standing(round_.workflow_id)
        match standing:
            case Standing.RUNNING:
                return None
            case Standing.UNREACHABLE:
                return "unreachable"
            case Standing.MISSING if round_.state is RoundState.REQUESTED:
                return "started" if await self._engine.start_round(round_) else "unreachable"
            case Standing.MISSING:
                failure = LOST_ROUND
            case Standing.BROKEN:
                failure = WORKFLOW_ENDED_EARLY
            case Standing.COMPLETED | Standing.CANCELED:
                failure = ""
        ending = FinalizeRound(round_.id, standing is Standing.CANCELED, failure, round_.workflow_id)
        return "finalized" if await self._database.write(_finalize, ending) else None

    async def _start_retries(self, counts: dict[str, int]) -> None:
        """Start what nobody started, page by page: retries that stay refused must not hide newer ones."""
        after: str | None = None
        for _ in range(MOST // PAGE):
            retries = await self._database.read(load_open_retries, after, PAGE)
            for retry in retries:
                await _count(counts, self._start_retry(retry))
            if len(retries) < PAGE:
                return
            after = retries[-1].invocation_id

    async def _start_retry(self, retry: OpenRetry) -> str | None:
        standing = await self._engine.standing(self._engine.retry_workflow_id(retry.retry_key))
        # One that is over without having begun the call was refused by the wrapper; it stays refused.
        if standing is not Standing.MISSING:
            return None
        return await _done("retried", self._engine.retry_call(retry))

    async def _settle(self, retry: RunningRetry) -> str | None:
        standing = await self._engine.standing(self._engine.retry_workflow_id(retry.idempotency_key))
        if standing in (Standing.RUNNING, Standing.UNREACHABLE):
            return None
        await self._database.write(_settle_retry, retry.round_id, retry.position)
        return "settled"


async def _done(name: str, request: Awaitable[bool]) -> str | None:
    return name if await request else None


async def _count(counts: dict[str, int], repair: Awaitable[str | None]) -> None:
    """Carry one repair out and count it; one that fails is told and keeps no other from being made.

    Raises:
        DatabaseError: the database is away, so that no other repair would fare better; the next run goes on.
    """
    try:
        done = await repair
    except DatabaseError:
        raise
    except Exception:  # Whatever is wrong with one row is no reason to leave the others as they are.
        logger.exception("A repair failed; the next run tries it again.")
        done = "failed"
    if done is not None:
        counts[done] += 1


def _finalize(session: WriteSession, request: FinalizeRound) -> bool:
    """End a round, unless it has ended, or goes on as a repeat, since it was looked at."""
    row = session.get_one(Round, request.round_id)
    state = row.state
    if state in TERMINAL_ROUND_STATES or row.workflow_id != request.workflow_id:
        return False
    finalize(session, request)
    data: dict[str, JSON] = {"repair": "finalized", "from": state.value, "reason": request.failure}
    append_audit(session, AuditFact(AuditKind.RECONCILED, actor=ACTOR, round_id=request.round_id, data=data))
    return True


def _settle_retry(session: WriteSession, round_id: str, position: int) -> None:
    settle_lost(session, SettleLost(round_id, [position]))
    data: dict[str, JSON] = {"repair": "settled", "position": position}
    append_audit(session, AuditFact(AuditKind.RECONCILED, actor=ACTOR, round_id=round_id, data=data))
