"""Rounds of programs run by a real worker: the built-in tools are real, those of connections scripted."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.core_matrix_runner import CoreMatrixRunner
from activities.finalizing import RoundFinalizer
from activities.freezing import RoundFreezer
from activities.guardrail_hooks import GuardrailHooks
from activities.guardrail_http import Webhooks
from activities.guardrails import Guardrails
from activities.ledger import OpenCall
from activities.runner import Runner
from activities.tool_calls import ToolCalls
from governance.canonical import JSON
from governance.modes import SourceKind
from governance.tool_cache import ToolCache
from models.database import Database, ReadSession
from models.invocation import ToolInvocation, load_invocations
from models.payload import load_payload
from models.round import load_round_calls
from models.vault import Vault
from tests.support.scripted_runner import ScriptedRunner, text_result
from workflows.messages import InlineCall, RoundInput
from workflows.provider_round import ProviderRound


@dataclass
class Rounds:
    """Runs rounds with the built-in tools real and those of connections scripted."""

    client: Client
    database: Database
    task_queue: str
    reached: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(connection, address) of each call that a connection got."""
    meanwhile: Callable[[], Awaitable[None]] | None = None
    """What happens while the next call of a connection runs; once."""

    async def run(self, key_id: str, *calls: InlineCall, **place: Any) -> str:
        round_key = uuid4().hex
        result = await self.client.execute_workflow(
            ProviderRound.run,
            RoundInput(key_id, round_key, calls=list(calls), search_attributes=False, **place),
            id=f"round:{key_id}:{round_key}",
            task_queue=self.task_queue,
        )
        return result.round_id

    async def outcome(self, round_id: str) -> list[tuple[str, JSON]]:
        """Return each call's status, or refusal code, and its result."""

        def read(session: ReadSession) -> list[tuple[str, JSON]]:
            invocations = load_invocations(session, round_id)
            return [
                (call.refusal["code"], call.refusal["details"])
                if call.refusal is not None
                else _settled(session, invocations[call.invocation_id or ""])
                for call in load_round_calls(session, round_id)
            ]

        return await self.database.read(read)


def _settled(session: ReadSession, invocation: ToolInvocation) -> tuple[str, JSON]:
    content = load_payload(session, invocation.response_digest) if invocation.response_digest else None
    return invocation.status.value, content if content is not None else invocation.error


@asynccontextmanager
async def rounds_on(
    client: Client, database: Database, task_queue: str, without: Collection[SourceKind] = ()
) -> AsyncIterator[Rounds]:
    rounds = Rounds(client, database, task_queue)

    async def answer(call: OpenCall) -> JSON:
        assert call.target is not None
        rounds.reached.append((call.target.name, call.target.url))
        if rounds.meanwhile is not None:
            happens, rounds.meanwhile = rounds.meanwhile, None
            await happens()
        return text_result(call.snapshot.upstream_name)

    tools = ToolCache()
    runners: dict[SourceKind, Runner] = {
        SourceKind.MCP: ScriptedRunner(answer),
        SourceKind.CORE_MATRIX: CoreMatrixRunner(database),
    }
    runners = {kind: runner for kind, runner in runners.items() if kind not in without}
    guardrails = Guardrails(database, tools, GuardrailHooks(Webhooks(Vault(bytes(32)))))
    finalizer = RoundFinalizer(database)
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=[ProviderRound],
        activities=[
            RoundFreezer(database, tools).freeze_round,
            guardrails.guard_round,
            ToolCalls(database, tools, runners, "test-worker", guardrails=guardrails).call_tool,
            finalizer.finalize_round,
            finalizer.settle_lost_calls,
        ],
        workflow_runner=UnsandboxedWorkflowRunner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    )
    async with worker:
        yield rounds


def call(name: str, arguments: Mapping[str, JSON] | None = None, call_id: str = "c1") -> InlineCall:
    return InlineCall(call_id, name, dict(arguments or {}))


def spawn(**arguments: JSON) -> InlineCall:
    return call("subagent_spawn", {"content": "Look it up.", **arguments})
