"""`sluicegate usage`, as an operator and as the holder of a key."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from models.database import WriteSession
from models.usage import UsageKind, UsageStatus, Used, append_usage
from tests.api.test_apply import run
from tests.gateway.stage import Stage, stage
from tests.support.databases import sqlite_copy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@pytest.fixture
async def gateway(
    sqlite_template_path: Path, tmp_path: Path, temporal_client: Client
) -> AsyncIterator[Stage]:
    url = sqlite_copy(sqlite_template_path, tmp_path)
    async with stage(tmp_path, url, temporal_client, f"test-{uuid4().hex}") as built:
        yield built


async def use(gateway: Stage, key_id: str, tools: int) -> None:
    """Write usage of one call for each of many tools, at half a unit each."""

    def write(session: WriteSession) -> None:
        append_usage(
            session,
            *(
                Used(
                    key_id,
                    UsageKind.TOOL_CALL,
                    UsageStatus.SUCCEEDED,
                    tool=f"files-tool_{number:03}",
                    cost=500_000_000,
                )
                for number in range(tools)
            ),
        )

    await gateway.api.database.write(write)


async def test_an_operator_sees_all_pages_and_narrows_them(gateway: Stage, tmp_path: Path) -> None:
    agent, other = await gateway.key(), await gateway.key()
    await use(gateway, agent.key_id, 70)
    await use(gateway, other.key_id, 1)
    shown = json.loads((await run(gateway, tmp_path, "usage", "--by", "tool", "--json")).out)
    narrowed = await run(
        gateway,
        tmp_path,
        "usage",
        "--of-key",
        agent.key_id,
        "--tool",
        "files-tool_001",
        "--from",
        "2026-01-01",
    )

    assert (len(shown["items"]), shown["total"]["requests"], shown["total"]["cost"]) == (70, 71, "35.5")
    assert "files-tool_001" in narrowed.out
    assert "1 requests in all, 0 denied; cost 0.5." in narrowed.err


async def test_the_holder_of_a_key_sees_its_own_and_its_quota(gateway: Stage, tmp_path: Path) -> None:
    agent, other = await gateway.key(), await gateway.key()
    await use(gateway, agent.key_id, 2)
    await use(gateway, other.key_id, 3)
    path = f"/api/v1/mcp/keys/{agent.key_id}/quota"
    await gateway.operator("PUT", path, json={"requests_per_day": 7, "budget_per_month": "3"})
    done = await run(gateway, tmp_path, "usage", "--by", "day", extra={"SLUICEGATE_KEY": agent.secret})

    assert done.status == 0, done
    assert "2 requests in all, 0 denied; cost 1." in done.err
    assert "0 of 7" in done.out
    assert "0 of 3" in done.out


async def test_a_cap_is_set_from_the_command_line(gateway: Stage, tmp_path: Path) -> None:
    await gateway.connect("capped", ["*"])
    options = ("--max-concurrency", "2", "--queue-timeout", "3")
    done = await run(gateway, tmp_path, "connections", "set", "capped", *options)
    shown = (await gateway.operator("GET", "/api/v1/mcp/clients/capped")).json()

    assert done.status == 0, done
    assert (shown["max_concurrency"], shown["queue_timeout_s"]) == (2, 3)
