"""Executing one tool call over HTTP: the exact answer, refusals, failures, and calls that take long."""

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import func, select

from activities.ledger import CallOutcome, OpenCall
from activities.runner import SendGate
from governance.admission import call_error
from governance.canonical import JSON, canonical_bytes
from governance.codes import Classification, ErrorCode, InvocationOutcome, InvocationStatus, SendOutcome
from models.invocation import Settlement
from models.round import Round
from tests.api.bench import APIBench, error_of, execute, tool_call
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo, text_result
from tests.support.world import ANY_OBJECT, ConnectionPlan

INTEGER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
    "additionalProperties": False,
}
FILES = ConnectionPlan(
    tools={"read": INTEGER, "write": ANY_OBJECT, "hidden": ANY_OBJECT}, tools_to_execute=["read", "write"]
)

pytestmark = pytest.mark.anyio


class SettlingRunner:
    """Ends every call as it is told."""

    def __init__(self, settlement: Settlement, send: SendOutcome, content: JSON = None) -> None:
        self.settlement = settlement
        self.send = send
        self.content = content

    async def run(self, _call: OpenCall, gate: SendGate) -> CallOutcome:
        if self.send is not SendOutcome.NOT_SENT:
            await gate.before_send(None)
        content = None if self.content is None else canonical_bytes(self.content)
        return CallOutcome(self.settlement, self.send, content)


async def rounds_stored(api: APIBench) -> int:
    return await api.database.read(
        lambda session: session.scalar(select(func.count()).select_from(Round)) or 0
    )


async def test_the_answer_is_exactly_the_tool_message(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(FILES)
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        response = await execute(
            api, agent, tool_call("files-read", '{"id": 9007199254740993}'), {"x-request-id": "mine-1"}
        )

    assert response.status_code == 200
    assert list(response.json().items()) == [
        ("role", "tool"),
        ("content", '{"id": 9007199254740993}'),
        ("tool_call_id", "call_1"),
    ]
    assert response.headers["x-request-id"] == "mine-1"
    assert response.headers["x-sluicegate-is-error"] == "false"
    round_id = response.headers["x-sluicegate-round-id"]
    shown = await api.http.get(f"/v1/rounds/{round_id}", headers=agent.headers)
    row = shown.json()["results"][0]
    assert row["invocation_id"] == response.headers["x-sluicegate-invocation-id"]


@pytest.mark.parametrize("arguments", ["", "  \n", None, "{}", {}])
async def test_empty_arguments_are_an_empty_object(engine_api: APIBench, arguments: Any) -> None:
    api = engine_api
    agent = await api.agent(FILES)
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        response = await execute(api, agent, tool_call("files-write", arguments))

    assert response.json()["content"] == "{}"


async def test_missing_arguments_are_an_empty_object(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(FILES)
    async with round_worker(api.temporal, api.database, ScriptedRunner(echo), task_queue=api.task_queue):
        response = await execute(api, agent, {"id": "x", "function": {"name": "files-write"}, "index": 0})

    assert response.json() == {"role": "tool", "content": "{}", "tool_call_id": "x"}


@pytest.mark.parametrize(
    "arguments",
    ['{"id": 1', '{"id": 1, "id": 2}', '{"id": NaN}', '{"id": 1} x', "[]", "7", [1], True, {"id": "1"}, {}],
)
async def test_unfit_arguments_are_refused_with_the_place_and_start_nothing(
    api: APIBench, arguments: Any
) -> None:
    agent = await api.agent(FILES)

    response = await execute(api, agent, tool_call("files-read", arguments))

    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_arguments")
    problem = error_of(response)["details"]["problems"][0]
    assert set(problem) == {"path", "expected", "got", "position"}
    assert await rounds_stored(api) == 0


@pytest.mark.parametrize(
    ("name", "status", "code", "reason"),
    [
        ("files-missing", 404, "tool_not_found", "unknown_name"),
        ("files_read", 404, "tool_not_found", "unknown_name"),
        ("other-read", 404, "tool_not_found", "unknown_name"),
        ("files-hidden", 403, "tool_not_allowed", None),
    ],
)
async def test_a_tool_that_may_not_be_used_is_refused_and_starts_nothing(
    api: APIBench, name: str, status: int, code: str, reason: str | None
) -> None:
    agent = await api.agent(FILES)

    response = await execute(api, agent, tool_call(name))

    error = error_of(response)
    assert (response.status_code, error["code"]) == (status, code)
    assert error["details"].get("reason") == reason
    assert "level" not in error["details"]
    assert await rounds_stored(api) == 0


async def test_the_nearest_name_is_one_that_the_caller_may_see(api: APIBench) -> None:
    agent = await api.agent(FILES)

    near = await execute(api, agent, tool_call("files_read"))
    hidden = await execute(api, agent, tool_call("files_hidden"))

    assert error_of(near)["details"]["nearest"] == "files-read"
    assert error_of(hidden)["details"].get("nearest") != "files-hidden"


async def test_a_tool_that_reports_its_own_failure_is_an_answer(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(FILES)
    error = call_error(ErrorCode.TOOL_RESULT_ERROR, {"tool": "files-write"}, Classification.SEMANTIC)
    failed = Settlement(InvocationStatus.FAILED, is_error=True, error=error)
    content = {**text_result("disk full"), "isError": True}
    runner = SettlingRunner(failed, SendOutcome.ANSWERED, content)

    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        response = await execute(api, agent, tool_call("files-write"))

    assert (response.status_code, response.json()["content"]) == (200, "disk full")
    assert response.headers["x-sluicegate-is-error"] == "true"


@pytest.mark.parametrize(
    ("code", "outcome", "send", "status"),
    [
        (ErrorCode.TOOL_TIMEOUT, InvocationOutcome.UNKNOWN, SendOutcome.UNKNOWN, 504),
        (ErrorCode.OUTCOME_UNKNOWN, InvocationOutcome.UNKNOWN, SendOutcome.UNKNOWN, 502),
        (ErrorCode.UPSTREAM_UNAVAILABLE, InvocationOutcome.KNOWN, SendOutcome.NOT_SENT, 502),
        (ErrorCode.RESULT_TOO_LARGE, InvocationOutcome.KNOWN, SendOutcome.ANSWERED, 502),
        (ErrorCode.TOOL_ERROR, InvocationOutcome.KNOWN, SendOutcome.ANSWERED, 502),
    ],
)
async def test_a_failed_call_becomes_the_error_of_its_code(
    engine_api: APIBench, code: ErrorCode, outcome: InvocationOutcome, send: SendOutcome, status: int
) -> None:
    api = engine_api
    agent = await api.agent(FILES)
    details = {"tool": "files-write", "outcome": outcome.value, "reason": "test", "timeout_s": 1}
    error = call_error(code, details, Classification.TRANSPORT)
    runner = SettlingRunner(Settlement(InvocationStatus.FAILED, outcome, error=error), send)

    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        response = await execute(api, agent, tool_call("files-write"))

    assert (response.status_code, error_of(response)["code"]) == (status, code.value)
    assert error_of(response)["details"] == details
    assert response.headers["x-sluicegate-round-id"]


async def test_a_call_that_takes_longer_than_the_wait_is_accepted_and_found_later(
    engine_api: APIBench,
) -> None:
    api, go = engine_api, asyncio.Event()

    async def held(_call: OpenCall) -> JSON:
        await go.wait()
        return text_result("done")

    agent = await api.agent(FILES)
    async with round_worker(api.temporal, api.database, ScriptedRunner(held), task_queue=api.task_queue):
        response = await api.http.post(
            "/v1/rounds",
            headers=agent.headers,
            json={"tool_calls": [tool_call("files-write")], "wait": 0},
        )
        early = await api.http.get(response.headers["location"], headers=agent.headers)
        go.set()
        events = await api.http.get(response.headers["location"] + "/events", headers=agent.headers)
        late = await api.http.get(response.headers["location"], headers=agent.headers)

    assert response.status_code == 202
    assert set(response.json()) == {"round_id", "state"}
    assert response.headers["retry-after"] == "1"
    assert early.json()["messages"] is None
    assert "event: round_completed" in events.text
    assert late.json()["messages"][0]["content"] == "done"


async def test_a_long_result_is_cut_in_the_message_and_kept_whole(engine_api: APIBench) -> None:
    api, text = engine_api, "é" * 1_600_000
    agent = await api.agent(FILES)

    async def big(_call: OpenCall) -> JSON:
        return text_result(text)

    async with round_worker(api.temporal, api.database, ScriptedRunner(big), task_queue=api.task_queue):
        response = await execute(api, agent, tool_call("files-write"))

    content = response.json()["content"]
    link = f"/v1/invocations/{response.headers['x-sluicegate-invocation-id']}/result"
    assert len(content.encode()) <= api.deps.settings.result_inline_max_bytes
    assert content.endswith(f"whole result: {link}]")
    whole = await api.http.get(link, headers=agent.headers)
    assert json.loads(whole.content) == text_result(text)
