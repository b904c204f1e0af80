"""The workflow that makes one call of an ended round again, because an operator said so."""

from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.finalizing import RoundFinalizer, SettleLost
from activities.slots import SLOT_FREE
from activities.tool_calls import CallTool, ToolCalls
from governance.codes import InvocationOutcome, InvocationStatus
from workflows.messages import CALL_RETRY, CallRetryInput, CallRetryResult
from workflows.options import tool_options
from workflows.queued_calls import Handle, Queue, wait_for_call
from workflows.transactions import transact


@workflow.defn(name=CALL_RETRY)
class CallRetry:
    """Makes one call; the wrapper refuses it unless an operator's resolution names this very retry."""

    @workflow.init
    def __init__(self, request: CallRetryInput) -> None:
        """Begin with nothing done."""
        self._request = request
        self._queue = Queue()

    @workflow.signal(name=SLOT_FREE)
    def slot_free(self, position: int) -> None:
        """Let the call look for its slot again; a hint, since the database decides."""
        self._queue.wake(position)

    @workflow.run
    async def run(self, request: CallRetryInput) -> CallRetryResult:
        """Make the call; its outcome may be unknown once more, and is then resolved as the first one was."""
        try:
            result = await wait_for_call(self._start, request.position, self._queue)
        except ActivityError:
            lost = await transact(
                RoundFinalizer.settle_lost_calls, SettleLost(request.round_id, [request.position])
            )
            outcome = InvocationOutcome.UNKNOWN if lost.unknown else InvocationOutcome.KNOWN
            return CallRetryResult(InvocationStatus.FAILED.value, outcome.value)
        return CallRetryResult(result.status, result.outcome)

    def _start(self) -> Handle:
        request = self._request
        return workflow.start_activity_method(
            ToolCalls.call_tool,
            CallTool(request.round_id, request.position, request.stage),
            activity_id=request.activity_id,
            summary=f"retry of call {request.position} of round {request.round_id}",
            **tool_options(request.timeout_s, request.heartbeat_timeout_s),
        )
