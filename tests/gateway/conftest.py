"""One gateway for each file of these tests: building it takes longer than asking it."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from temporalio.client import Client

from api.mcp_server.probe import probe_tool
from tests.gateway.stage import TOOLS, Stage, stage
from tests.support.databases import sqlite_copy


@pytest.fixture(scope="module")
async def shared_stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, temporal_client: Client
) -> AsyncIterator[Stage]:
    """The gateway that the tests of one file share."""
    folder = tmp_path_factory.mktemp("gateway")
    url = sqlite_copy(request.getfixturevalue("sqlite_template_path"), folder)
    async with stage(folder, url, temporal_client, f"test-{uuid4().hex}") as built:
        yield built


@pytest.fixture
def gateway(shared_stage: Stage) -> Stage:
    """The shared gateway, its upstream with an empty record and its usual tools."""
    shared_stage.probe.forget()
    shared_stage.probe.tools = [probe_tool(name) for name in TOOLS]
    return shared_stage
