"""Argument rules on the control plane, and what they stop: nothing reaches the server that breaks one."""

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import event, text

from models.audit import AuditEvent, AuditKind
from models.database import Database
from tests.api.bench import Agent, APIBench, error_of, execute, start_round, tool_call
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.world import ConnectionPlan

pytestmark = pytest.mark.anyio

PAY = ConnectionPlan(name="pay", tools={"send": {"type": "object"}, "look": {"type": "object"}})
AMOUNT = {"id": "max-amount", "schema": {"properties": {"amount": {"type": "number", "maximum": 500}}}}
FOLDER = {"id": "folder", "schema": {"properties": {"path": {"pattern": "^/srv/"}}}}


async def path_of(api: APIBench, agent: Agent, level: str) -> str:
    if level == "key":
        return f"/api/v1/mcp/keys/{agent.key_id}/argument-rules"
    if level == "connection":
        return "/api/v1/mcp/clients/pay/argument-rules"
    found = await api.operator("GET", "/api/v1/tools", params={"tool_name": "pay-send"})
    return f"/api/v1/tools/{found.json()['items'][0]['id']}/argument-rules"


async def put(api: APIBench, path: str, rules: Any, **options: Any) -> Any:
    return await api.operator("PUT", path, json={"rules": rules}, **options)


@pytest.mark.parametrize("level", ["key", "connection", "tool"])
async def test_a_rule_of_any_level_stops_calls_before_anything_is_dialled(
    level: str, engine_api: APIBench
) -> None:
    api = engine_api
    agent = await api.agent(PAY)
    await put(api, await path_of(api, agent, level), [])
    await put(api, await path_of(api, agent, level), [AMOUNT])
    runner = ScriptedRunner(echo)
    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        much = await execute(api, agent, tool_call("pay-send", '{"amount": 501}'))
        calls = [
            tool_call("pay-send", '{"amount": 502}', "much"),
            tool_call("pay-send", '{"amount": 500}', "fits"),
        ]
        answer = (await start_round(api, agent, calls)).json()

    details = error_of(much)["details"]
    assert (much.status_code, details["rule"]) == (400, "max-amount")
    assert details["problems"] == [
        {"path": "/amount", "expected": "at most 500", "got": "integer", "position": None}
    ]
    assert [row["status"] for row in answer["results"]] == ["refused", "succeeded"]
    assert answer["results"][0]["error"]["details"]["rule"] == "max-amount"
    assert runner.sent == ["fits"]
    rows = await audited(api.database)
    assert [(row.kind, row.data["rule"], row.data["level"], row.data["revision"]) for row in rows] == [
        (AuditKind.REQUEST_REFUSED, "max-amount", level, 1),
        (AuditKind.CALL_REFUSED, "max-amount", level, 1),
    ]
    assert all(row.data["key_revision"] > 0 for row in rows)


async def audited(database: Database) -> list[AuditEvent]:
    def read(session: Any) -> list[AuditEvent]:
        return [row for row in session.query(AuditEvent).order_by(AuditEvent.id) if "rule" in row.data]

    return await database.read(read)


@pytest.mark.parametrize("level", ["key", "connection", "tool"])
async def test_rules_are_shown_edited_under_their_tag_and_removed(level: str, api: APIBench) -> None:
    agent = await api.agent(PAY)
    path = await path_of(api, agent, level)
    empty = await api.operator("GET", path)

    made = await put(api, path, [AMOUNT, FOLDER], headers={"if-match": empty.headers["etag"]})
    late = await put(api, path, [], headers={"if-match": empty.headers["etag"]})
    same = await put(api, path, [AMOUNT, FOLDER])
    removed = await put(api, path, [])

    assert (empty.json()["rules"], empty.json()["revision"]) == ([], 0)
    assert (made.json()["rules"], made.json()["revision"]) == ([AMOUNT, FOLDER], 1)
    assert late.status_code == 412
    assert (same.json()["revision"], same.headers["etag"]) == (1, made.headers["etag"])
    assert (removed.json()["rules"], removed.json()["revision"]) == ([], 2)
    assert (await api.operator("GET", path)).json() == removed.json()


@pytest.mark.parametrize("level", ["key", "connection", "tool"])
async def test_a_bad_rule_is_refused_with_its_place_and_changes_nothing(level: str, api: APIBench) -> None:
    path = await path_of(api, await api.agent(PAY), level)
    bad = {"id": "look-ahead", "schema": {"properties": {"a": {"pattern": "(?=x)"}}}}

    refused = await put(api, path, [AMOUNT, bad])

    assert (refused.status_code, error_of(refused)["code"]) == (422, "invalid_request")
    assert error_of(refused)["details"]["problems"][0]["path"] == "rules[1].schema"
    assert (await api.operator("GET", path)).json()["rules"] == []


async def test_rules_of_what_is_not_there_are_not_found(api: APIBench) -> None:
    nobody = "01890a5d-ac96-774b-bcce-b302099a8057"
    for path in (f"mcp/keys/{nobody}", "mcp/clients/none_such", f"tools/{nobody}"):
        assert (await api.operator("GET", f"/api/v1/{path}/argument-rules")).status_code == 404
        assert (await put(api, f"/api/v1/{path}/argument-rules", [])).status_code == 404


async def test_a_rule_of_a_key_binds_this_key_and_the_tools_that_it_names(engine_api: APIBench) -> None:
    api = engine_api
    agent, other = await api.agent(PAY), await api.agent(name="other")
    await put(api, await path_of(api, agent, "key"), [{**AMOUNT, "tools": ["pay-send"]}])
    runner = ScriptedRunner(echo)
    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        answers = [
            await execute(api, caller, tool_call(name, '{"amount": 501}'))
            for caller, name in ((agent, "pay-send"), (agent, "pay-look"), (other, "pay-send"))
        ]

    assert [answer.status_code for answer in answers] == [400, 200, 200]


async def test_keys_and_connections_without_rules_cost_no_statement(api: APIBench) -> None:
    """A call that is refused by its schema runs the same statements with rules of a key and without."""
    plan = ConnectionPlan(name="pay", tools={"send": {"type": "object", "required": ["amount"]}})
    agent = await api.agent(plan)

    async def statements() -> int:
        seen: list[str] = []

        def count(*given: Any) -> None:
            seen.append(given[2])

        event.listen(api.database.engine, "before_cursor_execute", count)
        await execute(api, agent, tool_call("pay-send", "{}"))
        event.remove(api.database.engine, "before_cursor_execute", count)
        return len(seen)

    await statements()
    without = await statements()
    await put(api, await path_of(api, agent, "key"), [AMOUNT])

    assert await statements() == without


async def test_a_refusal_that_can_not_be_audited_is_not_given(api: APIBench) -> None:
    """While somebody else holds the database, a refused call is told to come again, and is on record then."""
    if not api.database.is_sqlite:
        return
    agent = await api.agent(PAY)
    await put(api, await path_of(api, agent, "key"), [AMOUNT])
    much = tool_call("pay-send", '{"amount": 501}')
    async with Database(api.database.url.render_as_string()) as other:
        held, go = threading.Event(), threading.Event()

        def hold(session: Any) -> None:
            session.execute(text("SELECT 1"))
            held.set()
            go.wait(30)

        holding = asyncio.create_task(other.write(hold))
        await asyncio.to_thread(held.wait, 5)
        busy = await execute(api, agent, much)
        go.set()
        await holding
    refused = await execute(api, agent, much)

    assert (busy.status_code, error_of(busy)["code"]) == (503, "database_busy")
    assert (refused.status_code, len(await audited(api.database))) == (400, 1)
