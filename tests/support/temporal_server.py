"""The real Temporal server that tests share, and clients for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.client import Client

from api.embedded import EmbeddedOptions, EmbeddedTemporal
from workflows.payloads import data_converter

TEST_OPTIONS = EmbeddedOptions(in_memory=True, time_skipping=True, grace_s=0.0)
"""As fast as it goes; nothing is kept, so at the end the server is killed and not asked to stop (1.4 s)."""


@asynccontextmanager
async def running_temporal(folder: Path) -> AsyncIterator[EmbeddedTemporal]:
    """Run one tuned in-memory server whose workflows may skip time."""
    async with EmbeddedTemporal(folder, TEST_OPTIONS) as server:
        yield server


async def connect(server: EmbeddedTemporal) -> Client:
    """Connect as the product does: pydantic models as JSON."""
    return await Client.connect(server.address, data_converter=data_converter)
