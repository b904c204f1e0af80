"""Quotas, prices and caps as code: applied once, shown as drift, taken away by null."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.api.test_apply import run, write
from tests.gateway.stage import Stage, stage
from tests.support.databases import sqlite_copy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

CONFIGURATION = """
version: 1
connections:
  priced:
    url: http://127.0.0.1:9/mcp
    network: loopback
    max_concurrency: 3
    queue_timeout_s: 5
    tool_prices: {read: "0.5", "*": "0.01"}
keys:
  payer:
    quota: {requests_per_minute: 60, budget_per_day: "10.50"}
"""


@pytest.fixture
async def gateway(
    sqlite_template_path: Path, tmp_path: Path, temporal_client: Client
) -> AsyncIterator[Stage]:
    url = sqlite_copy(sqlite_template_path, tmp_path)
    async with stage(tmp_path, url, temporal_client, f"test-{uuid4().hex}") as built:
        yield built


async def test_quotas_prices_and_caps_are_applied_once_and_taken_away_by_null(
    gateway: Stage, tmp_path: Path
) -> None:
    file = write(tmp_path, CONFIGURATION)
    first = await run(gateway, tmp_path, "apply", "-f", file)
    second = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run")

    assert (first.status, second.status) == (0, 0), (first, second)
    assert "~ quota payer" in first.out
    shown = (await gateway.operator("GET", "/api/v1/mcp/clients/priced")).json()
    assert (shown["max_concurrency"], shown["queue_timeout_s"]) == (3, 5)
    assert shown["tool_prices"] == {"read": "0.5", "*": "0.01"}
    [key] = [
        one
        for one in (await gateway.operator("GET", "/api/v1/keys")).json()["items"]
        if one["name"] == "payer"
    ]
    path = f"/api/v1/mcp/keys/{key['id']}/quota"
    limits = (await gateway.operator("GET", path)).json()["limits"]
    assert (limits["requests_per_minute"], limits["budget_per_day"]) == (60, "10.5")

    await gateway.operator("PUT", path, json={"requests_per_minute": 1})
    drift = await run(gateway, tmp_path, "apply", "-f", file, "--dry-run")
    assert (drift.status, "~ quota payer" in drift.out) == (1, True)
    assert "{'requests_per_minute': 1} -> {'requests_per_minute': 60, 'budget_per_day': '10.5'}" in drift.out

    nulls = (
        "version: 1\nconnections:\n  priced: {max_concurrency: null, tool_prices: null}\n"
        "keys:\n  payer: {quota: null}\n"
    )
    cleared = await run(gateway, tmp_path, "apply", "-f", write(tmp_path, nulls))
    assert "- quota payer" in cleared.out
    shown = (await gateway.operator("GET", "/api/v1/mcp/clients/priced")).json()
    assert (shown["max_concurrency"], shown["tool_prices"]) == (None, None)
    assert (await gateway.operator("GET", path)).json()["limits"] is None


async def test_what_is_no_quota_is_refused_with_its_place(gateway: Stage, tmp_path: Path) -> None:
    text = "version: 1\nkeys:\n  payer:\n    quota: {requests_per_minute: -1}\n"
    done = await run(gateway, tmp_path, "apply", "-f", write(tmp_path, text))

    assert (done.status, "keys.payer.quota.requests_per_minute" in done.err) == (2, True)
