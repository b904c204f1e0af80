"""The audit trail over HTTP and in the command line: head, proof, pruning, and what tampering looks like."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from temporalio.client import Client

from governance.audit_chain import link_hash
from models.base import utc_now
from tests.api.bench import APIBench, error_of
from tests.api.test_apply import run
from tests.gateway.stage import Stage, stage
from tests.support.databases import sqlite_copy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

AUDIT = "/api/v1/audit"


def read(file: str) -> Any:
    return json.loads(Path(file).read_text("utf-8"))


async def changes(api: APIBench, count: int) -> None:
    for number in range(count):
        made = await api.operator("POST", "/api/v1/keys", json={"name": f"key {uuid4().hex} {number}"})
        assert made.status_code == 201


async def test_rows_are_sealed_and_their_links_can_be_computed_from_what_is_shown(api: APIBench) -> None:
    await changes(api, 3)
    before = (await api.operator("GET", AUDIT)).json()["items"]
    head = (await api.operator("POST", f"{AUDIT}/seal")).json()
    after = (await api.operator("GET", AUDIT)).json()["items"]

    assert [row["number"] for row in before] == [None] * 3
    assert (head["length"], head["hash"]) == (3, after[0]["hash"])
    assert (await api.operator("GET", f"{AUDIT}/head")).json() == head
    for row in after:
        number, previous, hash_ = row.pop("number"), row.pop("previous_hash"), row.pop("hash")
        assert link_hash(previous, number, row) == hash_


async def test_a_kept_head_is_held_against_the_trail(api: APIBench) -> None:
    await changes(api, 2)
    head = (await api.operator("POST", f"{AUDIT}/seal")).json()
    kept = {"length": head["length"], "hash": head["hash"]}
    await changes(api, 1)

    async def verify(heads: list[Any], **more: Any) -> Any:
        return (await api.operator("POST", f"{AUDIT}/verify", json={"heads": heads, **more})).json()

    sound = await verify([kept])
    forged = await verify([{**kept, "hash": "0" * 64}], last=1)
    longer = await verify([{"length": 99, "hash": "0" * 64}])

    assert (sound["holds"], sound["checked"], sound["problems"]) == (True, 3, [])
    assert [problem["fault"] for problem in forged["problems"]] == ["head_mismatch"]
    assert [problem["fault"] for problem in longer["problems"]] == ["truncated"]


@pytest.mark.parametrize("body", [{"before": "2026-01-01T00:00:00"}, {"before": "2999-01-01T00:00:00Z"}, {}])
async def test_pruning_needs_a_time_that_has_passed_with_its_zone(body: Any, api: APIBench) -> None:
    refused = await api.operator("POST", f"{AUDIT}/prune", json=body)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_request")


async def test_keys_have_no_business_with_the_trail(api: APIBench) -> None:
    agent = await api.agent()
    for path in ("seal", "verify", "prune"):
        answer = await api.http.post(f"{AUDIT}/{path}", headers=agent.headers, json={})
        assert answer.status_code == 403


@pytest.fixture
async def gateway(
    sqlite_template_path: Path, tmp_path: Path, temporal_client: Client
) -> AsyncIterator[Stage]:
    url = sqlite_copy(sqlite_template_path, tmp_path)
    async with stage(tmp_path, url, temporal_client, f"test-{uuid4().hex}") as built:
        yield built


async def test_the_command_exports_a_head_and_ends_with_status_1_on_a_trail_that_was_changed(
    gateway: Stage, tmp_path: Path
) -> None:
    await changes(gateway.api, 3)
    file = str(tmp_path / "head.json")
    exported = await run(gateway, tmp_path, "audit", "head", "--out", file)
    await changes(gateway.api, 1)
    sound = await run(gateway, tmp_path, "audit", "verify", "--head", file)
    past = (utc_now() - timedelta(days=1)).isoformat()
    pruned = await run(gateway, tmp_path, "audit", "prune", "--before", past[:19])

    def tamper(session: Any) -> None:
        session.execute(text("DROP TRIGGER audit_events_refuse_update"))
        session.execute(text("UPDATE audit_events SET actor = 'nobody' WHERE id = 2"))

    await gateway.api.database.write(tamper)
    broken = await run(gateway, tmp_path, "audit", "verify", "--json")

    assert exported.status == 0, exported.err
    assert read(file)["length"] == 3
    assert (sound.status, "The trail holds: 4 events checked" in sound.out) == (0, True)
    assert (pruned.status, "0 events removed" in pruned.out) == (0, True)
    assert broken.status == 1
    assert json.loads(broken.out)["problems"] == [{"fault": "changed", "number": 2, "event_id": 2}]
