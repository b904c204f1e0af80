"""Without the workflow engine, or with a locked database: what is said is true, and nothing happens later."""

import asyncio
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from temporalio.client import Client

from api.engine import RoundStart
from governance.codes import RoundState
from models.database import Database, WriteSession
from models.round import Round
from tests.api.bench import (
    Agent,
    APIBench,
    api_bench,
    error_of,
    execute,
    make_settings,
    start_round,
    tool_call,
)
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.world import ConnectionPlan
from workflows.payloads import data_converter

KEY = {"idempotency-key": "only-once"}

pytestmark = pytest.mark.anyio


async def only_round(api: APIBench) -> Round:
    return await api.database.read(lambda session: session.scalars(select(Round)).one())


@pytest.fixture
def silent_address() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def refusing_address() -> str:
    """An address that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


async def lazy_client(address: str) -> Client:
    return await Client.connect(address, lazy=True, data_converter=data_converter)


async def refused_round(api: APIBench, agent: Agent) -> Round:
    response = await execute(api, agent, tool_call("files-read"), KEY)
    error = error_of(response)
    assert (response.status_code, error["code"], error["retryable"]) == (503, "engine_unavailable", True)
    row = await only_round(api)
    assert (row.state, row.id) == (RoundState.ABANDONED, error["details"]["round_id"])
    return row


async def test_without_an_engine_a_round_is_refused_and_abandoned(api: APIBench) -> None:
    await refused_round(api, await api.agent(ConnectionPlan()))


async def test_an_engine_that_refuses_connections_is_a_refusal(
    database_url: str, tmp_path: Path, refusing_address: str
) -> None:
    client = await lazy_client(refusing_address)
    async with api_bench(make_settings(tmp_path, database_url), client) as api:
        await refused_round(api, await api.agent(ConnectionPlan()))


async def test_a_refused_round_never_runs_and_its_key_stays_refused(
    api: APIBench, temporal_client: Client, task_queue: str, tmp_path: Path, database_url: str
) -> None:
    agent, runner = await api.agent(ConnectionPlan()), ScriptedRunner(echo)
    row = await refused_round(api, agent)

    settings = make_settings(tmp_path, database_url, task_queue=task_queue)
    async with (
        api_bench(settings, temporal_client) as later,
        round_worker(temporal_client, api.database, runner, task_queue=task_queue),
    ):
        again = await execute(later, agent, tool_call("files-read"), KEY)
        # Even a start that had been under way all the time does not run it.
        start = RoundStart(row.id, row.key_id, row.round_key, row.body_digest, ["files-read"], None, None)
        await later.deps.engine.start_round(start)
        await later.deps.engine.wait_for_round(row.workflow_id, 5)

    assert (again.status_code, error_of(again)["code"]) == (503, "round_abandoned")
    assert error_of(again)["retryable"] is False
    assert runner.sent == []
    assert (await only_round(api)).state is RoundState.ABANDONED


async def test_an_engine_that_does_not_answer_leaves_the_round_to_be_started(
    database_url: str, tmp_path: Path, silent_address: str
) -> None:
    client = await lazy_client(silent_address)
    async with api_bench(make_settings(tmp_path, database_url), client) as api:
        agent = await api.agent(ConnectionPlan())
        response = await start_round(api, agent, [tool_call("files-read")])
        row = await only_round(api)

    assert (response.status_code, response.json()) == (202, {"round_id": row.id, "state": "requested"})
    assert row.state is RoundState.REQUESTED


async def test_a_repeat_starts_a_round_whose_start_was_lost(
    engine_api: APIBench, database_url: str, tmp_path: Path, silent_address: str
) -> None:
    api, runner, client = engine_api, ScriptedRunner(echo), await lazy_client(silent_address)
    async with api_bench(make_settings(tmp_path, database_url), client) as silent:
        agent = await silent.agent(ConnectionPlan())
        first = await start_round(silent, agent, [tool_call("files-read")], headers=KEY)

    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        second = await start_round(api, agent, [tool_call("files-read")], headers=KEY)

    assert (first.status_code, second.status_code) == (202, 200)
    assert second.json()["round_id"] == first.json()["round_id"]
    assert runner.sent == ["call_1"]


async def test_a_repeat_of_a_running_round_that_the_engine_has_lost_is_accepted(
    engine_api: APIBench, database_url: str, tmp_path: Path, silent_address: str
) -> None:
    client = await lazy_client(silent_address)
    async with api_bench(make_settings(tmp_path, database_url), client) as silent:
        agent = await silent.agent(ConnectionPlan())
        round_id = (await start_round(silent, agent, [tool_call("files-read")], headers=KEY)).json()[
            "round_id"
        ]

        def run(session: WriteSession) -> None:
            session.get_one(Round, round_id).state = RoundState.RUNNING

        await silent.database.write(run)

    second = await start_round(engine_api, agent, [tool_call("files-read")], headers=KEY)

    assert (second.status_code, second.json()) == (202, {"round_id": round_id, "state": "running"})


async def test_a_cancel_that_cannot_be_delivered_says_so(
    api: APIBench, database_url: str, tmp_path: Path, silent_address: str
) -> None:
    client = await lazy_client(silent_address)
    async with api_bench(make_settings(tmp_path, database_url), client) as silent:
        agent = await silent.agent(ConnectionPlan())
        round_id = (await start_round(silent, agent, [tool_call("files-read")])).json()["round_id"]

    response = await api.http.post(f"/v1/rounds/{round_id}/cancel", headers=agent.headers)

    assert (response.status_code, error_of(response)["code"]) == (503, "cancel_unavailable")
    assert (await only_round(api)).state is RoundState.REQUESTED


async def test_reads_go_on_without_an_engine(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan())

    tools = await api.http.get("/v1/mcp/tools", headers=agent.headers)
    health = await api.http.get("/healthz")
    ready = await api.http.get("/readyz")

    assert (tools.status_code, health.status_code) == (200, 200)
    assert (ready.status_code, error_of(ready)["code"]) == (503, "engine_unavailable")


@pytest.fixture
def locked_path(sqlite_template_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(sqlite_template_path, tmp_path / "locked.db"))


@pytest.mark.sqlite
async def test_a_locked_database_is_busy_and_starts_nothing(
    locked_path: Path, tmp_path: Path, temporal_client: Client, task_queue: str
) -> None:
    settings = make_settings(
        tmp_path, f"sqlite:///{locked_path}", database_busy_timeout_ms=50, task_queue=task_queue
    )
    runner = ScriptedRunner(echo)
    async with api_bench(settings, temporal_client) as api:
        agent = await api.agent(ConnectionPlan())
        holder = sqlite3.connect(locked_path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        response = await execute(api, agent, tool_call("files-read"))
        holder.close()
        async with (
            Database(f"sqlite:///{locked_path}") as workers_own,
            round_worker(temporal_client, workers_own, runner, task_queue=task_queue),
        ):
            await asyncio.sleep(0)
        rows = await api.database.read(lambda session: session.scalars(select(Round)).all())

    assert (response.status_code, error_of(response)["code"]) == (503, "database_busy")
    assert response.headers["retry-after"] == "1"
    assert (rows, runner.sent) == ([], [])
