"""governed_tool_validation: a built-in tool is frozen with its task, called, settled and governed."""

import pytest

from models.database import ReadSession
from models.subagent import SubagentSession, load_owned
from tests.acceptance.conftest import STATES, Product, Report
from tests.support.programs import definition, register, tool
from workflows.messages import InlineCall

pytestmark = pytest.mark.anyio

DECLARED = {
    "tool_catalog": [tool("subagent_spawn", tool_kind="effect_intent")],
    "profile_catalog": {"main": {"allowed_tool_names": ["subagent_spawn"]}, "researcher": {}},
    "default_config_snapshot": {
        "interactive": {"profile": "main"},
        "subagents": {"enabled": True, "allow_nested": True, "max_depth": 3},
    },
}

EXPECTED = {
    "round_statuses": ["succeeded", "refused", "refused"],
    "refusals": [None, "tool_not_found", "invalid_arguments"],
    "governance_mode": "reserved",
    "governed_catalog": ["subagent_spawn", "reserved", "core_matrix"],
    "binding_is_the_handshakes": [True, True],
    "binding_reason": "snapshot_default",
    "tool_invocation_status": "succeeded",
    "attempt_no": 1,
    "same_definition": True,
    "frozen_with_the_task": True,
    "profiles_offered": ["default", "main", "researcher"],
    **STATES,
}
"""What holds of the three rounds, whatever ids were given; `subagents` beside it names the one made."""


async def test_a_built_in_tool_is_governed_from_its_freeze_to_its_effect(
    product: Product, report: Report
) -> None:
    program = await register(product.api, definition(**DECLARED))
    handshake = (await program.handshake()).json()
    conversation_id = await program.conversation()
    task = await program.new_task(conversation_id)
    task_id = task["agent_task_run_id"]
    arguments = {"content": "Look it up.", "scope": "turn", "task_payload": {"source": "acceptance"}}

    rounds = [
        await product.run_round(program.key_id, task_id, InlineCall("c1", "subagent_spawn", arguments)),
        await product.run_round(program.key_id, task_id, InlineCall("c1", "subagent_list", {})),
        await product.run_round(
            program.key_id, task_id, InlineCall("c1", "subagent_spawn", {"scope": "turn"})
        ),
    ]

    facts = await product.facts(task_id)
    outcomes = [(await product.calls_of(round_id))[0] for round_id in rounds]
    owned = await product.api.database.read(_owned, conversation_id)
    [binding] = facts.bindings.values()
    [invocation] = facts.invocations
    [governed] = handshake["governed_effective_tool_catalog"]
    observed = {
        "round_statuses": [outcome["status"] for outcome in outcomes],
        "refusals": [outcome["error"]["code"] if outcome["error"] else None for outcome in outcomes],
        "governance_mode": binding.governance_mode.value,
        "governed_catalog": [
            governed["tool_name"],
            governed["governance_mode"],
            governed["implementation_source"],
        ],
        "binding_is_the_handshakes": [
            binding.tool_definition_id == governed["tool_definition_id"],
            binding.tool_implementation_id == governed["tool_implementation_id"],
        ],
        "binding_reason": binding.binding_reason.value,
        "tool_invocation_status": invocation.status.value,
        "attempt_no": invocation.attempt_no,
        "same_definition": invocation.tool_definition_id == binding.tool_definition_id,
        "subagents": [[row.id, row.scope.value, row.depth, row.profile_key] for row in owned],
        "frozen_with_the_task": [shown["tool_binding_id"] for shown in task["bindings"]] == [binding.id],
        "profiles_offered": governed["input_schema"]["properties"]["profile_key"]["enum"],
        **facts.states(),
    }
    expected = {
        **EXPECTED,
        "subagents": [[facts.responses[0]["subagent_session_id"], "turn", 0, "researcher"]],
    }
    report.add("governed_tool_validation", product.kind, expected, observed)


def _owned(session: ReadSession, conversation_id: str) -> tuple[SubagentSession, ...]:
    return load_owned(session, conversation_id)
