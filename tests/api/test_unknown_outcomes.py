"""Unknown outcomes over HTTP: listed, shown, resolved once; single calls canceled; repairs on request."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from activities.ledger import OpenCall
from governance.canonical import JSON
from models.audit import AuditEvent, AuditKind
from models.database import ReadSession
from tests.api.bench import Agent, APIBench, error_of, start_round, tool_call
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo, text_result
from tests.support.world import ConnectionPlan
from tests.workflows.unknowns import SendsRunner, answered, unknown

pytestmark = pytest.mark.anyio

OUTCOMES = "/api/v1/unknown-outcomes"
RESULT = {"content": [{"type": "text", "text": "order 42 was placed"}]}


async def unknown_round(api: APIBench, agent: Agent) -> str:
    """Run a round whose one call has an unknown outcome, and return the round's id."""
    async with round_worker(api.temporal, api.database, SendsRunner([unknown]), task_queue=api.task_queue):
        response = await start_round(api, agent, [tool_call("files-read")])
    round_id: str = response.json()["round_id"]
    return round_id


async def only_outcome(api: APIBench) -> dict[str, Any]:
    listed = await api.operator("GET", f"{OUTCOMES}?resolved=false")
    [item] = listed.json()["items"]
    found: dict[str, Any] = item
    return found


async def test_an_unknown_outcome_is_listed_with_its_sends(engine_api: APIBench) -> None:
    agent = await engine_api.agent(ConnectionPlan())
    round_id = await unknown_round(engine_api, agent)

    item = await only_outcome(engine_api)
    shown = (await engine_api.operator("GET", f"{OUTCOMES}/{item['invocation_id']}")).json()

    assert item == shown
    assert (shown["round_id"], shown["tool"], shown["reason"]) == (round_id, "files-read", "no_answer")
    assert (shown["status"], shown["resolution"], shown["position"]) == ("failed", None, 0)
    [send] = shown["sends"]
    assert send["outcome"] == "unknown"
    assert send["sent_at"] is not None


async def test_a_resolution_is_what_the_model_is_told_and_stands(engine_api: APIBench) -> None:
    agent = await engine_api.agent(ConnectionPlan())
    round_id = await unknown_round(engine_api, agent)
    path = f"{OUTCOMES}/{(await only_outcome(engine_api))['invocation_id']}/resolve"
    body = {"resolution": "succeeded", "result": RESULT, "note": "seen in the shop"}

    resolved = await engine_api.operator("POST", path, json=body)
    again = await engine_api.operator("POST", path, json={"resolution": "failed"})
    seen = (await engine_api.http.get(f"/v1/rounds/{round_id}", headers=agent.headers)).json()

    assert (resolved.status_code, resolved.json()["told"]) == (200, True)
    assert resolved.json()["resolution"]["note"] == "seen in the shop"
    assert (again.status_code, error_of(again)["code"]) == (409, "conflict")
    [result] = seen["results"]
    assert (result["status"], result["outcome"], result["resolution"]) == ("failed", "unknown", "succeeded")
    assert seen["messages"][0]["content"] == "order 42 was placed"
    assert seen["has_unknown"] is False

    def audited(session: ReadSession) -> list[JSON]:
        rows = session.scalars(select(AuditEvent).where(AuditEvent.kind == AuditKind.OUTCOME_RESOLVED))
        return [row.data["resolution"] for row in rows]

    assert await engine_api.database.read(audited) == ["succeeded"]


@pytest.mark.parametrize(
    "body",
    [
        {"resolution": "succeeded"},
        {"resolution": "failed", "result": RESULT},
        {"resolution": "retry", "result": None},
    ],
    ids=["success without a result", "failure with a result", "retry with a result"],
)
async def test_a_result_belongs_to_a_success_and_to_nothing_else(
    body: dict[str, Any], engine_api: APIBench
) -> None:
    agent = await engine_api.agent(ConnectionPlan())
    await unknown_round(engine_api, agent)
    path = f"{OUTCOMES}/{(await only_outcome(engine_api))['invocation_id']}/resolve"

    refused = await engine_api.operator("POST", path, json=body)

    assert (refused.status_code, error_of(refused)["code"]) == (422, "invalid_request")
    assert (await only_outcome(engine_api))["resolution"] is None


async def test_a_known_outcome_cannot_be_resolved(engine_api: APIBench) -> None:
    agent = await engine_api.agent(ConnectionPlan())
    async with round_worker(
        engine_api.temporal, engine_api.database, ScriptedRunner(echo), task_queue=engine_api.task_queue
    ):
        response = await start_round(engine_api, agent, [tool_call("files-read")])
    invocation_id = response.json()["results"][0]["invocation_id"]

    refused = await engine_api.operator(
        "POST", f"{OUTCOMES}/{invocation_id}/resolve", json={"resolution": "failed"}
    )

    assert (refused.status_code, error_of(refused)["code"]) == (422, "invalid_request")


async def test_a_key_may_not_resolve(engine_api: APIBench) -> None:
    agent = await engine_api.agent(ConnectionPlan())

    refused = await engine_api.http.get(OUTCOMES, headers=agent.headers)

    assert refused.status_code in {401, 403}


async def test_a_round_that_waits_goes_on_after_a_resolution(engine_api: APIBench) -> None:
    agent = await engine_api.agent(ConnectionPlan())
    runner = SendsRunner([unknown, answered])
    async with round_worker(
        engine_api.temporal, engine_api.database, runner, task_queue=engine_api.task_queue
    ):
        calls = [tool_call("files-read"), tool_call("files-write", call_id="b")]
        body = {"tool_calls": calls, "wait": 0, "on_unknown": "wait"}
        started = await engine_api.http.post("/v1/rounds", json=body, headers=agent.headers)
        path = f"/v1/rounds/{started.json()['round_id']}"
        assert (await state_of(engine_api, agent, path, "waiting_unknown"))["messages"] is None
        resolve = f"{OUTCOMES}/{(await only_outcome(engine_api))['invocation_id']}/resolve"
        resolved = await engine_api.operator("POST", resolve, json={"resolution": "failed"})
        ended = await state_of(engine_api, agent, path, "completed")

    assert (started.status_code, resolved.status_code) == (202, 200)
    assert [result["status"] for result in ended["results"]] == ["failed", "succeeded"]


async def state_of(api: APIBench, agent: Agent, path: str, wanted: str) -> dict[str, Any]:
    """Look at a round until it is in a state."""
    async with asyncio.timeout(20):
        while True:
            seen: dict[str, Any] = (await api.http.get(path, headers=agent.headers)).json()
            if seen["state"] == wanted:
                return seen
            await asyncio.sleep(0.02)


async def test_one_call_of_a_round_is_canceled_and_only_by_its_own_key(engine_api: APIBench) -> None:
    agent = await engine_api.agent(ConnectionPlan())
    other = await engine_api.agent(name="other")
    started = asyncio.Event()

    async def script(call: OpenCall) -> JSON:
        if call.tool_call_id == "call_1":
            started.set()
            await asyncio.Event().wait()
        return text_result("fine")

    async with round_worker(
        engine_api.temporal, engine_api.database, ScriptedRunner(script), task_queue=engine_api.task_queue
    ):
        calls = [tool_call("files-read"), tool_call("files-write", call_id="b")]
        body = {"tool_calls": calls, "wait": 0}
        response = await engine_api.http.post("/v1/rounds", json=body, headers=agent.headers)
        path = f"/v1/rounds/{response.json()['round_id']}"
        await asyncio.wait_for(started.wait(), 20)
        foreign = await engine_api.http.post(f"{path}/calls/0/cancel", headers=other.headers)
        missing = await engine_api.http.post(f"{path}/calls/9/cancel", headers=agent.headers)
        canceled = await engine_api.http.post(f"{path}/calls/0/cancel", headers=agent.headers)
        ended = await state_of(engine_api, agent, path, "completed")
        late = await engine_api.http.post(f"{path}/calls/1/cancel", headers=agent.headers)

    assert [answer.status_code for answer in (foreign, missing, canceled, late)] == [404, 404, 202, 200]
    assert [result["status"] for result in ended["results"]] == ["canceled", "succeeded"]
    assert late.json()["status"] == "succeeded"


async def test_repairs_are_made_on_request_and_counted(live_api: APIBench) -> None:
    answer = await live_api.operator("POST", "/api/v1/reconcile?grace_s=0")

    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "finished"
    assert answer.json()["started"] == 0


async def test_without_an_engine_nothing_is_repaired(api: APIBench) -> None:
    answer = await api.operator("POST", "/api/v1/reconcile")

    assert (answer.status_code, error_of(answer)["code"]) == (503, "engine_unavailable")
