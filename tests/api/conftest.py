"""Apps for tests of the API."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.api.bench import APIBench, api_bench, make_settings
from worker import WorkerParts, running_worker


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[APIBench]:
    """An app that has no workflow engine."""
    async with api_bench(make_settings(tmp_path, database_url), None) as bench:
        yield bench


@pytest.fixture
async def engine_api(
    database_url: str, tmp_path: Path, temporal_client: Client, task_queue: str
) -> AsyncIterator[APIBench]:
    """An app with the real workflow engine; workers are the test's own."""
    settings = make_settings(tmp_path, database_url, task_queue=task_queue)
    async with api_bench(settings, temporal_client) as bench:
        yield bench


@pytest.fixture
async def live_api(engine_api: APIBench) -> AsyncIterator[APIBench]:
    """An app with the real workflow engine and the real worker."""
    parts = WorkerParts(
        engine_api.deps.settings, engine_api.database, engine_api.deps.vault, engine_api.temporal
    )
    async with running_worker(parts):
        yield engine_api
