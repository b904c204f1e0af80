"""A pin stops what is frozen already: a tool that is no longer what was accepted is not called."""

import pytest
from sqlalchemy import select

from governance.canonical import JSON
from models.connection import Connection
from models.database import Database, ReadSession, WriteSession
from models.invocation import load_invocations
from models.projection import DeclaredTool, project_connection
from models.send import load_sends
from models.tool import ToolDefinition
from tests.models.governed import Built, begin, build_program, build_task, implementations_of
from tests.support.world import ConnectionPlan, add_connection
from tests.workflows.governed import Rounds, call

pytestmark = pytest.mark.anyio


def files_read(session: WriteSession | ReadSession) -> ToolDefinition:
    return session.scalars(select(ToolDefinition).where(ToolDefinition.tool_name == "files-read")).one()


def pin(session: WriteSession) -> None:
    """Accept the tool as it is declared now."""
    found = files_read(session)
    [row] = implementations_of(session, found.id).values()
    found.pinned_digest = row.content_digest


def change(session: WriteSession) -> None:
    """Let the server declare something else under the same name."""
    connection = session.scalars(select(Connection)).one()
    project_connection(session, connection, [DeclaredTool("read", {"description": "Does anything."})])


def build(session: WriteSession) -> tuple[Built, str, str]:
    connection = add_connection(session, ConnectionPlan(tools={"read": {"type": "object"}}))
    built = build_program(session, grants={connection.id: ["*"]})
    conversation_id = begin(session, built)
    return built, conversation_id, build_task(session, built, conversation_id=conversation_id).id


async def test_a_frozen_task_does_not_call_a_tool_that_changed_since_it_was_pinned(
    rounds: Rounds, database: Database
) -> None:
    built, _, task_id = await database.write(build)

    async def run() -> list[str]:
        round_id = await rounds.run(built.key_id, call("files-read"), task_id=task_id)
        return [status for status, _ in await rounds.outcome(round_id)]

    await database.write(pin)
    as_accepted = await run()
    await database.write(change)
    changed = await run()
    await database.write(pin)
    accepted_again = await run()

    assert (as_accepted, changed, accepted_again) == (["succeeded"], ["tool_not_allowed"], ["succeeded"])
    assert len(rounds.reached) == 2


@pytest.mark.parametrize("owner", ["round", "task"])
async def test_a_tool_that_changes_in_a_running_round_is_not_sent_where_it_is_pinned(
    owner: str, rounds: Rounds, database: Database
) -> None:
    built, conversation_id, task_id = await database.write(build)
    await database.write(pin)

    async def happens() -> None:
        await database.write(change)

    rounds.meanwhile = happens
    place = {"task_id": task_id} if owner == "task" else {"conversation_id": conversation_id}
    calls = [call("files-read", call_id="a"), call("files-read", call_id="b")]
    round_id = await rounds.run(built.key_id, *calls, **place)

    outcomes = await rounds.outcome(round_id)
    assert [status for status, _ in outcomes] == ["succeeded", "failed"]
    refusal: JSON = outcomes[1][1]
    assert (refusal["code"], refusal["classification"], refusal["details"]) == (
        "tool_not_allowed",
        "authorization",
        {"tool": "files-read", "outcome": "not_sent", "reason": "changed_since_pinned"},
    )
    assert len(rounds.reached) == 1

    def sends(session: ReadSession) -> list[int]:
        return [len(load_sends(session, row.id)) for row in load_invocations(session, round_id).values()]

    assert sorted(await database.read(sends)) == [0, 1]


async def test_a_tool_that_nobody_pinned_goes_on_as_it_was_frozen(rounds: Rounds, database: Database) -> None:
    built, _, task_id = await database.write(build)
    await database.write(change)

    round_id = await rounds.run(built.key_id, call("files-read"), task_id=task_id)

    assert [status for status, _ in await rounds.outcome(round_id)] == ["succeeded"]
