"""Rounds of programs through the real workflow: built-in tools, other implementations, drift, tasks."""

from typing import Any

import pytest
from sqlalchemy import func, select

from governance.canonical import JSON
from models.audit import AuditEvent, AuditKind
from models.connection import Connection
from models.conversation import Conversation, ConversationState, add_conversation
from models.database import Database, ReadSession, WriteSession
from models.guardrail import replace_guardrails
from models.invocation import ToolInvocation, load_invocations
from models.key import ApiKey
from models.projection import DeclaredTool, project_connection
from models.round import Round, load_events
from models.spawning import SpawnRequest, spawn_subagent
from models.subagent import SubagentSession, load_owned
from models.task import NewTask, Task, TaskKind, create_task
from models.tool import ApprovedImplementation
from models.version_projection import project_core
from tests.models.governed import Built, begin, build_program, build_task, definition_of, implementations_of
from tests.support.programs import mcp_tool, runtime_tool
from tests.support.world import ConnectionPlan, add_connection, add_key
from tests.workflows.governed import Rounds, call, spawn
from workflows.messages import InlineCall

pytestmark = pytest.mark.anyio


def two_servers(session: WriteSession) -> Built:
    first = add_connection(session, ConnectionPlan(name="files", url="http://files.example/mcp"))
    second = add_connection(session, ConnectionPlan(name="backup", url="http://backup.example/mcp"))
    built = build_program(
        session,
        runtime_tools=[runtime_tool("exec_command")],
        grants={first.id: ["*"], second.id: ["*"]},
        tool_catalog=[
            mcp_tool("search", "files", "read"),
            mcp_tool("search", "backup", "read"),
            mcp_tool("exec_command", "backup", "write"),
        ],
    )
    found = definition_of(session, built, "exec_command")
    found.has_approved_list = True
    chosen = implementations_of(session, found.id)["mcp/backup/write"]
    session.add(ApprovedImplementation(tool_definition_id=found.id, tool_implementation_id=chosen.id))
    session.flush()
    return built


async def test_a_round_reaches_the_server_of_the_implementation_that_it_wants(
    rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> tuple[Built, str]:
        built = two_servers(session)
        return built, begin(session, built)

    built, conversation_id = await database.write(work)
    wanted = [
        {},
        {"search": "mcp/backup/read"},
        {"exec_command": "mcp/backup/write"},
    ]
    names = ["search", "search", "exec_command"]

    for name, implementations in zip(names, wanted, strict=True):
        await rounds.run(
            built.key_id, call(name), conversation_id=conversation_id, implementations=implementations
        )

    assert [server for server, _ in rounds.reached] == ["files", "backup", "backup"]


async def test_guardrails_judge_the_calls_of_a_program_before_a_server_is_reached(
    rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> tuple[Built, str]:
        built = two_servers(session)
        deny = {"name": "passwords", "kind": "patterns", "stages": ["before"]}
        replace_guardrails(session, [{**deny, "settings": {"deny": ["hunter[0-9]"]}}])
        return built, begin(session, built)

    built, conversation_id = await database.write(work)
    calls = [call("search", {"for": "hunter2"}), call("exec_command", {"run": "make"}, "c2")]
    wanted = {"exec_command": "mcp/backup/write"}
    round_id = await rounds.run(built.key_id, *calls, conversation_id=conversation_id, implementations=wanted)

    statuses = [status for status, _ in await rounds.outcome(round_id)]
    assert (statuses, [server for server, _ in rounds.reached]) == (
        ["guardrail_blocked", "succeeded"],
        ["backup"],
    )


async def test_an_implementation_that_may_not_be_bound_is_an_error_of_its_own_call(
    rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> tuple[Built, str]:
        built = two_servers(session)
        return built, begin(session, built)

    built, conversation_id = await database.write(work)
    round_id = await rounds.run(
        built.key_id,
        call("search", call_id="a"),
        call("exec_command", call_id="b"),
        call("files-read", call_id="c"),
        conversation_id=conversation_id,
        implementations={"search": "mcp/nowhere", "files-read": "mcp/nowhere"},
    )

    outcomes = await rounds.outcome(round_id)
    assert [status for status, _ in outcomes] == [
        "implementation_not_allowed",
        "implementation_not_allowed",
        "implementation_not_allowed",
    ]
    assert outcomes[1][1]["rule"] == "not_approved"
    assert outcomes[0][1] == {"tool": "search", "implementation": "mcp/nowhere", "rule": "not_of_this_tool"}
    assert rounds.reached == []


async def test_a_running_task_keeps_the_address_that_it_froze_and_tells_of_the_drift(
    rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> tuple[Built, str, str]:
        plan = ConnectionPlan(url="http://old.example/mcp", tools={"read": {"type": "object"}})
        connection = add_connection(session, plan)
        built = build_program(session, grants={connection.id: ["*"]})
        return built, build_task(session, built).id, connection.id

    built, task_id, connection_id = await database.write(work)
    await rounds.run(built.key_id, call("files-read"), task_id=task_id)

    def edit(session: WriteSession) -> None:
        connection = session.get_one(Connection, connection_id)
        connection.url = "http://new.example/mcp"
        strict = {"type": "object", "required": ["path"]}
        project_connection(session, connection, [DeclaredTool("read", {"input_schema": strict})])

    await database.write(edit)
    round_id = await rounds.run(built.key_id, call("files-read"), task_id=task_id)
    fresh = await rounds.run(built.key_id, call("files-read", {"path": "x"}))

    assert [url.split("/")[2] for _, url in rounds.reached] == ["old.example", "old.example", "new.example"]
    events = await database.read(load_events, round_id, 0)
    [drift] = [event.data for event in events if event.kind == "tool_drifted"]
    assert drift["changed"] == ["server_url", "snapshot"]
    quiet = await database.read(load_events, fresh, 0)
    assert [event.kind for event in quiet if event.kind == "tool_drifted"] == []

    def audited(session: ReadSession) -> int:
        query = select(func.count()).select_from(AuditEvent).where(AuditEvent.kind == AuditKind.TOOL_DRIFTED)
        return session.scalar(query) or 0

    assert await database.read(audited) == 1


async def test_the_rounds_of_a_task_share_its_bindings_and_count_its_attempts(
    rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> tuple[Built, str]:
        built = build_program(session)
        return built, build_task(session, built).id

    built, task_id = await database.write(work)
    made = [await rounds.run(built.key_id, call("subagent_list"), task_id=task_id) for _ in range(2)]

    def read(session: ReadSession) -> tuple[list[int], int, set[str | None], set[str | None]]:
        rows = session.scalars(select(ToolInvocation).order_by(ToolInvocation.attempt_no)).all()
        found = [session.get_one(Round, round_id) for round_id in made]
        return (
            [row.attempt_no for row in rows],
            len({row.tool_binding_id for row in rows}),
            {row.task_id for row in rows},
            {row.frozen_set_digest for row in found} - {session.get_one(Task, task_id).frozen_set_digest},
        )

    assert await database.read(read) == ([1, 2], 1, {task_id}, set())


async def test_spawning_makes_a_child_conversation_with_a_queued_task(
    rounds: Rounds, database: Database
) -> None:
    profiles: dict[str, JSON] = {"main": {}, "researcher": {"allowed_tool_names": ["subagent_list"]}}

    def work(session: WriteSession) -> tuple[Built, str, str]:
        built = build_program(session, profile_catalog=profiles)
        conversation_id = begin(session, built)
        return built, conversation_id, build_task(session, built, conversation_id=conversation_id).id

    built, conversation_id, task_id = await database.write(work)
    round_id = await rounds.run(
        built.key_id,
        InlineCall("a", "subagent_spawn", {"content": "x", "scope": "turn", "profile_key": "main"}),
        InlineCall("b", "subagent_spawn", {"content": "y"}),
        InlineCall("c", "subagent_list", {}),
        task_id=task_id,
    )

    assert [status for status, _ in await rounds.outcome(round_id)] == ["succeeded"] * 3

    def read(session: ReadSession) -> list[Any]:
        turn_id = session.get_one(Task, task_id).turn_id
        return [
            (
                row.scope.value,
                row.depth,
                row.profile_key,
                row.origin_turn_id == (turn_id if row.scope.value == "turn" else None),
                session.get_one(Conversation, row.conversation_id).parent_conversation_id == conversation_id,
                [
                    (task.kind, task.attempt_no, task.profile_key)
                    for task in session.scalars(
                        select(Task).where(Task.conversation_id == row.conversation_id)
                    )
                ],
            )
            for row in load_owned(session, conversation_id)
        ]

    subagent = TaskKind.SUBAGENT_STEP
    assert await database.read(read) == [
        ("turn", 0, "main", True, True, [(subagent, 1, "main")]),
        ("conversation", 0, "researcher", True, True, [(subagent, 1, "researcher")]),
    ]


async def test_a_key_with_core_tools_begins_a_conversation_by_its_first_spawn(
    rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> str:
        project_core(session)
        key = add_key(session)
        key.core_tools = True
        return key.id

    key_id = await database.write(work)
    round_id = await rounds.run(key_id, spawn(), call("subagent_list", call_id="c2"))

    outcomes = await rounds.outcome(round_id)
    assert [status for status, _ in outcomes] == ["succeeded", "succeeded"]
    assert b'"subagent_depth":0' in outcomes[1][1]


async def test_a_key_without_the_flag_sees_no_core_tool(rounds: Rounds, database: Database) -> None:
    def work(session: WriteSession) -> str:
        project_core(session)
        return add_key(session).id

    key_id = await database.write(work)
    round_id = await rounds.run(key_id, spawn())

    assert [status for status, _ in await rounds.outcome(round_id)] == ["tool_not_allowed"]


async def test_taking_the_flag_away_stops_a_frozen_built_in_tool_of_a_key(
    rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> str:
        project_core(session)
        key = add_key(session)
        key.core_tools = True
        return key.id

    key_id = await database.write(work)

    # A task outlives the flag that it was frozen under; so does a conversation's round until it is sent.
    def frozen(session: WriteSession) -> str:
        conversation_id = add_conversation(session, key_id, None).id
        task_id = create_task(session, NewTask(conversation_id, "work")).id
        session.get_one(ApiKey, key_id).core_tools = False
        return task_id

    task_id = await database.write(frozen)
    round_id = await rounds.run(key_id, spawn(), task_id=task_id)

    assert [status for status, _ in await rounds.outcome(round_id)] == ["tool_not_allowed"]


async def test_a_program_has_the_built_in_tools_whatever_its_keys_flags(
    rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> tuple[Built, str, str]:
        built = build_program(session)
        session.get_one(ApiKey, built.key_id).core_tools = False
        session.flush()
        conversation_id = begin(session, built)
        return built, conversation_id, build_task(session, built, conversation_id=conversation_id).id

    built, conversation_id, task_id = await database.write(work)
    made = [
        await rounds.run(built.key_id, spawn(), task_id=task_id),
        await rounds.run(built.key_id, spawn(), conversation_id=conversation_id),
    ]

    assert [[status for status, _ in await rounds.outcome(one)] for one in made] == [["succeeded"]] * 2


@pytest.mark.parametrize("why", ["policy", "closing", "no turn"])
async def test_a_subagent_that_may_not_start_is_a_failed_call_that_leaves_nothing(
    why: str, rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> tuple[Built, str, str]:
        built = build_program(session)
        conversation_id = begin(session, built)
        task = build_task(session, built, conversation_id=conversation_id)
        conversation = session.get_one(Conversation, conversation_id)
        if why == "policy":
            conversation.override_payload = {"subagents": {"enabled": False}}
        elif why == "closing":
            conversation.state = ConversationState.CLOSING
        return built, conversation_id, task.id

    built, conversation_id, task_id = await database.write(work)
    place: dict[str, Any] = {"conversation_id": conversation_id} if why == "no turn" else {"task_id": task_id}
    round_id = await rounds.run(built.key_id, spawn(scope="turn"), **place)

    [(status, error)] = await rounds.outcome(round_id)
    assert status == "failed"
    assert (error["code"], error["details"]["rule"]) == {
        "policy": ("tool_not_allowed", "not_visible"),
        "closing": ("subagent_refused", "conversation_not_active"),
        "no turn": ("subagent_refused", "no_turn"),
    }[why]
    assert await database.read(lambda session: session.scalars(select(SubagentSession.id)).all()) == []


async def test_a_repeated_spawn_of_one_call_finds_what_the_first_one_made(
    rounds: Rounds, database: Database
) -> None:
    def work(session: WriteSession) -> tuple[Built, str]:
        built = build_program(session)
        return built, build_task(session, built).id

    built, task_id = await database.write(work)
    round_id = await rounds.run(built.key_id, spawn(), task_id=task_id)

    def again(session: WriteSession) -> tuple[JSON, int]:
        [invocation] = load_invocations(session, round_id).values()
        request = SpawnRequest.of(round_id, invocation.id, {"content": "Look it up."})
        made = spawn_subagent(session, request)
        return made, len(session.scalars(select(SubagentSession.id)).all())

    made, count = await database.write(again)
    [(_, content)] = await rounds.outcome(round_id)
    assert made["subagent_session_id"].encode() in content
    assert count == 1
