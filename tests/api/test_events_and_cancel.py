"""Following a round by server-sent events, and telling it to stop."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from httpx_sse import ServerSentEvent, aconnect_sse
from sqlalchemy import select

from activities.ledger import OpenCall
from api.events import EventFeed
from governance.canonical import JSON
from models.audit import AuditEvent, AuditKind
from tests.api.bench import Agent, APIBench, error_of, start_round, tool_call
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo, text_result
from tests.support.world import ConnectionPlan

pytestmark = pytest.mark.anyio


async def events_of(
    api: APIBench, agent: Agent, round_id: str, last_event_id: str | None = None
) -> Sequence[ServerSentEvent]:
    headers = agent.headers if last_event_id is None else {**agent.headers, "last-event-id": last_event_id}
    async with aconnect_sse(api.http, "GET", f"/v1/rounds/{round_id}/events", headers=headers) as source:
        return [event async for event in source.aiter_sse()]


async def finished_round(api: APIBench, agent: Agent) -> str:
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        response = await start_round(
            api, agent, [tool_call("files-read"), tool_call("files-no", call_id="b")]
        )
    round_id: str = response.json()["round_id"]
    return round_id


async def test_events_are_numbered_without_gaps_and_end_with_the_round(engine_api: APIBench) -> None:
    agent = await engine_api.agent(ConnectionPlan())
    events = await events_of(engine_api, agent, await finished_round(engine_api, agent))

    assert [event.id for event in events] == [str(number + 1) for number in range(len(events))]
    kinds = [event.event for event in events]
    assert (kinds[0], kinds[-1]) == ("round_requested", "round_completed")
    assert "call_refused" in kinds
    assert all(event.json()["kind"] == event.event and event.json()["at"] for event in events)


async def test_a_stream_resumes_after_the_last_event_seen(engine_api: APIBench) -> None:
    agent = await engine_api.agent(ConnectionPlan())
    round_id = await finished_round(engine_api, agent)
    whole = await events_of(engine_api, agent, round_id)

    rest = await events_of(engine_api, agent, round_id, "2")
    nothing = await events_of(engine_api, agent, round_id, whole[-1].id)

    assert [event.id for event in rest] == [event.id for event in whole[2:]]
    assert nothing == []


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 19, "²"])
async def test_a_malformed_last_event_id_is_refused(api: APIBench, value: str) -> None:
    agent = await api.agent(ConnectionPlan())
    round_id = "0190d5a0-0000-7000-8000-000000000000"
    headers = [
        (b"authorization", agent.headers["authorization"].encode()),
        (b"last-event-id", value.encode()),
    ]

    response = await api.http.get(f"/v1/rounds/{round_id}/events", headers=headers)

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")


async def test_a_stream_follows_a_round_while_it_runs(engine_api: APIBench) -> None:
    api, go, sent = engine_api, asyncio.Event(), asyncio.Event()

    async def held(_call: OpenCall) -> JSON:
        sent.set()
        await go.wait()
        return text_result("done")

    agent = await api.agent(ConnectionPlan())
    async with round_worker(api.temporal, api.database, ScriptedRunner(held), task_queue=api.task_queue):
        round_id = (await start_round(api, agent, [tool_call("files-read")], wait=0)).json()["round_id"]
        following = asyncio.create_task(events_of(api, agent, round_id))
        async with asyncio.timeout(5):
            await sent.wait()
        assert not following.done()
        go.set()
        events = await following

    assert events[-1].event == "round_completed"


async def test_a_silent_stream_is_kept_alive_by_comments(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan())
    round_id = (await start_round(api, agent, [tool_call("files-read")], wait=0)).json()["round_id"]
    feed = EventFeed(api.database, round_id, api.deps.stopping, keep_alive_s=0.0)

    lines: list[str] = []
    async for text in feed.lines(after=1):
        lines.append(text)
        if len(lines) == 3:
            api.deps.stopping.set()

    # A comment without a blank line dispatches nothing in any reader.
    assert lines == [": keep-alive\n"] * 3


async def test_a_stream_ends_when_the_process_drains(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan())
    round_id = (await start_round(api, agent, [tool_call("files-read")], wait=0)).json()["round_id"]
    api.deps.stopping.set()

    events = await events_of(api, agent, round_id)

    assert [event.event for event in events] == ["round_requested"]


async def test_cancel_stops_a_round_and_is_idempotent(engine_api: APIBench) -> None:
    api, sent = engine_api, asyncio.Event()

    async def forever(_call: OpenCall) -> JSON:
        sent.set()
        await asyncio.Event().wait()

    agent = await api.agent(ConnectionPlan())
    calls = [tool_call("files-read"), tool_call("files-write", call_id="later")]
    async with round_worker(api.temporal, api.database, ScriptedRunner(forever), task_queue=api.task_queue):
        round_id = (await start_round(api, agent, calls, wait=0)).json()["round_id"]
        async with asyncio.timeout(5):
            await sent.wait()
        answers = [
            await api.http.post(f"/v1/rounds/{round_id}/cancel", headers=agent.headers) for _ in range(2)
        ]
        events = await events_of(api, agent, round_id)
        last = await api.http.post(f"/v1/rounds/{round_id}/cancel", headers=agent.headers)
        shown = await api.http.get(f"/v1/rounds/{round_id}", headers=agent.headers)

    assert {answer.status_code for answer in answers} == {202}
    assert events[-1].event == "round_canceled"
    assert (last.status_code, last.json()["state"]) == (200, "canceled")
    rows: list[dict[str, Any]] = shown.json()["results"]
    assert [(row["status"], row["outcome"], row["error"]["code"]) for row in rows] == [
        ("canceled", "unknown", "canceled"),
        ("canceled", "known", "canceled"),
    ]


async def test_a_cancel_of_a_round_that_never_began_keeps_it_from_beginning(
    engine_api: APIBench,
) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan())
    # No worker polls: the workflow waits at its beginning, and the cancel is delivered to it.
    round_id = (await start_round(api, agent, [tool_call("files-read")], wait=0)).json()["round_id"]

    response = await api.http.post(f"/v1/rounds/{round_id}/cancel", headers=agent.headers)

    assert response.status_code == 202
    kinds = await api.database.read(lambda session: session.scalars(select(AuditEvent.kind)).all())
    assert list(kinds) == [AuditKind.ROUND_CANCEL_REQUESTED]
