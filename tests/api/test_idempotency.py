"""One round for one Idempotency-Key: repeats, conflicts, races, and repeats without an engine."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from temporalio.client import Client

from activities.ledger import OpenCall
from governance.canonical import JSON
from models.round import Round
from tests.api.bench import APIBench, api_bench, error_of, execute, make_settings, start_round, tool_call
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo, text_result
from tests.support.world import ConnectionPlan

KEY = {"idempotency-key": "order 17"}

pytestmark = pytest.mark.anyio


async def rounds_stored(api: APIBench) -> int:
    return await api.database.read(
        lambda session: session.scalar(select(func.count()).select_from(Round)) or 0
    )


async def test_a_repeat_gives_the_same_answer_and_calls_nothing(engine_api: APIBench) -> None:
    api, runner = engine_api, ScriptedRunner(echo)
    agent = await api.agent(ConnectionPlan())
    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        first = await execute(api, agent, tool_call("files-read", '{"a": 1}'), KEY)
        second = await execute(api, agent, tool_call("files-read", '{"a": 1}'), KEY)

    assert (first.status_code, first.content) == (second.status_code, second.content)
    same = ("x-sluicegate-round-id", "x-sluicegate-invocation-id", "x-sluicegate-is-error")
    assert [first.headers[name] for name in same] == [second.headers[name] for name in same]
    assert runner.sent == ["call_1"]


async def test_a_finished_round_is_repeated_without_an_engine_in_one_read(
    engine_api: APIBench, database_url: str, tmp_path: Path
) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan())
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        first = await start_round(api, agent, [tool_call("files-read")], headers=KEY)

    async with api_bench(make_settings(tmp_path, database_url), None) as without_engine:
        second = await start_round(without_engine, agent, [tool_call("files-read")], headers=KEY)
        counts = without_engine.database.counts

    assert (second.status_code, second.json()) == (200, first.json())
    assert (counts.reads, counts.writes) == (1, 0)


async def test_a_repeat_outlives_the_tool(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan())
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        first = await execute(api, agent, tool_call("files-read"), KEY)
        disabled = await api.operator("POST", "/api/v1/mcp/clients/files/disable")
        second = await execute(api, agent, tool_call("files-read"), KEY)

    assert disabled.json()["enabled"] is False
    assert (second.status_code, second.content) == (200, first.content)


@pytest.mark.parametrize(
    "change", [{"calls": [tool_call("files-read", '{"a": 2}')]}, {"headers": {"x-mcp-include-tools": "*"}}]
)
async def test_the_same_key_for_another_request_is_a_conflict(
    engine_api: APIBench, change: dict[str, Any]
) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan())
    calls = [tool_call("files-read", '{"a": 1}')]
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        await start_round(api, agent, calls, headers=KEY)
        headers = {**KEY, **change.get("headers", {})}
        other = await start_round(api, agent, change.get("calls", calls), headers=headers)

    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_conflict")


async def test_keys_of_different_callers_do_not_meet(engine_api: APIBench) -> None:
    api, runner = engine_api, ScriptedRunner(echo)
    one, two = await api.agent(ConnectionPlan()), await api.agent(name="two")
    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        first = await start_round(api, one, [tool_call("files-read")], headers=KEY)
        second = await start_round(api, two, [tool_call("files-read")], headers=KEY)

    assert first.json()["round_id"] != second.json()["round_id"]
    assert len(runner.sent) == 2


async def test_two_apps_that_get_one_key_at_once_run_one_round(
    engine_api: APIBench, database_url: str, tmp_path: Path, temporal_client: Client
) -> None:
    api, runner = engine_api, ScriptedRunner(echo)
    agent = await api.agent(ConnectionPlan())
    settings = make_settings(tmp_path, database_url, task_queue=api.task_queue)
    async with (
        api_bench(settings, temporal_client) as other,
        round_worker(api.temporal, api.database, runner, task_queue=api.task_queue),
    ):
        answers = await asyncio.gather(
            *(start_round(app, agent, [tool_call("files-read")], headers=KEY) for app in [api, other] * 4)
        )

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["round_id"] for answer in answers}) == 1
    assert len(runner.sent) == 1
    assert await rounds_stored(api) == 1


async def test_a_repeat_of_a_running_round_waits_for_it(engine_api: APIBench) -> None:
    api, go = engine_api, asyncio.Event()

    async def held(_call: OpenCall) -> JSON:
        await go.wait()
        return text_result("done")

    runner = ScriptedRunner(held)
    agent = await api.agent(ConnectionPlan())
    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        first = await start_round(api, agent, [tool_call("files-read")], headers=KEY, wait=0)
        waiting = asyncio.create_task(start_round(api, agent, [tool_call("files-read")], headers=KEY))
        go.set()
        second = await waiting

    assert (first.status_code, second.status_code) == (202, 200)
    assert second.json()["round_id"] == first.json()["round_id"]
    assert len(runner.sent) == 1


@pytest.mark.parametrize("key", ["", "  ", "é", "x" * 256])
async def test_a_malformed_key_is_refused(api: APIBench, key: str) -> None:
    agent = await api.agent(ConnectionPlan())
    headers = [
        (b"authorization", agent.headers["authorization"].encode()),
        (b"idempotency-key", key.encode()),
    ]

    response = await api.http.post(
        "/v1/rounds", headers=headers, json={"tool_calls": [tool_call("files-read")]}
    )

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")
