"""Tasks freeze with their creation, once; what changes later changes nothing for them."""

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import select

from governance.filters import NO_FILTER
from governance.modes import GovernanceMode, SelectionRule
from models.base import new_id
from models.binding import BindingReason
from models.catalog import load_world
from models.connection import Connection
from models.conversation import add_conversation
from models.database import Database, ReadSession, WriteSession
from models.key import ApiKey
from models.place import load_standing
from models.program import ProgramVersion
from models.projection import DeclaredTool, project_connection
from models.subagent import CloseState, ObservedStatus, SubagentScope, SubagentSession
from models.task import (
    ImplementationRefused,
    KeyGone,
    NewTask,
    Task,
    TaskRefused,
    ToolNotGoverned,
    create_task,
    freeze_task,
    load_task_world,
)
from models.tool import ApprovedImplementation, FrozenSet, ToolDefinition, load_snapshots
from models.version_projection import project_core
from tests.models.governed import (
    Built,
    begin,
    build_program,
    build_task,
    conversation_row,
    definition_of,
    implementations_of,
    project_again,
)
from tests.support.programs import mcp_tool, runtime_tool, tool
from tests.support.world import ConnectionPlan, add_connection

pytestmark = pytest.mark.anyio

FAMILY = {"subagent_spawn", "subagent_list"}


def frozen_names(session: WriteSession, built: Built, **changes: Any) -> set[str]:
    return set(freeze_task(session, build_task(session, built, **changes).id))


def ids(session: ReadSession | WriteSession, task_id: str) -> dict[str, str]:
    return {name: binding.id for name, binding in freeze_task(session, task_id).items()}


async def test_creating_a_task_binds_what_it_may_use_and_asking_again_binds_nothing(
    database: Database,
) -> None:
    def work(session: WriteSession) -> tuple[str, dict[str, str]]:
        built = build_program(session, profile_catalog={"main": {"allowed_tool_names": ["subagent_list"]}})
        task = build_task(session, built)
        return task.id, ids(session, task.id)

    task_id, first = await database.write(work)

    assert set(first) == {"subagent_list"}
    assert await database.read(ids, task_id) == first


async def test_another_attempt_gets_a_set_of_its_own_and_the_same_turn(database: Database) -> None:
    def work(session: WriteSession) -> list[Task]:
        built = build_program(session)
        conversation_id = begin(session, built)
        return [build_task(session, built, conversation_id=conversation_id) for _ in range(2)]

    first, second = await database.write(work)

    assert (first.attempt_no, second.attempt_no) == (1, 2)
    assert (first.turn_id, first.frozen_set_digest) == (second.turn_id, second.frozen_set_digest)
    before, after = await database.read(ids, first.id), await database.read(ids, second.id)
    assert set(before) == set(after) == FAMILY
    assert set(before.values()).isdisjoint(after.values())


async def test_eight_attempts_at_once_are_numbered_without_gaps(database: Database) -> None:
    def work(session: WriteSession) -> tuple[Built, str]:
        built = build_program(session)
        return built, begin(session, built)

    built, conversation_id = await database.write(work)
    tasks = await asyncio.gather(
        *(database.write(lambda s: build_task(s, built, conversation_id=conversation_id)) for _ in range(8))
    )

    assert sorted(task.attempt_no for task in tasks) == list(range(1, 9))
    assert len({task.turn_id for task in tasks}) == 1


async def test_a_catalog_edit_after_the_freeze_changes_nothing_not_even_the_schema(
    database: Database,
) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}

    def work(session: WriteSession) -> tuple[str, str]:
        plan = ConnectionPlan(tools={"read": schema, "write": schema})
        connection = add_connection(session, plan)
        task = build_task(session, build_program(session, grants={connection.id: ["*"]}))
        return connection.id, task.id

    connection_id, task_id = await database.write(work)

    def frozen(session: ReadSession) -> dict[str, Any]:
        bindings = freeze_task(session, task_id)
        contents = load_snapshots(session, {row.snapshot_digest for row in bindings.values()})
        return {
            name: (row.tool_implementation_id, json.loads(contents[row.snapshot_digest]))
            for name, row in bindings.items()
        }

    before = await database.read(frozen)

    def edit(session: WriteSession) -> None:
        connection = session.get_one(Connection, connection_id)
        connection.url = "http://elsewhere.example/mcp"
        project_connection(session, connection, [DeclaredTool("read", {"input_schema": {"type": "object"}})])

    await database.write(edit)

    assert await database.read(frozen) == before
    assert before["files-read"][1]["input_schema"] == schema
    assert set(before) == {"files-read", "files-write", *FAMILY}


@pytest.mark.parametrize(
    ("override", "left"),
    [
        ({}, FAMILY),
        ({"subagents": {"enabled": False}}, set()),
        ({"subagents": {"allow_nested": False}}, FAMILY),
        ({"subagents": {"max_depth": 0}}, FAMILY),
    ],
)
async def test_a_root_conversation_loses_subagents_only_by_its_own_policy(
    override: dict[str, Any], left: set[str], database: Database
) -> None:
    def work(session: WriteSession) -> set[str]:
        return frozen_names(session, build_program(session), override=override)

    assert await database.write(work) == left


@pytest.mark.parametrize(
    ("policy", "depth", "left"),
    [
        ({}, 0, FAMILY),
        ({"allow_nested": False}, 0, {"subagent_list"}),
        ({"max_depth": 1}, 0, FAMILY),
        ({"max_depth": 1}, 1, {"subagent_list"}),
        ({"max_depth": 1}, 2, {"subagent_list"}),
        ({"enabled": False}, 0, set()),
    ],
)
async def test_a_subagent_is_bound_by_nesting_and_depth_and_its_own_profile(
    policy: dict[str, Any], depth: int, left: set[str], database: Database
) -> None:
    profiles: dict[str, Any] = {"main": {"allowed_tool_names": []}, "researcher": {}}

    def work(session: WriteSession) -> set[str]:
        built = build_program(
            session, profile_catalog=profiles, default_config_snapshot={"subagents": policy}
        )
        owner, parent = conversation_row(session, begin(session, built)), None
        for level in range(depth + 1):
            child = add_conversation(session, built.key_id, built.version_id, parent=owner)
            parent = SubagentSession(
                id=new_id(),
                owner_conversation_id=owner.id,
                conversation_id=child.id,
                parent_session_id=None if parent is None else parent.id,
                scope=SubagentScope.CONVERSATION,
                profile_key="researcher",
                depth=level,
                close_state=CloseState.OPEN,
                observed_status=ObservedStatus.RUNNING,
            )
            session.add(parent)
            session.flush()
            owner = child
        return frozen_names(session, built, conversation_id=owner.id)

    assert await database.write(work) == left


async def test_a_profile_that_the_catalog_lacks_admits_nothing(database: Database) -> None:
    def work(session: WriteSession) -> list[set[str]]:
        built = build_program(
            session, profile_catalog={"main": {}, "writer": {"allowed_tool_names": ["subagent_list"]}}
        )
        return [frozen_names(session, built, profile_key=key) for key in ("main", "writer", "unknown", None)]

    assert await database.write(work) == [FAMILY, {"subagent_list"}, set(), FAMILY]


async def test_what_a_profile_does_not_restrict_is_projected_all_the_same(database: Database) -> None:
    # Of two profiles one restricts and the other does not: the unrestricted one misses no definition.
    profiles: dict[str, Any] = {"narrow": {"allowed_tool_names": ["subagent_list"]}, "main": {}}

    def work(session: WriteSession) -> set[str]:
        return frozen_names(session, build_program(session, profile_catalog=profiles))

    assert await database.write(work) == FAMILY


async def test_tools_without_a_runner_are_frozen_by_no_task(database: Database) -> None:
    def work(session: WriteSession) -> set[str]:
        built = build_program(
            session, runtime_tools=[runtime_tool("exec_command")], tool_catalog=[tool("sum")]
        )
        return frozen_names(session, built)

    assert await database.write(work) == FAMILY


def two_servers(session: WriteSession) -> Built:
    first = add_connection(session, ConnectionPlan(name="files"))
    second = add_connection(session, ConnectionPlan(name="backup"))
    return build_program(
        session,
        runtime_tools=[runtime_tool("exec_command")],
        grants={first.id: ["*"], second.id: ["*"]},
        tool_catalog=[
            mcp_tool("search", "files", "read"),
            mcp_tool("search", "backup", "read"),
            mcp_tool("exec_command", "backup", "write"),
        ],
        profile_catalog={"main": {"allowed_tool_names": ["search", "exec_command", "subagent_list"]}},
    )


async def test_another_implementation_of_a_replaceable_tool_is_bound_and_says_so(database: Database) -> None:
    def work(session: WriteSession) -> Any:
        built = two_servers(session)
        task = build_task(session, built, implementations={"search": "mcp/backup/read"})
        row = freeze_task(session, task.id)["search"]
        chosen = implementations_of(session, row.tool_definition_id)["mcp/backup/read"]
        return row.binding_reason, row.tool_implementation_id == chosen.id, row.governance_mode

    assert await database.write(work) == (
        BindingReason.EXPLICIT_OVERRIDE,
        True,
        GovernanceMode.REPLACEABLE,
    )


@pytest.mark.parametrize(
    ("name", "reference", "rule"),
    [
        ("subagent_list", "program/other", SelectionRule.RESERVED),
        ("exec_command", "mcp/backup/write", SelectionRule.NOT_APPROVED),
        ("search", "mcp/backup/write", SelectionRule.NOT_OF_THIS_TOOL),
    ],
)
async def test_an_implementation_that_may_not_be_bound_aborts_the_task_and_names_the_rule(
    name: str, reference: str, rule: SelectionRule, database: Database
) -> None:
    def work(session: WriteSession) -> None:
        build_task(session, two_servers(session), implementations={name: reference})

    with pytest.raises(ImplementationRefused) as refused:
        await database.write(work)

    assert (refused.value.tool_name, refused.value.rule) == (name, rule)
    assert await database.read(lambda session: session.scalars(select(Task.id)).all()) == []


async def test_an_approved_implementation_of_a_whitelisted_tool_is_bound(database: Database) -> None:
    def work(session: WriteSession) -> set[str]:
        built = two_servers(session)
        found = definition_of(session, built, "exec_command")
        found.has_approved_list = True
        chosen = implementations_of(session, found.id)["mcp/backup/write"]
        session.add(ApprovedImplementation(tool_definition_id=found.id, tool_implementation_id=chosen.id))
        session.flush()
        return frozen_names(session, built, implementations={"exec_command": "mcp/backup/write"})

    assert await database.write(work) == {"search", "exec_command", "subagent_list"}


async def test_a_wish_for_a_tool_that_there_is_not_aborts_the_task(database: Database) -> None:
    def work(session: WriteSession) -> None:
        build_task(session, build_program(session), implementations={"nothing": "x"})

    with pytest.raises(ToolNotGoverned):
        await database.write(work)


async def test_a_task_of_a_disabled_key_is_not_created(database: Database) -> None:
    def work(session: WriteSession) -> None:
        built = build_program(session)
        session.get_one(ApiKey, built.key_id).enabled = False
        build_task(session, built)

    with pytest.raises(KeyGone):
        await database.write(work)
    assert issubclass(KeyGone, TaskRefused)


async def test_a_pinned_tool_that_changed_is_withheld_until_it_is_accepted(database: Database) -> None:
    def work(session: WriteSession) -> list[set[str]]:
        connection = add_connection(session, ConnectionPlan(tools={"read": {"type": "object"}}))
        built = build_program(session, grants={connection.id: ["*"]})
        definition = session.scalars(
            select(ToolDefinition).where(ToolDefinition.tool_name == "files-read")
        ).one()
        accepted = next(iter(implementations_of(session, definition.id).values())).content_digest
        definition.pinned_digest = accepted
        session.flush()
        seen = [frozen_names(session, built)]
        changed = [
            DeclaredTool("read", {"description": "Do something else.", "input_schema": {"type": "object"}})
        ]
        project_connection(session, connection, changed)
        seen.append(frozen_names(session, built))
        definition.pinned_digest = next(
            iter(implementations_of(session, definition.id).values())
        ).content_digest
        session.flush()
        return [*seen, frozen_names(session, built)]

    assert await database.write(work) == [{"files-read", *FAMILY}, FAMILY, {"files-read", *FAMILY}]


async def test_our_own_settings_do_not_break_a_pin(database: Database) -> None:
    def work(session: WriteSession) -> bool:
        connection = add_connection(session, ConnectionPlan())
        definition = session.scalars(
            select(ToolDefinition).where(ToolDefinition.tool_name == "files-read")
        ).one()
        row = next(iter(implementations_of(session, definition.id).values()))
        before = row.content_digest
        connection.tool_timeout_s = 7.0
        declared = [
            DeclaredTool(name, {"description": f"Does {name}.", "input_schema": {"type": "object"}})
            for name in ("read", "write")
        ]
        report = project_connection(session, connection, declared)
        return bool(report.changed) and row.content_digest == before

    assert await database.write(work)


async def test_freezing_while_tools_are_projected_sees_all_of_one_listing_or_all_of_the_other(
    database: Database,
) -> None:
    def listing(mark: str) -> list[DeclaredTool]:
        schema = {"type": "object"}
        return [DeclaredTool(f"t{n}", {"description": mark, "input_schema": schema}) for n in range(500)]

    def prepare(session: WriteSession) -> tuple[Built, str]:
        connection = add_connection(session, ConnectionPlan(tools={}))
        project_connection(session, connection, listing("old"))
        return build_program(session, grants={connection.id: ["*"]}), connection.id

    built, connection_id = await database.write(prepare)

    def project(session: WriteSession, mark: str) -> None:
        project_connection(session, session.get_one(Connection, connection_id), listing(mark))

    outcomes = await asyncio.gather(
        database.write(lambda session: build_task(session, built)),
        database.write(project, "new"),
        *(database.write(lambda session: build_task(session, built)) for _ in range(3)),
    )

    def marks(session: ReadSession, task: Task) -> set[str]:
        found = freeze_task(session, task.id)
        digests = {row.snapshot_digest for name, row in found.items() if name.startswith("files-")}
        assert len(digests) == 500
        return {json.loads(content)["description"] for content in load_snapshots(session, digests).values()}

    for task in outcomes:
        if isinstance(task, Task):
            assert len(await database.read(marks, task)) == 1


async def test_the_frozen_set_is_what_is_visible(database: Database) -> None:
    def work(session: WriteSession) -> tuple[set[str], set[str], list[str]]:
        project_core(session)
        built = two_servers(session)
        conversation_id = begin(session, built, {"subagents": {"enabled": False}})
        task = create_task(session, NewTask(conversation_id, "work"))
        version = session.get_one(ProgramVersion, built.version_id)
        standing = load_standing(session, version, conversation_row(session, conversation_id))
        key = session.get_one(ApiKey, built.key_id)
        visible = {row.exposed_name for row in load_world(session, key, NO_FILTER, standing.place).visible()}
        members = session.get_one(FrozenSet, task.frozen_set_digest).members
        world, _ = load_task_world(session, task, key, NO_FILTER)
        assert {row.exposed_name for row in world.visible()} == visible
        return visible, set(freeze_task(session, task.id)), sorted(json.loads(members))

    visible, bound, members = await database.write(work)

    assert visible == bound == set(members) == {"search"}


async def test_projecting_again_after_a_freeze_keeps_the_tasks_rows(database: Database) -> None:
    def work(session: WriteSession) -> tuple[dict[str, str], dict[str, str]]:
        built = build_program(session)
        task = build_task(session, built)
        before = ids(session, task.id)
        project_again(session, built)
        return before, ids(session, task.id)

    before, after = await database.write(work)
    assert before == after
