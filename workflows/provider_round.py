"""The round workflow: freeze, admit, run the calls stage by stage, finalize."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.finalizing import FinalizedRound, FinalizeRound, RoundFinalizer, SettleLost
from activities.freezing import CallToFreeze, FreezeRound, FrozenRound, PlannedCall, RoundFreezer
from activities.slots import SLOT_FREE
from activities.tool_calls import CallTool, CallToolResult, ToolCalls
from activities.waiting import LookAtUnknowns, UnknownsWatch
from governance.batching import Stage, StagedCall, build_stages
from governance.codes import InvocationOutcome, InvocationStatus, RoundState
from governance.resolutions import OnUnknown, retry_suffix
from workflows.guarding import guard
from workflows.labels import RoundLabel
from workflows.messages import (
    CANCEL_CALL_SIGNAL,
    PROVIDER_ROUND,
    RESOLVE_UPDATE,
    STATE_ATTRIBUTE,
    UNKNOWN_ATTRIBUTE,
    RoundInput,
    RoundResult,
)
from workflows.options import tool_options
from workflows.queued_calls import Handle, Queue, run_calls
from workflows.transactions import transact

LABELS_DIRECT_STARTS = "labels-direct-starts"
"""Patch: rounds started through Temporal before it have no search attributes of key and tools."""

T = TypeVar("T")


def _no_stages() -> tuple[Stage, ...]:
    return ()


def _no_handles() -> dict[int, Handle]:
    return {}


@dataclass
class RoundProgress:
    """All state of a running round."""

    stages: tuple[Stage, ...] = field(default_factory=_no_stages)
    stage: int = 0
    canceled: bool = False
    running: dict[int, Handle] = field(default_factory=_no_handles)
    """The calls that run now, by position."""
    woken: int = 0
    """How often somebody said that an unknown outcome was resolved."""
    queue: Queue = field(default_factory=Queue)
    """The calls that wait for a slot of their connection."""


@workflow.defn(name=PROVIDER_ROUND)
class ProviderRound:
    """Runs the tool calls of one provider round."""

    @workflow.init
    def __init__(self, request: RoundInput) -> None:
        """Begin with nothing done."""
        self._request = request
        self._progress = RoundProgress()

    @workflow.run
    async def run(self, request: RoundInput) -> RoundResult:
        """Run the round to its end; a canceled round ends as canceled after it was finalized."""
        self._label_direct_start()
        plan = await self._uninterrupted(self._freeze(request))
        try:
            if plan.guarded and not self._progress.canceled:
                plan = await guard(plan)
            if not self._progress.canceled:
                await self._run_stages(plan)
        except asyncio.CancelledError:
            self._progress.canceled = True
        canceled = self._progress.canceled
        ended = await self._uninterrupted(self._finalize(plan.round_id, canceled=canceled))
        self._show_state(ended.state, has_unknown=ended.unknown > 0)
        workflow.set_current_details(_details(plan, self._progress.stages, ended))
        if canceled:
            raise asyncio.CancelledError
        return RoundResult(
            round_id=plan.round_id,
            state=ended.state,
            succeeded=ended.succeeded,
            failed=ended.failed,
            refused=ended.refused,
            canceled=ended.canceled,
            unknown=ended.unknown,
        )

    @workflow.update(name=RESOLVE_UPDATE)
    def resolve_unknown(self, invocation_id: str) -> None:
        """Wake a round that waits for a resolution; what was resolved is read from the database."""
        del invocation_id
        self._progress.woken += 1

    @resolve_unknown.validator
    def _check_resolution(self, invocation_id: str) -> None:
        if self._request.on_unknown != OnUnknown.WAIT.value:
            raise ValueError(f"This round does not wait for a resolution of {invocation_id!r}.")

    @workflow.signal(name=CANCEL_CALL_SIGNAL)
    def cancel_call(self, position: int) -> None:
        """Stop one call that runs; one that has not started is stopped by its row in the database."""
        handle = self._progress.running.get(position)
        if handle is not None and not handle.done():
            handle.cancel()
        else:
            # It may wait for a slot: it looks again, and finds that it is to stop.
            self._progress.queue.wake(position)

    @workflow.signal(name=SLOT_FREE)
    def slot_free(self, position: int) -> None:
        """Let a call that waits for its connection look again; a hint, since the database decides."""
        self._progress.queue.wake(position)

    async def _uninterrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what a round cannot be without: a cancel that comes meanwhile is noted and acted on after."""
        task = asyncio.create_task(work)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.done():
                    break
                self._progress.canceled = True
        return task.result()

    async def _freeze(self, request: RoundInput) -> FrozenRound:
        freezing = FreezeRound(
            workflow_id=workflow.info().workflow_id,
            key_id=request.key_id,
            round_key=request.round_key,
            round_id=request.round_id,
            body_digest=request.body_digest,
            calls=[CallToFreeze(call.id, call.name, call.arguments) for call in request.calls],
            include_clients=request.include_clients,
            include_tools=request.include_tools,
            task_id=request.task_id,
            conversation_id=request.conversation_id,
            implementations=request.implementations,
            on_unknown=request.on_unknown,
            profile_key=request.profile_key,
            grant=request.grant,
        )
        return await transact(RoundFreezer.freeze_round, freezing)

    async def _run_stages(self, plan: FrozenRound) -> None:
        calls = {call.position: call for call in plan.calls}
        self._progress.stages = build_stages(
            StagedCall(call.position, call.parallel_safe) for call in plan.calls
        )
        for number, stage in enumerate(self._progress.stages):
            self._progress.stage = number
            workflow.set_current_details(_details(plan, self._progress.stages, None, number))
            await self._run_stage(plan.round_id, number, [calls[position] for position in stage.positions])
            if workflow.cancellation_reason() is not None:
                # A cancel that arrives together with another event may not be raised at the await.
                raise asyncio.CancelledError

    async def _run_stage(self, round_id: str, number: int, calls: Sequence[PlannedCall]) -> None:
        """Start the calls of a stage and wait for every one of them, however each ends."""
        unknown = await self._run_together(
            round_id,
            {
                call.position: partial(self._start, round_id, number, index, call)
                for index, call in enumerate(calls)
            },
        )
        if unknown and self._request.on_unknown == OnUnknown.WAIT.value:
            await self._wait_for_resolutions(round_id, number, calls, unknown)

    async def _run_together(self, round_id: str, calls: Mapping[int, Callable[[], Handle]]) -> list[int]:
        """Start calls and wait for them; return the positions of those whose outcome is unknown."""
        handles: dict[int, Handle] = {}
        self._progress.running = handles
        await run_calls(handles, calls, self._progress.queue)
        ended = {position: _result_of(handle) for position, handle in handles.items()}
        lost = [position for position, result in ended.items() if result is None]
        unknown = [position for position, result in ended.items() if result is not None and _is_open(result)]
        if lost:
            # The barrier is about the ledger: no later stage while a call of this one is open there.
            settled = await transact(RoundFinalizer.settle_lost_calls, SettleLost(round_id, lost))
            unknown += settled.unknown
        return sorted(unknown)

    async def _wait_for_resolutions(
        self, round_id: str, stage: int, calls: Sequence[PlannedCall], unknown: list[int]
    ) -> None:
        """Stay until operators have said what became of each call; call again what they want called again."""
        places = {call.position: (index, call) for index, call in enumerate(calls)}
        has_waited = False
        while unknown:
            woken = self._progress.woken
            seen = await transact(UnknownsWatch.look_at_unknowns, LookAtUnknowns(round_id, unknown))
            if seen.retries:
                again = {
                    retry.position: partial(
                        self._start,
                        round_id,
                        stage,
                        *places[retry.position],
                        suffix=retry_suffix(retry.number),
                    )
                    for retry in seen.retries
                }
                unknown = sorted([*seen.waiting, *await self._run_together(round_id, again)])
                continue
            unknown = seen.waiting
            if not unknown:
                break
            if not has_waited:
                has_waited = True
                self._show_state(RoundState.WAITING_UNKNOWN.value, has_unknown=True)
            names = ", ".join(f"`{places[position][1].tool}`" for position in unknown)
            workflow.set_current_details(
                f"Round `{round_id}` waits: nobody knows whether {names} ran."
                " Resolve it with `sluicegate outcomes resolve`, or over the API."
            )
            await self._until_woken(woken)
        if has_waited:
            self._show_state(RoundState.RUNNING.value, has_unknown=False)

    async def _until_woken(self, seen: int) -> None:
        await workflow.wait_condition(lambda: self._progress.woken > seen)

    def _start(self, round_id: str, stage: int, index: int, call: PlannedCall, suffix: str = "") -> Handle:
        kind = self._progress.stages[stage]
        place = f"stage {stage + 1}/{len(self._progress.stages)} {kind.dispatch_mode}"
        return workflow.start_activity_method(
            ToolCalls.call_tool,
            CallTool(round_id, call.position, stage),
            # The position, never the model's call id: two pending activities of one id would wedge the round.
            activity_id=f"s{stage}.c{index}{suffix}",
            summary=f"{call.tool} · {call.server} · {place}",
            **tool_options(call.timeout_s, self._request.heartbeat_timeout_s),
        )

    def _label_direct_start(self) -> None:
        """Let operators find a round that was started through Temporal as they find the API's."""
        request = self._request
        if not request.round_id and request.search_attributes and workflow.patched(LABELS_DIRECT_STARTS):
            names = [call.name for call in request.calls]
            # The SDK leaves the type of an update's value open.
            workflow.upsert_search_attributes(  # pyright: ignore[reportUnknownMemberType]
                RoundLabel("", request.key_id, names).updates
            )

    def _show_state(self, state: str, *, has_unknown: bool) -> None:
        if self._request.search_attributes:
            # The SDK leaves the type of an update's value open.
            workflow.upsert_search_attributes(  # pyright: ignore[reportUnknownMemberType]
                [STATE_ATTRIBUTE.value_set(state), UNKNOWN_ATTRIBUTE.value_set(has_unknown)]
            )

    async def _finalize(self, round_id: str, *, canceled: bool) -> FinalizedRound:
        request = FinalizeRound(round_id, canceled)
        try:
            return await transact(RoundFinalizer.finalize_round, request)
        except ActivityError:
            # A round never fails because its end could not be written; the reconciler writes it later.
            workflow.logger.warning("The end of round %s could not be written.", round_id)
            return FinalizedRound(request.state.value, 0, 0, 0, 0, 0)


def _result_of(handle: Handle) -> CallToolResult | None:
    """Return how a call ended; None where its activity failed without saying so."""
    if handle.cancelled() or handle.exception() is not None:
        return None
    return handle.result()


def _is_open(result: CallToolResult) -> bool:
    return (
        result.outcome == InvocationOutcome.UNKNOWN.value and result.status == InvocationStatus.FAILED.value
    )


def _details(
    plan: FrozenRound, stages: Sequence[Stage], ended: FinalizedRound | None, running: int | None = None
) -> str:
    """Write what an operator sees on the workflow's page, in Markdown; names only, never arguments."""
    calls: Mapping[int, PlannedCall] = {call.position: call for call in plan.calls}
    counted = f"{plan.call_count} calls, {plan.refused} refused, {plan.tool_count} tools frozen"
    lines = [f"Round `{plan.round_id}`: {counted}.", ""]
    for number, stage in enumerate(stages):
        names = ", ".join(f"`{calls[position].tool}`" for position in stage.positions)
        mark = "▶ " if number == running else ""
        lines.append(f"{number + 1}. {mark}{stage.kind} ({stage.dispatch_mode}): {names}")
    if ended is not None:
        lines.append("")
        lines.append(
            f"**{ended.state}**: {ended.succeeded} succeeded, {ended.failed} failed, "
            f"{ended.canceled} canceled, {ended.unknown} with unknown outcome."
        )
    return "\n".join(lines)
