"""Usage: every sum is a sum of rows, each call is a row once, and a key sees its own alone."""

import asyncio
from collections import Counter
from datetime import date
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from activities.finalizing import FinalizeRound, finalize
from activities.freezing import FreezeRound, freeze
from activities.ledger import CallOutcome, CallPlace, OpenCall, Owner, settle_call, unknown_outcome
from activities.opening import open_call
from governance.canonical import canonical_bytes
from governance.codes import InvocationStatus, SendOutcome
from governance.quotas import money_text
from governance.tool_cache import ToolCache
from models.base import new_id
from models.database import Database, ReadSession, WriteSession
from models.invocation import Settlement, load_invocations
from models.round import load_round_calls
from models.usage import UsageFilter, UsageGroup, UsageRecord, UsageStatus, load_usage, sum_usage
from tests.api.bench import Agent, APIBench, error_of, start_round, tool_call
from tests.api.chat_bench import MODEL, chat, chat_provider
from tests.support.fake_provider import answer, answers, completion, fake_provider, usage
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.world import Call, ConnectionPlan, add_round, build_world
from tests.workflows.unknowns import SendsRunner, answered, unknown

pytestmark = pytest.mark.anyio

PRICES = {"read": "0.25", "*": "0.5"}
TOOLS = ("files-read", "files-write", "files-nothing")
ENDINGS = ("succeeded", "failed", "unknown", "not_sent", "left")


async def asked(api: APIBench, path: str = "/api/v1/usage", **params: Any) -> dict[str, Any]:
    response = await api.operator("GET", path, params=params)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def used(api: APIBench, agent: Agent, **params: Any) -> dict[str, Any]:
    response = await api.http.get("/v1/usage", params=params, headers=agent.headers)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def busy(api: APIBench) -> Agent:
    """Make a key that has called tools, once in vain, and asked a model."""
    agent = await api.agent(ConnectionPlan(tool_prices=PRICES))
    calls = [
        tool_call("files-read", call_id="a"),
        tool_call("files-write", call_id="b"),
        tool_call("files-nothing", call_id="c"),
    ]
    async with (
        fake_provider(answers(answer(completion(told=usage(1000, 500, 200))))) as provider,
        round_worker(api.temporal, api.database, SendsRunner([unknown, answered]), task_queue=api.task_queue),
    ):
        await chat_provider(api, provider, model={"input_price": "2", "output_price": "4"})
        await start_round(api, agent, calls)
        assert (await chat(api, agent)).status_code == 200
    return agent


async def test_usage_is_summed_by_key_tool_model_and_day(engine_api: APIBench) -> None:
    agent = await busy(engine_api)
    page = await asked(engine_api, group_by=["key", "tool", "model", "day"])

    shown = [
        (row["tool"], row["model"], row["tool_calls"], row["chat_requests"], row["cost"])
        for row in page["items"]
    ]
    assert shown == [
        (None, MODEL, 0, 1, "0.004"),
        ("files-nothing", None, 1, 0, "0"),
        ("files-read", None, 1, 0, "0.25"),
        ("files-write", None, 1, 0, "0.5"),
    ]
    assert {row["key_id"] for row in page["items"]} == {agent.key_id}
    assert {row["day"] for row in page["items"]} == {page["items"][0]["day"]}
    total = page["total"]
    assert (total["requests"], total["cost"], page["next_cursor"]) == (4, "0.754", None)
    by_status = {name: total[name] for name in ("succeeded", "failed", "canceled", "unknown", "denied")}
    # The first send had an unknown outcome, and may have run: it is paid for.
    assert by_status == {"succeeded": 2, "failed": 0, "canceled": 0, "unknown": 1, "denied": 1}
    assert (total["prompt_tokens"], total["cached_tokens"], total["completion_tokens"]) == (1000, 200, 500)


async def test_each_grouping_and_each_page_adds_up_to_the_total(engine_api: APIBench) -> None:
    await busy(engine_api)
    for groups in (["key"], ["tool"], ["model"], ["day"], ["tool", "model"], ["day", "key", "tool"]):
        rows: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = await asked(engine_api, group_by=groups, limit=1, **cursor)
            rows += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        whole = (await asked(engine_api, group_by=groups))["items"]

        assert rows == whole
        assert sum(row["requests"] for row in rows) == page["total"]["requests"] == 4


async def test_filters_narrow_what_is_summed(engine_api: APIBench) -> None:
    agent = await busy(engine_api)
    today = (await asked(engine_api, group_by=["day"]))["items"][0]["day"]
    wanted: list[tuple[dict[str, Any], int]] = [
        ({"key": agent.key_id}, 4),
        ({"key": new_id()}, 0),
        ({"tool": "files-read"}, 1),
        ({"model": MODEL}, 1),
        ({"first_day": today, "last_day": today}, 4),
        ({"last_day": "2020-01-01"}, 0),
        ({"first_day": "2999-01-01"}, 0),
    ]

    for params, requests in wanted:
        assert (await asked(engine_api, **params))["total"]["requests"] == requests, params


async def test_without_groups_there_is_one_sum(engine_api: APIBench) -> None:
    await busy(engine_api)
    page = await asked(engine_api)

    assert len(page["items"]) == 1
    assert {name: page["items"][0][name] for name in page["total"]} == page["total"]


async def test_a_key_sees_its_own_usage_and_its_quota(engine_api: APIBench) -> None:
    api = engine_api
    agent, other = await busy(api), await api.agent(name="other")
    await api.operator("PUT", f"/api/v1/mcp/keys/{agent.key_id}/quota", json={"requests_per_day": 9})
    own, none = await used(api, agent, group_by="tool"), await used(api, other, key=agent.key_id)

    assert own["total"]["requests"] == 4
    assert own["quota"]["limits"]["requests_per_day"] == 9
    assert (none["total"]["requests"], none["quota"]) == (0, None)


@pytest.mark.parametrize(
    "params",
    [
        {"group_by": "color"},
        {"first_day": "yesterday"},
        {"cursor": "x", "group_by": "tool"},
        {"cursor": "WyJhIiwgImIiXQ==", "group_by": "tool"},
        {"cursor": "WyJhIl0=", "group_by": "day"},
        {"cursor": "WyJhIl0=", "group_by": "key"},
        {"cursor": "WyJcdTAwMDAiXQ==", "group_by": "tool"},
        {"limit": 0},
        {"tool": "a\x00b"},
    ],
)
async def test_what_cannot_be_summed_is_refused(api: APIBench, params: dict[str, Any]) -> None:
    refused = await api.operator("GET", "/api/v1/usage", params=params)

    assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_request")


async def test_a_call_that_is_settled_twice_is_a_row_once(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan(tool_prices=PRICES))
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        round_id = (await start_round(api, agent, [tool_call("files-read")])).json()["round_id"]
    await api.database.write(finalize, FinalizeRound(round_id))

    assert (await asked(api, round_id=round_id))["total"]["requests"] == 1
    assert (await used(api, agent, round_id=round_id))["total"]["cost"] == "0.25"


def ending_of(call: OpenCall, ending: str) -> CallOutcome:
    tool = call.snapshot.exposed_name
    match ending:
        case "succeeded":
            done = Settlement(InvocationStatus.SUCCEEDED)
            return CallOutcome(done, SendOutcome.ANSWERED, canonical_bytes({"content": []}))
        case "failed":
            return CallOutcome(Settlement(InvocationStatus.FAILED, is_error=True), SendOutcome.ANSWERED)
        case "unknown":
            return unknown_outcome(tool, "no_answer")
        case _:
            return CallOutcome(Settlement(InvocationStatus.FAILED), SendOutcome.NOT_SENT)


async def play(database: Database, key_id: str, calls: list[tuple[str, str]]) -> str:
    """Run a round's transactions in their order, and end each call as it is told; return the round."""
    tools, workflow_id = ToolCache(), f"round:{uuid4().hex}"
    asked_calls = [Call(tool) for tool, _ in calls]
    round_id = await database.write(add_round, key_id, asked_calls, workflow_id)
    plan = await database.write(freeze, FreezeRound(workflow_id, key_id, round_id, round_id, ""), tools)
    for planned in plan.calls:
        ending = calls[planned.position][1]
        place = CallPlace(round_id, planned.position, planned.position, f"s{planned.position}.c0")
        opened = await database.write(open_call, place, Owner("test", new_id()), tools)
        assert isinstance(opened, OpenCall)
        if ending != "left":
            await database.write(settle_call, opened, opened.send_id, ending_of(opened, ending))
    await database.write(finalize, FinalizeRound(round_id))
    return round_id


async def check_round(database: Database, round_id: str, prices: dict[str, int]) -> None:
    """Compare a round's usage with what its calls and invocations say, which know nothing of usage."""

    def read(session: ReadSession) -> tuple[list[UsageRecord], Counter[str], int, list[Any]]:
        invocations = load_invocations(session, round_id)
        statuses: Counter[str] = Counter()
        cost = 0
        for call in load_round_calls(session, round_id):
            if call.refusal is not None:
                statuses["denied"] += 1
                continue
            invocation = invocations[call.invocation_id or ""]
            is_unknown = invocation.outcome.value == "unknown"
            statuses["unknown" if is_unknown else invocation.status.value] += 1
            ran = is_unknown or invocation.response_digest is not None or invocation.is_error
            cost += prices[call.tool_name] if ran else 0
        sums = [
            sum_usage(session, UsageFilter(round_id=round_id), groups)
            for groups in ((), (UsageGroup.TOOL,), (UsageGroup.KEY, UsageGroup.DAY), tuple(UsageGroup))
        ]
        return load_usage(session, round_id), statuses, cost, sums

    rows, statuses, cost, sums = await database.read(read)
    assert Counter(row.status.value for row in rows) == statuses
    assert sum(row.cost for row in rows) == cost
    for grouped in sums:
        assert sum(one.requests for one in grouped) == len(rows)
        assert sum(one.cost for one in grouped) == cost
        for status in UsageStatus:
            assert sum(one.by_status[status] for one in grouped) == statuses[status.value]


async def test_the_sum_of_every_round_is_the_sum_of_its_rows(database_url: str) -> None:
    prices = {"files-read": 250_000_000, "files-write": 500_000_000, "files-nothing": 0}
    assert money_text(prices["files-read"]) == PRICES["read"]
    async with Database(database_url) as database:
        world = await build_world(database, ConnectionPlan(tool_prices=PRICES))
        loop = asyncio.get_running_loop()

        @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(st.lists(st.tuples(st.sampled_from(TOOLS), st.sampled_from(ENDINGS)), min_size=1, max_size=6))
        def holds(calls: list[tuple[str, str]]) -> None:
            async def one() -> None:
                round_id = await play(database, world.key_id, calls)
                await check_round(database, round_id, prices)

            asyncio.run_coroutine_threadsafe(one(), loop).result(30)

        await asyncio.to_thread(holds)


async def test_usage_of_another_day_is_apart(sqlite_database: Database) -> None:
    world = await build_world(sqlite_database, ConnectionPlan(tool_prices=PRICES))
    first = await play(sqlite_database, world.key_id, [("files-read", "succeeded")])

    def move(session: WriteSession) -> None:
        session.execute(
            update(UsageRecord).where(UsageRecord.round_id == first).values(day=date(2026, 1, 31))
        )

    await sqlite_database.write(move)
    await play(sqlite_database, world.key_id, [("files-read", "succeeded")])

    def read(session: ReadSession) -> list[tuple[Any, ...]]:
        days = session.scalars(select(UsageRecord.day).order_by(UsageRecord.day)).all()
        found = sum_usage(session, UsageFilter(last_day=date(2026, 1, 31)), (UsageGroup.DAY,))
        assert len(days) == 2
        return [(one.group, one.requests) for one in found]

    assert await sqlite_database.read(read) == [((date(2026, 1, 31),), 1)]
