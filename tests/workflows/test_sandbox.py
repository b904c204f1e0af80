"""Every workflow keeps to determinism in Temporal's sandbox, which production leaves out for its cost."""

import warnings

import pytest
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import SandboxImportNotificationPolicy

from models.database import Database
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.world import Call, build_world
from worker import WORKFLOWS

pytestmark = pytest.mark.anyio

PASSED_THROUGH = ("governance", "activities", "workflows.options", "workflows.messages")
"""What workflow code may share with the world outside; all of it is free of mutable module state."""


def sandbox() -> SandboxedWorkflowRunner:
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    return SandboxedWorkflowRunner(
        restrictions.with_import_notification_policy(
            SandboxImportNotificationPolicy.WARN_ON_DYNAMIC_IMPORT
            | SandboxImportNotificationPolicy.WARN_ON_UNINTENTIONAL_PASSTHROUGH
        )
    )


async def test_every_workflow_loads_in_the_sandbox(temporal_client: Client, task_queue: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=r"Module workflows\.")
        worker = Worker(
            temporal_client, task_queue=task_queue, workflows=WORKFLOWS, workflow_runner=sandbox()
        )

    assert worker.task_queue == task_queue


async def test_a_round_runs_in_the_sandbox(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Module workflows\.")
        async with round_worker(
            temporal_client,
            sqlite_database,
            ScriptedRunner(echo),
            task_queue=task_queue,
            workflow_runner=sandbox(),
        ) as bench:
            record, _ = await bench.run(world.key_id, [Call("files-read"), Call("files-write")])

    assert record.statuses() == ["succeeded", "succeeded"]
