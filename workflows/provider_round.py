"""The round workflow: freeze, admit, run the calls stage by stage, finalize."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.finalizing import FinalizedRound, FinalizeRound, RoundFinalizer
from activities.freezing import CallToFreeze, FreezeRound, FrozenRound, PlannedCall, RoundFreezer
from activities.tool_calls import CallTool, CallToolResult, ToolCalls
from governance.batching import Stage, StagedCall, build_stages
from governance.codes import RoundState
from workflows.messages import (
    PROVIDER_ROUND,
    STATE_ATTRIBUTE,
    UNKNOWN_ATTRIBUTE,
    RoundInput,
    RoundResult,
)
from workflows.options import (
    LOCAL_TRANSACTION,
    PATIENT_TRANSACTION,
    TOOL_CANCELLATION,
    TOOL_RETRY,
    TOOL_SLACK,
)

CHUNK = 50
"""Calls of one stage that are started in one workflow task, so that its commands stay far below 4 MB."""

Handle = workflow.ActivityHandle[CallToolResult]


def _no_stages() -> tuple[Stage, ...]:
    return ()


@dataclass
class RoundProgress:
    """All state of a running round."""

    stages: tuple[Stage, ...] = field(default_factory=_no_stages)
    stage: int = 0
    canceled: bool = False


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
        plan = await self._freeze(request)
        try:
            await self._run_stages(plan)
        except asyncio.CancelledError:
            self._progress.canceled = True
        ended = await self._finalize(plan.round_id)
        if request.search_attributes:
            workflow.upsert_search_attributes(
                [
                    STATE_ATTRIBUTE.value_set(ended.state),
                    UNKNOWN_ATTRIBUTE.value_set(ended.unknown > 0),
                ]
            )
        workflow.set_current_details(_details(plan, self._progress.stages, ended))
        if self._progress.canceled:
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
        )
        try:
            return await workflow.execute_local_activity_method(
                RoundFreezer.freeze_round, freezing, **LOCAL_TRANSACTION
            )
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.non_retryable:
                raise error.cause from error
        return await workflow.execute_activity_method(
            RoundFreezer.freeze_round, freezing, **PATIENT_TRANSACTION
        )

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
        for first in range(0, len(calls), CHUNK):
            chunk = calls[first : first + CHUNK]
            handles = [
                self._start(round_id, number, first + offset, call) for offset, call in enumerate(chunk)
            ]
            await _wait_for_all(handles)

    def _start(self, round_id: str, stage: int, index: int, call: PlannedCall) -> Handle:
        kind = self._progress.stages[stage]
        place = f"stage {stage + 1}/{len(self._progress.stages)} {kind.dispatch_mode}"
        timeout = timedelta(seconds=call.timeout_s)
        return workflow.start_activity_method(
            ToolCalls.call_tool,
            CallTool(round_id, call.position, stage),
            # The position, never the model's call id: two pending activities of one id would wedge the round.
            activity_id=f"s{stage}.c{index}",
            start_to_close_timeout=timeout + TOOL_SLACK,
            heartbeat_timeout=timedelta(seconds=self._request.heartbeat_timeout_s),
            retry_policy=TOOL_RETRY,
            cancellation_type=TOOL_CANCELLATION,
            summary=f"{call.tool} · {call.server} · {place}",
        )

    async def _finalize(self, round_id: str) -> FinalizedRound:
        request = FinalizeRound(round_id, self._progress.canceled)
        try:
            return await workflow.execute_local_activity_method(
                RoundFinalizer.finalize_round, request, **LOCAL_TRANSACTION
            )
        except ActivityError:
            workflow.logger.warning("Finalizing as a local activity failed; trying as a normal one.")
        try:
            return await workflow.execute_activity_method(
                RoundFinalizer.finalize_round, request, **PATIENT_TRANSACTION
            )
        except ActivityError:
            # A round never fails because its end could not be written; the reconciler writes it later.
            state = RoundState.CANCELED if self._progress.canceled else RoundState.COMPLETED
            return FinalizedRound(state.value, 0, 0, 0, 0, 0)


async def _wait_for_all(handles: Sequence[Handle]) -> None:
    """Wait until every handle is done; a cancel is passed on to each and waited for as well.

    The handles keep their outcomes. What an activity raised is not looked at here: its ledger row tells.
    """
    canceled = False
    while not all(handle.done() for handle in handles):
        try:
            await workflow.wait(handles)
        except asyncio.CancelledError:
            canceled = True
            for handle in handles:
                handle.cancel()
    for handle in handles:
        if not handle.cancelled():
            handle.exception()
    if canceled:
        raise asyncio.CancelledError


def _details(
    plan: FrozenRound, stages: Sequence[Stage], ended: FinalizedRound | None, running: int | None = None
) -> str:
    """Write what an operator sees on the workflow's page, in Markdown; names only, never arguments."""
    calls = {call.position: call for call in plan.calls}
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
