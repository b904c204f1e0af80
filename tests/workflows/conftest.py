"""What tests of rounds of programs share."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from models.database import Database
from tests.workflows.governed import Rounds, rounds_on


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


@pytest.fixture
async def rounds(temporal_client: Client, database: Database, task_queue: str) -> AsyncIterator[Rounds]:
    async with rounds_on(temporal_client, database, task_queue) as running:
        yield running
