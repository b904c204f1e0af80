"""Rounds that are started through Temporal where a start grant is demanded."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.start_grants import ROUND_NOT_GRANTED
from governance.start_grants import GRANT_PURPOSE, mint_grant
from models.audit import AuditEvent
from models.database import ReadSession, WriteSession
from models.round import Round
from tests.api.bench import (
    Agent,
    APIBench,
    api_bench,
    error_of,
    execute,
    make_settings,
    start_round,
    tool_call,
)
from tests.support.world import ANY_OBJECT, ConnectionPlan, add_connection
from worker import WorkerParts, running_worker
from workflows.messages import MAX_CALLS, RoundResult

pytestmark = pytest.mark.anyio

CALL = tool_call("one-echo", {"text": "once", "big": 2**70})


@pytest.fixture
async def guarded(
    database_url: str, tmp_path: Path, temporal_client: Client, task_queue: str, mcp_url: str
) -> AsyncIterator[APIBench]:
    settings = make_settings(tmp_path, database_url, task_queue=task_queue, require_start_grant=True)
    async with api_bench(settings, temporal_client) as api:

        def connect(session: WriteSession) -> None:
            add_connection(session, ConnectionPlan("one", tools={"echo": ANY_OBJECT}, url=mcp_url))

        await api.database.write(connect)
        async with running_worker(WorkerParts(settings, api.database, api.deps.vault, api.temporal)):
            yield api


async def granted(api: APIBench, agent: Agent, **headers: str) -> dict[str, Any]:
    answer = await api.http.post(
        "/v1/rounds/grants", json={"tool_calls": [CALL]}, headers={**agent.headers, **headers}
    )
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def start(api: APIBench, minted: Mapping[str, Any], **changes: Any) -> RoundResult:
    result: RoundResult = await api.temporal.execute_workflow(
        minted["workflow_type"],
        {**minted["input"], **changes},
        id=minted["workflow_id"],
        task_queue=minted["task_queue"],
        result_type=RoundResult,
    )
    return result


async def refused(api: APIBench, minted: Mapping[str, Any], **changes: Any) -> str:
    with pytest.raises(WorkflowFailureError) as failure:
        await start(api, minted, **changes)
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == ROUND_NOT_GRANTED
    return cause.message


async def audited(api: APIBench) -> list[tuple[str | None, str]]:
    def read(session: ReadSession) -> list[tuple[str | None, str]]:
        rows = session.scalars(select(AuditEvent).where(AuditEvent.code == "start_grant_required"))
        return [(row.request_id, row.data["reason"]) for row in rows]

    return await api.database.read(read)


async def rounds_stored(api: APIBench) -> int:
    return len(await api.database.read(lambda session: session.scalars(select(Round.id)).all()))


async def test_a_granted_round_runs_once_whoever_starts_it_again(guarded: APIBench) -> None:
    agent = await guarded.agent()
    grant = await granted(guarded, agent, **{"idempotency-key": "turn-1"})
    result = await start(guarded, grant)
    assert result.succeeded == 1
    # The same grant under another workflow id: its round key is taken.
    with pytest.raises(WorkflowFailureError) as failure:
        await start(guarded, {**grant, "workflow_id": "round:again"})
    assert f"whose workflow is {grant['workflow_id']!r}" in str(failure.value.cause)
    assert await rounds_stored(guarded) == 1
    seen = await guarded.http.get(f"/v1/rounds/{result.round_id}", headers=agent.headers)
    assert seen.json()["results"][0]["status"] == "succeeded"


async def test_operators_find_a_round_that_was_started_through_temporal(guarded: APIBench) -> None:
    agent = await guarded.agent()
    grant = await granted(guarded, agent)
    assert (await start(guarded, grant, search_attributes=True)).succeeded == 1
    described = await guarded.temporal.get_workflow_handle(grant["workflow_id"]).describe()
    shown = {pair.key.name: pair.value for pair in described.typed_search_attributes}
    assert shown["SluicegateKey"] == agent.key_id
    assert shown["ToolNames"] == ["one-echo"]
    assert (shown["RoundState"], shown["HasUnknown"]) == ("completed", False)


async def test_a_hostile_start_is_refused_and_not_repeated_for_ever(guarded: APIBench) -> None:
    grant = await granted(guarded, await guarded.agent())
    names = [{"id": "c1", "name": "x" * 5000}, {"id": "c2", "name": "\u0000*"}]
    hostile = {"key_id": "k" * 5000, "calls": names, "search_attributes": True}
    assert "another round" in await refused(guarded, {**grant, "workflow_id": "hostile"}, **hostile)


async def test_what_the_api_starts_itself_needs_no_grant(guarded: APIBench) -> None:
    agent = await guarded.agent()
    assert (await execute(guarded, agent, CALL)).status_code == 200
    assert (await start_round(guarded, agent, [CALL])).status_code == 200


async def test_a_round_without_the_apis_word_is_refused_and_audited(guarded: APIBench) -> None:
    agent = await guarded.agent()
    grant = await granted(guarded, agent)
    assert "it has none" in await refused(guarded, {**grant, "workflow_id": "w1"}, grant="")
    assert "is no grant" in await refused(guarded, {**grant, "workflow_id": "w2"}, grant="sgk_stolen")
    other = [{"id": "call_1", "name": "one-echo", "arguments": {"text": "another"}}]
    assert "another round" in await refused(guarded, {**grant, "workflow_id": "w3"}, calls=other)
    secret = guarded.deps.vault.derive(GRANT_PURPOSE)
    old = mint_grant(secret, grant["input"], expires_at=1_000_000)
    assert "expired" in await refused(guarded, {**grant, "workflow_id": "w4"}, grant=old)
    assert await audited(guarded) == [
        ("w1", "missing"),
        ("w2", "malformed"),
        ("w3", "other_round"),
        ("w4", "expired"),
    ]
    assert await rounds_stored(guarded) == 0
    assert (await start(guarded, grant)).succeeded == 1


async def test_a_grant_is_given_to_the_caller_of_its_key_alone(api: APIBench) -> None:
    agent = await api.agent()
    url, body = "/v1/rounds/grants", {"tool_calls": [CALL]}
    assert error_of(await api.http.post(url, json=body))["code"] == "invalid_key"
    many = {"tool_calls": [CALL] * (MAX_CALLS + 1)}
    refusal = error_of(await api.http.post(url, json=many, headers=agent.headers))
    assert refusal["code"] == "too_many_calls"
    # It says what is done after the start, not how long somebody waits for it.
    waiting = error_of(await api.http.post(url, json={**body, "wait": 3}, headers=agent.headers))
    assert waiting["code"] == "invalid_request"
    await api.disable(agent)
    assert error_of(await api.http.post(url, json=body, headers=agent.headers))["code"] == "key_disabled"
