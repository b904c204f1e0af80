"""Rounds over HTTP on the real workflow engine: answers, order, ownership, transactions."""

from typing import Any

import pytest

from models.database import Database
from tests.api.bench import APIBench, error_of, start_round, tool_call
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo
from tests.support.world import ANY_OBJECT, ConnectionPlan

INTEGER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
FILES = ConnectionPlan(tools={"read": INTEGER, "write": ANY_OBJECT}, tools_to_execute=["*"])

pytestmark = pytest.mark.anyio


async def test_a_round_answers_every_call_in_order_with_messages_to_append(engine_api: APIBench) -> None:
    api, runner = engine_api, ScriptedRunner(echo)
    agent = await api.agent(FILES)
    calls = [
        tool_call("files-read", '{"id": 7}', "a"),
        tool_call("files-read", '{"id": "seven"}', "b"),
        tool_call("files_read", "{}", "c"),
        tool_call("files-write", None, "d"),
        tool_call("files-write", {"x": 1}, "d"),
        tool_call("files-write", {"x": 12345678901234567890}, "e"),
    ]

    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        response = await start_round(api, agent, calls)

    body: dict[str, Any] = response.json()
    assert (response.status_code, body["state"]) == (200, "completed")
    assert response.headers["x-sluicegate-round-id"] == body["round_id"]
    rows = body["results"]
    assert [(row["tool_call_id"], row["status"], row["error"] and row["error"]["code"]) for row in rows] == [
        ("a", "succeeded", None),
        ("b", "refused", "invalid_arguments"),
        ("c", "refused", "tool_not_found"),
        ("d", "succeeded", None),
        ("d", "refused", "duplicate_call_id"),
        ("e", "succeeded", None),
    ]
    assert rows[2]["error"]["details"]["nearest"] == "files-read"
    assert [message["tool_call_id"] for message in body["messages"]] == ["a", "b", "c", "d", "d", "e"]
    assert body["messages"][5]["content"] == '{"x": 12345678901234567890}'
    assert runner.sent == ["a", "d", "e"]


@pytest.mark.parametrize("path", ["/v1/rounds", "/v1/mcp/tool/execute"])
async def test_a_fresh_round_takes_one_write_and_two_reads(
    engine_api: APIBench, database_url: str, path: str
) -> None:
    api, call = engine_api, tool_call("files-write")
    agent = await api.agent(FILES)
    async with (
        Database(database_url) as workers_own,
        round_worker(api.temporal, workers_own, ScriptedRunner(echo), task_queue=api.task_queue),
    ):
        before = (api.database.counts.reads, api.database.counts.writes)
        body = {"tool_calls": [call]} if path == "/v1/rounds" else call
        response = await api.http.post(path, headers=agent.headers, json=body)

    assert response.status_code == 200
    assert (api.database.counts.reads - before[0], api.database.counts.writes - before[1]) == (2, 1)


async def test_a_refused_row_says_why_in_the_callers_language(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(FILES)
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        started = await start_round(api, agent, [tool_call("files-nothing")])
        again = await api.http.get(
            f"/v1/rounds/{started.json()['round_id']}",
            headers={**agent.headers, "accept-language": "zh-CN,en;q=0.5"},
        )

    english, chinese = started.json(), again.json()
    assert english["results"][0]["error"]["message"].startswith("There is no tool")
    assert "不存在工具" in chinese["results"][0]["error"]["message"]
    assert english["messages"] == chinese["messages"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/rounds/{round}"),
        ("GET", "/v1/rounds/{round}/events"),
        ("POST", "/v1/rounds/{round}/cancel"),
        ("GET", "/v1/invocations/{invocation}/result"),
    ],
)
async def test_only_the_key_that_owns_a_round_sees_it(engine_api: APIBench, method: str, path: str) -> None:
    api = engine_api
    owner, other = await api.agent(FILES), await api.agent(name="other")
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        body = (await start_round(api, owner, [tool_call("files-write")])).json()
    ids = {"round": body["round_id"], "invocation": body["results"][0]["invocation_id"]}

    mine = await api.http.request(method, path.format(**ids), headers=owner.headers)
    theirs = await api.http.request(method, path.format(**ids), headers=other.headers)
    unknown = await api.http.request(
        method, path.format(**dict.fromkeys(ids, "no-such-id")), headers=other.headers
    )

    assert mine.status_code == 200
    assert (theirs.status_code, error_of(theirs)["code"]) == (404, "not_found")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "not_found")


async def test_more_calls_than_a_round_takes_are_refused(api: APIBench) -> None:
    agent = await api.agent(FILES)

    response = await start_round(api, agent, [tool_call("files-write", "{}", str(n)) for n in range(257)])

    assert (response.status_code, error_of(response)["code"]) == (400, "too_many_calls")
    assert error_of(response)["details"] == {"limit": 256, "count": 257}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"tool_calls": []}, "tool_calls"),
        ({"tool_calls": [{"id": "", "function": {"name": "a-b"}}]}, "tool_calls[0].id"),
        ({"tool_calls": [{"id": "x" * 513, "function": {"name": "a-b"}}]}, "tool_calls[0].id"),
        ({"tool_calls": [{"id": 5, "function": {"name": "a-b"}}]}, "tool_calls[0].id"),
        ({"tool_calls": [{"id": "a\x00b", "function": {"name": "a-b"}}]}, "tool_calls[0].id"),
        ({"tool_calls": [{"id": "a", "function": {"name": "a-\x00"}}]}, "tool_calls[0].function.name"),
        ({"tool_calls": [{"id": "a", "function": "a-b"}]}, "tool_calls[0].function"),
        ({"tool_calls": [tool_call("a-b")], "wait": -1}, "wait"),
        ([], ""),
        ("text", ""),
    ],
)
async def test_a_malformed_round_is_refused_with_the_place(api: APIBench, body: Any, path: str) -> None:
    agent = await api.agent()

    response = await api.http.post("/v1/rounds", headers=agent.headers, json=body)

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_request")
    assert error_of(response)["details"]["problems"][0]["path"] == path
