"""A model of one call's ledger, whatever order workers, crashes, finalizers and operators act in.

The machine plays a wire: a byte leaves only where the ledger let it. Its invariants are the promises: an
unsafe call leaves at most once, the first terminal state stands, and nothing that left is called not sent.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from activities.finalizing import FinalizeRound, SettleLost, finalize, settle_lost
from activities.ledger import (
    MAX_SENDS,
    CallOutcome,
    CallPlace,
    LeaseLostError,
    OpenCall,
    Owner,
    canceled_outcome,
    close_for_repeat,
    hand_over,
    mark_call_sent,
    settle_call,
    unknown_outcome,
)
from activities.opening import open_call
from activities.wanted import NotThisCallError
from governance.codes import IdempotencyClass, InvocationOutcome, InvocationStatus, SendOutcome
from governance.resolutions import ResolutionKind, retry_suffix
from models.base import new_id
from models.database import Database, ReadSession, WriteSession
from models.invocation import Settlement, ToolInvocation, load_invocations
from models.resolution import ResolutionError, Verdict, resolve
from models.send import save_cursor
from tests.models.frozen import Frozen, freeze_world
from tests.support.world import Call, ConnectionPlan

T = TypeVar("T")


@dataclass
class Worker:
    """A worker that has opened a call, dead or alive; the machine may let it act at any time."""

    call: OpenCall
    send_id: str
    may_send: bool = True
    reached: bool = False
    """Whether its byte left."""
    has_ended: bool = False


class LedgerMachine(RuleBasedStateMachine):
    """One call of one round; subclasses say which database and which idempotency."""

    url: str
    idempotency: IdempotencyClass
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[Worker] = []
        self.retries = 0
        self.left: dict[str, int] = {}
        self.first_end: dict[str, tuple[str, str]] = {}
        self.finalized = False
        self.patience = 1

    def may_end(self) -> bool:
        return len(self.workers) >= self.patience

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize(patience=st.integers(1, 4))
    def begin(self, patience: int) -> None:
        # Ends wait for so many attempts; else most examples would end before two of them can meet.
        self.patience = patience
        self.database = Database(self.url)
        self.frozen: Frozen = self.do(
            freeze_world_again(
                self.database, ConnectionPlan(name=f"c{new_id()[-12:]}", idempotency=self.idempotency)
            )
        )

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()

    @rule(heard=st.booleans())
    def an_attempt_opens_the_call(self, *, heard: bool) -> None:
        suffix = retry_suffix(self.retries) if self.retries else ""
        place = CallPlace(self.frozen.round_id, 0, 0, f"s0.c0{suffix}")
        owner = Owner("worker", new_id())
        hint = None
        if heard and self.workers:
            hint = {"send_id": self.workers[-1].send_id, "request_id": "r", "last_event_id": "e"}
        try:
            opened = self.do(self.database.write(open_call, place, owner, self.frozen.tools, hint))
        except NotThisCallError:
            assert self.finalized
            return
        if isinstance(opened, OpenCall):
            self.workers.append(Worker(opened, opened.send_id, may_send=opened.resume is None))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), reached=st.booleans())
    def a_worker_sends(self, data: st.DataObject, *, reached: bool) -> None:
        """The mark is committed; whether the byte then leaves is the network's, or a crash's, business."""
        worker = data.draw(st.sampled_from(self.workers))
        if not worker.may_send:
            return
        try:
            self.do(self.database.write(mark_call_sent, worker.call, worker.send_id, None))
        except LeaseLostError:
            return
        worker.may_send, worker.reached = False, reached
        if reached:
            key = worker.call.invocation_id
            self.left[key] = self.left.get(key, 0) + 1

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def a_cursor_is_stored(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        self.do(self.database.write(save_cursor, worker.send_id, {"request_id": "r", "last_event_id": "e"}))

    @precondition(lambda self: self.may_end())
    @rule(data=st.data(), how=st.sampled_from(["success", "canceled", "unknown"]))
    def a_worker_settles(self, data: st.DataObject, how: str) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        was_sent = not worker.may_send
        if how == "success" and was_sent:
            outcome = CallOutcome(Settlement(InvocationStatus.SUCCEEDED), SendOutcome.ANSWERED, b"{}")
        elif how == "canceled":
            outcome = canceled_outcome("tool", was_sent=was_sent)
        elif was_sent:
            outcome = unknown_outcome("tool", "no_answer")
        else:
            return
        try:
            self.do(self.database.write(settle_call, worker.call, worker.send_id, outcome))
        except LeaseLostError:
            assert how != "success", "an answer counts whoever brings it"
            assert worker is not self.workers[-1], "the last to open the call owns it"

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), refused=st.booleans())
    def a_worker_gives_the_call_back(self, data: st.DataObject, *, refused: bool) -> None:
        """Its send was refused, or it ends before it sent: another attempt may follow."""
        worker = data.draw(st.sampled_from(self.workers))
        if worker.call.resume is not None or worker.has_ended:
            return
        sent = not worker.may_send
        doubt = SendOutcome.UNKNOWN if sent and not refused else SendOutcome.REFUSED
        outcome = doubt if sent else SendOutcome.NOT_SENT
        if doubt is SendOutcome.UNKNOWN and self.idempotency is IdempotencyClass.UNSAFE:
            return
        work = close_for_repeat if refused else hand_over
        try:
            self.do(self.database.write(work, worker.call, worker.send_id, outcome))
        except LeaseLostError:
            return
        worker.may_send, worker.has_ended = False, True
        if outcome is SendOutcome.REFUSED and worker.reached:
            # A refusal is the server's proof that the call did not run.
            self.left[worker.call.invocation_id] -= 1

    @precondition(lambda self: self.may_end())
    @rule(canceled=st.booleans())
    def the_round_is_finalized(self, *, canceled: bool) -> None:
        self.do(self.database.write(finalize, FinalizeRound(self.frozen.round_id, canceled)))
        self.finalized = True

    @precondition(lambda self: self.may_end())
    @rule()
    def a_lost_call_is_settled(self) -> None:
        self.do(self.database.write(settle_lost, SettleLost(self.frozen.round_id, [0])))

    @precondition(lambda self: self.may_end())
    @rule(kind=st.sampled_from(ResolutionKind))
    def an_operator_resolves(self, kind: ResolutionKind) -> None:
        def work(session: WriteSession) -> bool:
            rows = load_invocations(session, self.frozen.round_id).values()
            latest = max(rows, key=lambda row: row.attempt_no, default=None)
            if latest is None:
                return False
            try:
                resolve(session, latest.id, Verdict(kind, "admin"))
            except ResolutionError:
                return False
            return True

        if self.do(self.database.write(work)) and kind is ResolutionKind.RETRY:
            self.retries += 1

    def rows(self) -> list[tuple[ToolInvocation, bool]]:
        def read(session: ReadSession) -> list[tuple[ToolInvocation, bool]]:
            found = load_invocations(session, self.frozen.round_id).values()
            return [(row, row.id in self.left) for row in found]

        return self.do(self.database.read(read))

    @invariant()
    def the_promises_hold(self) -> None:
        if not hasattr(self, "frozen"):
            return
        rows = self.rows()
        assert sorted(row.attempt_no for row, _ in rows) == list(range(1, len(rows) + 1))
        assert sum(row.status is InvocationStatus.RUNNING for row, _ in rows) <= 1
        for row, _ in rows:
            left = self.left.get(row.id, 0)
            assert left <= (1 if self.idempotency is IdempotencyClass.UNSAFE else MAX_SENDS)
            if row.status is InvocationStatus.RUNNING:
                assert row.lease_token is not None
                continue
            end = (row.status.value, row.outcome.value)
            assert self.first_end.setdefault(row.id, end) == end, "the first terminal state stands"
            if row.status is not InvocationStatus.SUCCEEDED and left:
                assert row.outcome is InvocationOutcome.UNKNOWN, "what left is never called not sent"


async def freeze_world_again(database: Database, plan: ConnectionPlan) -> Frozen:
    """Freeze a round of a connection and key of its own: examples share one database."""
    return await freeze_world(database, plan, [Call(f"{plan.name}-read")], key_name=plan.name)


@pytest.mark.parametrize("idempotency", [IdempotencyClass.UNSAFE, IdempotencyClass.SAFE])
@pytest.mark.timeout(300)
def test_the_ledger_keeps_its_promises_in_any_order(database_url: str, idempotency: IdempotencyClass) -> None:
    loop = asyncio.new_event_loop()
    machine = type(
        "Machine", (LedgerMachine,), {"url": database_url, "idempotency": idempotency, "loop": loop}
    )
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=60,
                stateful_step_count=12,
                deadline=None,
                derandomize=True,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )
    finally:
        loop.close()
