"""The product as it runs: API, worker, engine and database, and a report of what the scenarios showed."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select
from temporalio.client import Client

from governance.canonical import JSON
from models.binding import ToolBinding, load_task_bindings
from models.conversation import Conversation
from models.database import ReadSession
from models.invocation import ToolInvocation
from models.mcp_session import McpSession
from models.payload import load_payload
from models.round import Round
from models.send import load_sends
from models.task import Task
from tests.api.bench import APIBench, api_bench, make_settings
from worker import WorkerParts, running_worker
from workflows.messages import PROVIDER_ROUND, InlineCall, RoundInput

REPORT = "acceptance-report.json"


@dataclass
class Report:
    """What each scenario was to show and showed; written as one JSON document."""

    path: Path
    scenarios: list[dict[str, JSON]] = field(default_factory=list[dict[str, JSON]])

    def add(self, scenario: str, database: str, expected: JSON, observed: JSON) -> None:
        """Record a scenario and hold that it showed what it was to show."""
        passed = expected == observed
        self.scenarios.append(
            {
                "scenario": scenario,
                "database": database,
                "passed": passed,
                "expected": expected,
                "observed": observed,
            }
        )
        self.path.write_text(json.dumps({"scenarios": self.scenarios}, indent=2, ensure_ascii=False))
        assert observed == expected


REPORT_KEY = pytest.StashKey[Path]()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Report:
    path = tmp_path_factory.mktemp("acceptance") / REPORT
    request.config.stash[REPORT_KEY] = path
    return Report(path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    path = config.stash.get(REPORT_KEY, None)
    if path is not None:
        terminalreporter.write_line(f"acceptance report: {path}")


@dataclass(frozen=True)
class Product:
    """A running product, as its callers reach it."""

    api: APIBench
    kind: str

    async def run_round(self, key_id: str, task_id: str, *calls: InlineCall) -> str:
        """Run a round of a task through the real workflow, as an agent loop does; return its id."""
        round_key = uuid4().hex
        result = await self.api.temporal.execute_workflow(
            PROVIDER_ROUND,
            RoundInput(key_id, round_key, calls=list(calls), task_id=task_id, search_attributes=False),
            id=f"round:{key_id}:{round_key}",
            task_queue=self.api.task_queue,
        )
        return str(result["round_id"])

    async def calls_of(self, round_id: str) -> list[Mapping[str, Any]]:
        """Return the calls of a round as operators see them."""
        response = await self.api.operator("GET", f"/api/v1/rounds/{round_id}")
        assert response.status_code == 200, response.text
        return list(response.json()["results"])

    async def facts(self, task_id: str) -> "TaskFacts":
        return await self.api.database.read(_facts, task_id)


@dataclass(frozen=True)
class TaskFacts:
    """What the ledger says of a task: its bindings, and their invocations in the order of attempts."""

    bindings: Mapping[str, ToolBinding]
    invocations: tuple[ToolInvocation, ...]
    responses: tuple[JSON, ...]
    session_digests: tuple[str | None, ...]
    session_states: tuple[str, ...]
    """How the sessions that the task's bindings have of their own stand at the end."""
    task: Task
    conversation: Conversation
    rounds: tuple[Round, ...]

    def states(self) -> dict[str, JSON]:
        """Return where the conversation, the turn's task and its runs stand."""
        return {
            "conversation_state": self.conversation.state.value,
            "task": [self.task.kind.value, self.task.attempt_no, self.task.state.value],
            "rounds": [row.state.value for row in self.rounds],
            "rounds_of_the_conversation": {row.conversation_id for row in self.rounds}
            == {self.conversation.id},
            "one_frozen_set": {row.frozen_set_digest for row in self.rounds} == {self.task.frozen_set_digest},
        }


STATES: dict[str, JSON] = {
    "conversation_state": "active",
    # Its first round sets it running; it ends when its program says so.
    "task": ["turn_step", 1, "running"],
    "rounds": ["completed"] * 3,
    "rounds_of_the_conversation": True,
    "one_frozen_set": True,
}
"""Where both scenarios leave conversation, task and rounds."""


def _facts(session: ReadSession, task_id: str) -> TaskFacts:
    invocations = tuple(
        session.scalars(
            select(ToolInvocation)
            .where(ToolInvocation.task_id == task_id)
            .order_by(ToolInvocation.tool_binding_id, ToolInvocation.attempt_no)
        )
    )
    contents = [
        load_payload(session, row.response_digest) if row.response_digest else None for row in invocations
    ]
    sends = [send for row in invocations for send in load_sends(session, row.id)]
    task = session.get_one(Task, task_id)
    bindings = load_task_bindings(session, task_id)
    scopes = [f"binding:{binding.id}" for binding in bindings.values()]
    return TaskFacts(
        bindings=bindings,
        invocations=invocations,
        responses=tuple(None if content is None else json.loads(content) for content in contents),
        session_digests=tuple(send.session_digest for send in sends),
        session_states=tuple(
            row.value for row in session.scalars(select(McpSession.state).where(McpSession.scope.in_(scopes)))
        ),
        task=task,
        conversation=session.get_one(Conversation, task.conversation_id),
        rounds=tuple(
            session.scalars(select(Round).where(Round.task_id == task_id).order_by(Round.created_at))
        ),
    )


@pytest.fixture
async def product(
    database_url: str, tmp_path: Path, temporal_client: Client, task_queue: str
) -> AsyncIterator[Product]:
    settings = make_settings(tmp_path, database_url, task_queue=task_queue)
    async with api_bench(settings, temporal_client) as api:
        parts = WorkerParts(settings, api.database, api.deps.vault, temporal_client)
        async with running_worker(parts):
            yield Product(api, "sqlite" if api.database.is_sqlite else "postgresql")
