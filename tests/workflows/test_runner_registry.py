"""Which runner makes a call: the frozen kind decides, and a kind without a runner is a named end."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import select, update
from temporalio.client import Client

from governance.canonical import JSON, canonical_bytes, digest
from governance.modes import SourceKind
from models.base import utc_now
from models.database import Database, ReadSession, WriteSession
from models.invocation import load_invocations
from models.projecting import SourceKey, ensure_source
from models.send import load_sends
from models.tool import ImplementationSource, ToolDefinition, ToolImplementation, ToolSnapshotRow
from tests.models.governed import Built, build_program, build_task
from tests.support.world import ConnectionPlan, add_connection
from tests.workflows.governed import Rounds, call, rounds_on

pytestmark = pytest.mark.anyio


def build(session: WriteSession) -> Built:
    connection = add_connection(session, ConnectionPlan())
    return build_program(session, grants={connection.id: ["*"]})


def restate(session: WriteSession, tool_name: str, **changes: JSON) -> None:
    """Store the snapshot of a tool as a worker of another release would have."""
    row, content = session.execute(
        select(ToolImplementation, ToolSnapshotRow.content)
        .join(ToolDefinition, ToolDefinition.id == ToolImplementation.tool_definition_id)
        .join(ToolSnapshotRow, ToolSnapshotRow.digest == ToolImplementation.snapshot_digest)
        .where(ToolDefinition.tool_name == tool_name)
    ).one()
    stated = canonical_bytes({**json.loads(content), **changes})
    session.add(ToolSnapshotRow(digest=digest(stated), content=stated, created_at=utc_now()))
    session.flush()
    row.snapshot_digest = digest(stated)


async def ends(rounds: Rounds, round_id: str) -> list[tuple[str, Mapping[str, Any], list[int]]]:
    """Return how each call ended, its error, and how many bytes-out sends it had."""
    outcomes = await rounds.outcome(round_id)

    def attempts(session: ReadSession) -> list[list[int]]:
        rows = load_invocations(session, round_id).values()
        return [
            [row.attempt_no, sum(send.sent_at is not None for send in load_sends(session, row.id))]
            for row in rows
        ]

    counted = await rounds.database.read(attempts)
    return [(status, error, count) for (status, error), count in zip(outcomes, counted, strict=True)]


async def test_a_kind_that_the_worker_has_no_runner_for_ends_the_call_unsent(
    temporal_client: Client, database: Database, task_queue: str
) -> None:
    built = await database.write(build)
    task_id = await database.write(lambda session: build_task(session, built).id)

    async with rounds_on(temporal_client, database, task_queue, without=[SourceKind.CORE_MATRIX]) as rounds:
        round_id = await rounds.run(built.key_id, call("subagent_list"), task_id=task_id)

    [(status, error, attempts)] = await ends(rounds, round_id)
    assert (status, attempts) == ("failed", [1, 0])
    assert (error["code"], error["classification"], error["retryable"], error["details"]) == (
        "no_runner",
        "runtime",
        False,
        {"tool": "subagent_list", "source_kind": "core_matrix", "outcome": "not_sent"},
    )


@pytest.mark.parametrize(
    "changes",
    [{"source_kind": "quantum"}, {"source_kind": "kernel"}, {"source_kind": ""}],
    ids=["unknown", "without runner", "blank"],
)
async def test_a_kind_that_nobody_knows_ends_the_call_unsent(
    changes: dict[str, JSON], rounds: Rounds, database: Database
) -> None:
    built = await database.write(build)
    await database.write(lambda session: restate(session, "files-read", **changes))

    round_id = await rounds.run(built.key_id, call("files-read"))

    [(status, error, attempts)] = await ends(rounds, round_id)
    assert (status, error["code"], attempts) == ("failed", "no_runner", [1, 0])
    assert rounds.reached == []


async def test_a_built_in_tool_of_another_release_ends_the_call_unsent(
    rounds: Rounds, database: Database
) -> None:
    built = await database.write(build)

    def work(session: WriteSession) -> str:
        restate(session, "subagent_list", upstream_name="subagent_fly")
        return build_task(session, built).id

    task_id = await database.write(work)
    round_id = await rounds.run(built.key_id, call("subagent_list"), task_id=task_id)

    [(status, error, attempts)] = await ends(rounds, round_id)
    assert (status, error["code"], attempts) == ("failed", "no_runner", [1, 0])


async def test_a_source_whose_kind_changes_does_not_move_what_was_frozen(
    rounds: Rounds, database: Database
) -> None:
    built = await database.write(build)
    task_id = await database.write(lambda session: build_task(session, built).id)

    def turn(session: WriteSession) -> None:
        other = ensure_source(session, SourceKey(SourceKind.KERNEL, "elsewhere"))
        of_connections = select(ImplementationSource.id).where(
            ImplementationSource.source_kind == SourceKind.MCP
        )
        session.execute(
            update(ToolImplementation)
            .where(ToolImplementation.implementation_source_id.in_(of_connections))
            .values(implementation_source_id=other.id)
        )

    async def happens() -> None:
        await database.write(turn)

    rounds.meanwhile = happens
    calls = [call("files-read", call_id="a"), call("files-read", call_id="b")]
    running = await rounds.run(built.key_id, *calls, task_id=task_id)
    later = await rounds.run(built.key_id, call("files-read"), task_id=task_id)

    # The round that was frozen goes where it was frozen to; the next one meets a tool that nothing can run.
    assert [status for status, _ in await rounds.outcome(running)] == ["succeeded", "succeeded"]
    assert [status for status, _ in await rounds.outcome(later)] == ["tool_not_allowed"]
    assert [name for name, _ in rounds.reached] == ["files", "files"]
