"""Stored histories of finished workflows still replay: deployed rounds survive a new release.

Histories are append-only. A change that breaks one needs `workflow.patched` and a further history, which
`python -m tests.support.record_histories` records.
"""

from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowReplayResult

from worker import WORKFLOWS
from workflows.messages import PROVIDER_ROUND, RoundInput, RoundResult
from workflows.payloads import data_converter
from workflows.provider_round import ProviderRound

pytestmark = pytest.mark.anyio

HISTORIES = {
    path.stem: path.read_text("utf-8")
    for path in sorted((Path(__file__).parent / "histories").glob("*.json"))
}


async def replay(name: str, workflows: tuple[type, ...]) -> WorkflowReplayResult:
    replayer = Replayer(
        workflows=workflows,
        data_converter=data_converter,
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    history = WorkflowHistory.from_json(name, HISTORIES[name])
    return await replayer.replay_workflow(history, raise_on_replay_failure=False)


@pytest.mark.parametrize("name", HISTORIES)
async def test_a_stored_history_replays(name: str) -> None:
    result = await replay(name, WORKFLOWS)

    assert result.replay_failure is None


@workflow.defn(name=PROVIDER_ROUND)
class SleepyRound(ProviderRound):
    """A round with a command more than those of the stored histories."""

    @workflow.init
    def __init__(self, request: RoundInput) -> None:
        super().__init__(request)

    @workflow.run
    async def run(self, request: RoundInput) -> RoundResult:
        await workflow.sleep(1)
        return await super().run(request)


async def test_a_changed_order_of_commands_is_noticed() -> None:
    result = await replay("mixed_round", (SleepyRound,))

    assert isinstance(result.replay_failure, workflow.NondeterminismError)


def test_there_is_a_history_of_each_kind_of_round() -> None:
    assert set(HISTORIES) >= {
        "mixed_round",
        "canceled_round",
        "waiting_round",
        "call_retry",
        "guarded_round",
        "connection_sync",
        "reconcile",
    }
