"""Quotas over HTTP: one account for every way in, refusals that say when, and a control plane with ETags."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from activities.ledger import CallOutcome, OpenCall
from activities.runner import SendGate
from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import Classification, ErrorCode, InvocationStatus, SendOutcome
from models.audit import AuditEvent, AuditKind
from models.base import new_id
from models.conversation import add_conversation
from models.database import WriteSession
from models.invocation import Settlement, ToolInvocation
from models.send import ToolSend
from models.task import NewTask, create_task
from tests.api.bench import Agent, APIBench, error_of, execute, start_round, tool_call
from tests.api.chat_bench import chat, chat_provider
from tests.support.fake_provider import answer, answers, completion, fake_provider, usage
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, echo, text_result
from tests.support.statements import statements_of
from tests.support.world import ConnectionPlan
from tests.workflows.unknowns import SendsRunner, answered, unknown
from workflows.messages import InlineCall, RoundInput
from workflows.provider_round import ProviderRound

pytestmark = pytest.mark.anyio

READ = tool_call("files-read")
PRICED = {"input_price": "1000", "output_price": "1000"}


async def limit(api: APIBench, agent: Agent, **limits: Any) -> None:
    response = await api.operator("PUT", f"/api/v1/mcp/keys/{agent.key_id}/quota", json=limits)
    assert response.status_code == 200, response.text


async def spent(api: APIBench, agent: Agent) -> dict[str, Any]:
    shown = (await api.operator("GET", f"/api/v1/mcp/keys/{agent.key_id}/quota")).json()
    found: dict[str, Any] = shown["spent"]
    return found


async def counts(api: APIBench, agent: Agent) -> tuple[int, int]:
    now = await spent(api, agent)
    return now["requests_today"], now["tool_calls_today"]


class Ways:
    """Every way in which a key can ask for something."""

    def __init__(self, api: APIBench, agent: Agent) -> None:
        self.api = api
        self.agent = agent

    async def rounds(self) -> None:
        response = await start_round(self.api, self.agent, [READ])
        assert response.json()["state"] == "completed"

    async def operators_retry(self) -> None:
        """Have the one call with an unknown outcome made again; its round has ended."""
        outcomes = "/api/v1/unknown-outcomes"
        [item] = (await self.api.operator("GET", f"{outcomes}?resolved=false")).json()["items"]
        path = f"{outcomes}/{item['invocation_id']}/resolve"
        assert (await self.api.operator("POST", path, json={"resolution": "retry"})).status_code == 200
        async with asyncio.timeout(10):
            while not await self._all_ended(2):  # noqa: ASYNC110 - the database has no event to wait for.
                await asyncio.sleep(0.02)

    async def _all_ended(self, count: int) -> bool:
        rows = await self.api.database.read(lambda session: session.scalars(select(ToolInvocation)).all())
        return len(rows) == count and all(row.finished_at is not None for row in rows)

    async def execute(self) -> None:
        assert (await execute(self.api, self.agent, READ)).status_code == 200

    async def mcp_endpoint(self) -> None:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "files-read", "arguments": {}, "_meta": meta},
        }
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "files-read",
            **self.agent.headers,
        }
        answered_ = await self.api.http.post("/mcp", json=body, headers=headers)
        assert answered_.status_code == 200, answered_.text

    async def direct_start(self, **place: Any) -> None:
        round_key = uuid4().hex
        result = await self.api.temporal.execute_workflow(
            ProviderRound.run,
            RoundInput(
                self.agent.key_id,
                round_key,
                calls=[InlineCall("call_1", "files-read")],
                search_attributes=False,
                **place,
            ),
            id=f"round:{self.agent.key_id}:{round_key}",
            task_queue=self.api.task_queue,
        )
        assert result.succeeded == 1

    async def subagents_round(self) -> None:
        """Run a round of a task in a conversation that has a parent, as a subagent's loop does."""

        def work(session: WriteSession) -> str:
            parent = add_conversation(session, self.agent.key_id, None)
            child = add_conversation(session, self.agent.key_id, None, None, parent)
            return create_task(session, NewTask(child.id, "work")).id

        await self.direct_start(task_id=await self.api.database.write(work))

    async def chat(self) -> None:
        assert (await chat(self.api, self.agent)).status_code == 200


async def test_every_way_in_moves_the_same_account(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan())
    await limit(api, agent, requests_per_day=1000, tool_calls_per_day=1000)
    ways = Ways(api, agent)
    every: dict[Callable[[], Awaitable[None]], tuple[int, int]] = {
        # The first send has an unknown outcome, which the operator then has made again.
        ways.rounds: (1, 1),
        ways.operators_retry: (1, 1),
        ways.execute: (1, 1),
        ways.mcp_endpoint: (1, 1),
        ways.direct_start: (1, 1),
        ways.subagents_round: (1, 1),
        ways.chat: (1, 0),
    }
    moved: dict[str, tuple[int, int]] = {}
    async with (
        fake_provider(answers(answer(completion()))) as provider,
        round_worker(api.temporal, api.database, SendsRunner([unknown, answered]), task_queue=api.task_queue),
    ):
        await chat_provider(api, provider)
        for way in every:
            before = await counts(api, agent)
            await way()
            after = await counts(api, agent)
            moved[way.__name__] = (after[0] - before[0], after[1] - before[1])

    assert moved == {way.__name__: expected for way, expected in every.items()}


async def test_a_spent_quota_is_a_429_that_says_when_and_starts_nothing(engine_api: APIBench) -> None:
    api, runner = engine_api, ScriptedRunner(echo)
    agent = await api.agent(ConnectionPlan())
    await limit(api, agent, tool_calls_per_day=1)
    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        first = await execute(api, agent, READ)
        refused = await execute(api, agent, READ, {"idempotency-key": "again"})
        # Nothing was stored under the key, so it is free for when there is quota again.
        await limit(api, agent, tool_calls_per_day=2)
        later = await execute(api, agent, READ, {"idempotency-key": "again"})

    error = error_of(refused)
    assert (first.status_code, refused.status_code, later.status_code) == (200, 429, 200)
    assert (error["code"], error["retryable"]) == ("quota_exceeded", True)
    details = error["details"]
    assert {name: details[name] for name in ("limit", "limit_value", "used", "tool", "outcome")} == {
        "limit": "tool_calls_per_day",
        "limit_value": 1,
        "used": 1,
        "tool": "files-read",
        "outcome": "not_sent",
    }
    assert refused.headers["retry-after"] == str(details["retry_after"])
    assert details["resets_at"].endswith("T00:00:00+00:00")
    assert runner.sent == ["call_1", "call_1"]
    # Refused or not, each was a request.
    assert await counts(api, agent) == (3, 2)


async def test_in_a_round_a_refusal_is_the_result_of_its_call_and_stops_no_other(
    engine_api: APIBench,
) -> None:
    api, runner = engine_api, ScriptedRunner(echo)
    agent = await api.agent(ConnectionPlan(tool_prices={"write": "0.5", "read": "0.1"}))
    await limit(api, agent, budget_per_day="0.6")
    calls = [
        tool_call("files-read", call_id="a"),
        tool_call("files-write", call_id="b"),
        tool_call("files-write", call_id="c"),
        tool_call("files-nothing", call_id="d"),
    ]
    async with round_worker(api.temporal, api.database, runner, task_queue=api.task_queue):
        answered_ = (await start_round(api, agent, calls)).json()

    results = answered_["results"]
    assert [result["status"] for result in results] == ["succeeded", "succeeded", "failed", "refused"]
    assert results[2]["error"]["code"] == "quota_exceeded"
    assert results[2]["error"]["details"]["limit"] == "budget_per_day"
    assert "0.6" in results[2]["content"]
    assert runner.sent == ["a", "b"]
    now = await spent(api, agent)
    assert (now["cost_today"], now["cost_this_month"]) == ("0.6", "0.6")
    # The name that no tool has was a request too.
    assert (now["requests_today"], now["tool_calls_today"]) == (4, 2)
    assert await audited(api, AuditKind.CALL_SETTLED) == [None, None, "quota_exceeded"]


async def audited(api: APIBench, kind: AuditKind) -> list[str | None]:
    query = select(AuditEvent.code).where(AuditEvent.kind == kind).order_by(AuditEvent.id)
    return list(await api.database.read(lambda session: session.scalars(query).all()))


async def test_a_call_that_is_not_allowed_counts_as_a_request_and_is_metered(api: APIBench) -> None:
    agent = await api.agent(ConnectionPlan(tools_to_execute=("read",)))
    await limit(api, agent, requests_per_day=100)
    refused = await execute(api, agent, tool_call("files-write"))
    used = (await api.http.get("/v1/usage", headers=agent.headers)).json()

    assert error_of(refused)["code"] == "tool_not_allowed"
    assert await counts(api, agent) == (1, 0)
    assert (used["total"]["denied"], used["total"]["requests"]) == (1, 1)


async def test_chat_takes_its_tokens_from_the_budget_and_is_refused_when_it_is_spent(api: APIBench) -> None:
    agent = await api.agent()
    await limit(api, agent, budget_per_month="0.01")
    async with fake_provider(answers(answer(completion(told=usage(8, 4, 0))))) as provider:
        await chat_provider(api, provider, model=PRICED)
        first = await chat(api, agent)
        refused = await chat(api, agent)

    error = error_of(refused)
    assert (first.status_code, refused.status_code, len(provider.requests)) == (200, 429, 1)
    assert (error["details"]["limit"], error["details"]["used"]) == ("budget_per_month", "0.012")
    assert int(refused.headers["retry-after"]) == error["details"]["retry_after"] > 0
    assert await counts(api, agent) == (2, 0)
    assert await audited(api, AuditKind.REQUEST_REFUSED) == ["quota_exceeded"]


async def test_four_api_processes_with_32_callers_let_exactly_as_many_through(
    api: APIBench, database_url: str, tmp_path: Path
) -> None:
    agent = await api.agent()
    await limit(api, agent, requests_per_day=40)
    async with fake_provider(answers(answer(completion()))) as provider:
        await chat_provider(api, provider)
        processes = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.api.quota_process", database_url),
                *(str(tmp_path), agent.secret, "8", "2"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            for _ in range(4)
        ]
        async with asyncio.timeout(90):
            for process in processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            said = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))

    sums = [
        sum(column) for column in zip(*([int(word) for word in out.split()] for out, _ in said), strict=True)
    ]
    assert sums == [40, 24, 64]
    assert len(provider.requests) == 40
    assert await counts(api, agent) == (64, 0)


async def test_calls_at_once_are_limited_and_a_call_that_ends_makes_room(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan())
    await limit(api, agent, concurrent_calls=1)
    began, hold = asyncio.Event(), asyncio.Event()

    async def slow(_call: OpenCall) -> JSON:
        began.set()
        await hold.wait()
        return text_result("done")

    async with round_worker(api.temporal, api.database, ScriptedRunner(slow), task_queue=api.task_queue):
        running = asyncio.create_task(execute(api, agent, READ))
        async with asyncio.timeout(5):
            await began.wait()
        refused = await execute(api, agent, READ)
        at_once = (await spent(api, agent))["concurrent_calls"]
        hold.set()
        ended = await running
        after = await execute(api, agent, READ)

    assert (ended.status_code, refused.status_code, after.status_code) == (200, 429, 200)
    assert error_of(refused)["details"]["limit"] == "concurrent_calls"
    assert refused.headers["retry-after"] == "1"
    assert at_once == 1
    assert (await spent(api, agent))["concurrent_calls"] == 0


async def test_a_price_is_given_back_where_nothing_ran(engine_api: APIBench) -> None:
    api = engine_api
    agent = await api.agent(ConnectionPlan(url="http://127.0.0.1:9/mcp", tool_prices={"*": "2"}))
    await limit(api, agent, budget_per_day="5")

    class Refuses(ScriptedRunner):
        async def run(self, call: OpenCall, gate: SendGate) -> CallOutcome:
            del gate
            details: dict[str, JSON] = {"tool": call.snapshot.exposed_name, "outcome": "not_sent"}
            error = call_error(ErrorCode.UPSTREAM_UNAVAILABLE, details, Classification.TRANSPORT)
            return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)

    async with round_worker(api.temporal, api.database, Refuses(echo), task_queue=api.task_queue):
        failed = await execute(api, agent, READ)

    assert failed.status_code == 502
    assert (await spent(api, agent))["cost_today"] == "0"
    sends = await api.database.read(lambda session: session.scalars(select(ToolSend)).all())
    assert [send.sent_at for send in sends] == [None]


async def test_a_quota_is_set_shown_and_removed_with_etags(api: APIBench) -> None:
    agent = await api.agent()
    path = f"/api/v1/mcp/keys/{agent.key_id}/quota"
    none = await api.operator("GET", path)
    made = await api.operator(
        "PUT",
        path,
        json={"requests_per_minute": 5, "budget_per_day": "10.50"},
        headers={"if-match": none.headers["etag"]},
    )
    stale = await api.operator("PUT", path, json={}, headers={"if-match": none.headers["etag"]})
    shown = await api.operator("GET", path)
    unsaid = await api.operator("DELETE", path)
    removed = await api.operator("DELETE", path, headers={"if-match": shown.headers["etag"]})

    assert none.json() == {"limits": None, "spent": None, "etag": none.headers["etag"]}
    assert made.json()["limits"]["budget_per_day"] == "10.5"
    assert made.json()["limits"]["requests_per_minute"] == 5
    assert made.json()["limits"]["tool_calls_per_day"] is None
    assert shown.json()["etag"] == shown.headers["etag"] == made.headers["etag"]
    assert [response.status_code for response in (stale, unsaid, removed)] == [412, 428, 200]
    assert removed.json()["limits"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"requests_per_minute": -1},
        {"requests_per_minute": 1.5},
        {"budget_per_day": "1.0000000001"},
        {"budget_per_day": 3},
        {"budget_per_day": "-1"},
        {"requests": 1},
    ],
)
async def test_what_is_no_limit_is_refused(api: APIBench, body: dict[str, Any]) -> None:
    agent = await api.agent()
    refused = await api.operator("PUT", f"/api/v1/mcp/keys/{agent.key_id}/quota", json=body)

    assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_request")


async def test_a_key_that_does_not_exist_has_no_quota(api: APIBench) -> None:
    path = f"/api/v1/mcp/keys/{new_id()}/quota"

    for method, body in (("GET", None), ("PUT", {}), ("DELETE", None)):
        assert (await api.operator(method, path, json=body)).status_code == 404


async def test_a_key_without_a_quota_costs_no_statement(api: APIBench) -> None:
    agent = await api.agent()
    async with fake_provider(answers(answer(completion()))) as provider:
        await chat_provider(api, provider)
        with statements_of(api.database, "key_quotas", "chat_leases") as seen:
            answered_ = await chat(api, agent)

    assert answered_.status_code == 200
    assert seen == []
