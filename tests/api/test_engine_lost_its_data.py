"""An idempotency key outlives the engine's memory: the database answers, and no tool runs again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from api.embedded import EmbeddedOptions, EmbeddedTemporal
from tests.api.bench import APIBench, api_bench, make_settings
from tests.support.databases import sqlite_copy
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.temporal_server import connect
from tests.support.world import ConnectionPlan

pytestmark = pytest.mark.anyio

CALL = {"id": "c1", "type": "function", "function": {"name": "files-read", "arguments": '{"path":"a"}'}}
ON_A_FILE = EmbeddedOptions(grace_s=0.0)


@asynccontextmanager
async def gateway(folder: Path, url: str, engine: Path, runner: ScriptedRunner) -> AsyncIterator[APIBench]:
    """Run an engine on a data file, a worker and an app on a database that is there already."""
    async with EmbeddedTemporal(engine, ON_A_FILE) as server:
        client = await connect(server)
        settings = make_settings(folder, url)
        async with (
            api_bench(settings, client) as bench,
            round_worker(client, bench.database, runner, task_queue=settings.task_queue),
        ):
            yield bench


async def test_the_same_key_gives_the_same_result_after_the_engines_data_was_deleted(
    tmp_path: Path, sqlite_template_path: Path
) -> None:
    url = sqlite_copy(sqlite_template_path, tmp_path)
    runner = ScriptedRunner(echo)
    async with gateway(tmp_path, url, tmp_path / "engine", runner) as before:
        agent = await before.agent(ConnectionPlan())
        headers = {**agent.headers, "idempotency-key": "order-42"}
        first = await before.http.post("/v1/mcp/tool/execute", json=CALL, headers=headers)

    # An engine that has never heard of the round, which is what deleting the data file leaves.
    async with gateway(tmp_path, url, tmp_path / "another-engine", runner) as after:
        second = await after.http.post("/v1/mcp/tool/execute", json=CALL, headers=headers)

    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json() == first.json()
    assert runner.sent == ["c1"]
