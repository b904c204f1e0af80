"""A database of each kind, opened, and a frozen round in it."""

from collections.abc import AsyncIterator

import pytest

from models.database import Database
from tests.models.frozen import Frozen, freeze_world


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


@pytest.fixture
async def frozen(database: Database) -> Frozen:
    return await freeze_world(database)
