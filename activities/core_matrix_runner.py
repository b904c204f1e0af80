"""Runs the built-in tools: their effects are rows of our own database.

An effect is keyed by its invocation, so a repeated call finds what an earlier attempt did and does nothing
twice: the wrapper may send it again after a crash.
"""

from activities.ledger import CallOutcome, OpenCall
from activities.runner import SendGate, no_runner
from governance.admission import call_error
from governance.canonical import JSON, canonical_bytes
from governance.codes import Classification, ErrorCode, InvocationStatus, SendOutcome
from governance.core_tools import LIST
from governance.subagents import SPAWN
from models.database import Database
from models.invocation import Settlement
from models.spawning import SpawnRequest, SpawnRule, SubagentRefused, list_subagents, spawn_subagent

BUILT_IN_TOOLS = frozenset({SPAWN, LIST})
"""The tools that this release has; a snapshot of another release may name others."""


class CoreMatrixRunner:
    """Makes calls of the built-in tools."""

    def __init__(self, database: Database) -> None:
        """Keep what they do in a database."""
        self._database = database

    async def run(self, call: OpenCall, gate: SendGate) -> CallOutcome:
        """Make the call; its effect is committed whole or not at all."""
        if call.snapshot.upstream_name not in BUILT_IN_TOOLS:
            return no_runner(call)
        await gate.before_send(None)
        try:
            result = await self._effect(call)
        except SubagentRefused as refused:
            return _refused(call, refused.rule)
        return CallOutcome(
            Settlement(InvocationStatus.SUCCEEDED), SendOutcome.ANSWERED, canonical_bytes(result)
        )

    async def _effect(self, call: OpenCall) -> dict[str, JSON]:
        round_id, tool = call.place.round_id, call.snapshot.upstream_name
        if tool == SPAWN:
            request = SpawnRequest.of(round_id, call.invocation_id, call.arguments)
            return await self._database.write(spawn_subagent, request)
        return await self._database.read(list_subagents, round_id)


def _refused(call: OpenCall, rule: SpawnRule) -> CallOutcome:
    not_visible = rule is SpawnRule.NOT_VISIBLE
    code = ErrorCode.TOOL_NOT_ALLOWED if not_visible else ErrorCode.SUBAGENT_REFUSED
    classification = Classification.AUTHORIZATION if not_visible else Classification.SEMANTIC
    details: dict[str, JSON] = {"tool": call.snapshot.exposed_name, "rule": rule.value}
    error = call_error(code, details, classification)
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.ANSWERED)
