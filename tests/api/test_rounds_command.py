"""`sluicegate rounds`, as the holder of a key."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from activities.finalizing import FinalizeRound, finalize
from models.database import WriteSession
from models.reconciliation import LOST_ROUND, repeat_round
from tests.api.test_apply import run
from tests.gateway.stage import Stage, stage
from tests.support.databases import sqlite_copy
from tests.support.world import Call, add_round

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

FAILED = ["round_requested", "round_failed"]
REPEATED = [*FAILED, "round_repeated", "round_completed"]


@pytest.fixture
async def gateway(
    sqlite_template_path: Path, tmp_path: Path, temporal_client: Client
) -> AsyncIterator[Stage]:
    url = sqlite_copy(sqlite_template_path, tmp_path)
    async with stage(tmp_path, url, temporal_client, f"test-{uuid4().hex}") as built:
        yield built


@pytest.mark.parametrize("kinds", [FAILED, REPEATED], ids=["failed", "repeated"])
async def test_events_of_a_round_go_on_after_a_failure_that_its_caller_had_repeated(
    kinds: list[str], gateway: Stage, tmp_path: Path
) -> None:
    agent = await gateway.key()

    def write(session: WriteSession) -> str:
        round_id = add_round(session, agent.key_id, [Call("files-read")], f"round:{uuid4().hex}")
        finalize(session, FinalizeRound(round_id, failure=LOST_ROUND))
        if kinds == REPEATED:
            repeat_round(session, round_id, "request")
            finalize(session, FinalizeRound(round_id))
        return round_id

    round_id = await gateway.api.database.write(write)

    told = await run(
        gateway, tmp_path, "rounds", "events", round_id, "--json", extra={"SLUICEGATE_KEY": agent.secret}
    )

    assert [json.loads(line)["kind"] for line in told.out.splitlines()] == kinds
    goes_on_from = f"rounds events {round_id} --after 2" in told.err
    assert (told.status, goes_on_from) == (0, kinds == FAILED)

    known = ("rounds", "events", round_id, "--after", str(len(kinds)))
    nothing_new = await run(gateway, tmp_path, *known, extra={"SLUICEGATE_KEY": agent.secret})
    assert (nothing_new.status, nothing_new.out) == (0, "")
