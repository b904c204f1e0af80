"""governed_mcp_validation: a tool of a real MCP server process before, in and after a lost session."""

from typing import Any

import pytest

from tests.acceptance.conftest import Product, Report, TaskFacts
from tests.support.core_matrix_process import CoreMatrixServer, core_matrix_server_process
from tests.support.programs import Program, definition, mcp_tool, register
from workflows.messages import InlineCall

pytestmark = pytest.mark.anyio

OPENING = [("POST", "initialize", 200), ("POST", "notifications/initialized", 202)]
STREAM = [("GET", "stream", 200)]
CALL = [("POST", "tools/call", 200)]
LOST = [("POST", "tools/call", 404)]


async def connect(product: Product, server: CoreMatrixServer, **settings: Any) -> Program:
    """Register the server, and a program that declares its tool under a name of its own."""
    body = {
        "name": "fake",
        "url": server.url,
        "network": "loopback",
        "tools_to_execute": ["echo"],
        "session_scope": "binding",
        "protocol_version": "2024-11-05",
        **settings,
    }
    made = await product.api.operator("POST", "/api/v1/mcp/clients", json=body)
    assert made.json()["health"] == "healthy", made.text
    schema = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    return await register(
        product.api,
        definition(
            tool_catalog=[mcp_tool("remote_echo", "fake", "echo", input_schema=schema)],
            profile_catalog={"main": {"allowed_tool_names": ["remote_echo"]}},
        ),
        grants=["fake"],
    )


async def three_rounds(
    product: Product, program: Program, server: CoreMatrixServer, losses: int
) -> tuple[TaskFacts, list[str]]:
    """Run three rounds of one task and lose the session before the second; return facts and tool messages."""
    task = await program.new_task(await program.conversation())
    messages: list[str] = []
    for number, word in enumerate(("first", "second", "third")):
        if number == 1:
            await server.arm("session_not_found", losses)
        call = InlineCall(f"call_{number}", "remote_echo", {"message": word})
        round_id = await product.run_round(program.key_id, task["agent_task_run_id"], call)
        messages.append((await product.calls_of(round_id))[0]["content"])
    return await product.facts(task["agent_task_run_id"]), messages


def observe(facts: TaskFacts, messages: list[str]) -> dict[str, Any]:
    [binding] = facts.bindings.values()
    failed = [row.error for row in facts.invocations if row.error is not None]
    return {
        "tool": binding.tool_name,
        "governance_mode": binding.governance_mode.value,
        "statuses": [row.status.value for row in facts.invocations],
        "attempts": [row.attempt_no for row in facts.invocations],
        "one_binding": {row.tool_binding_id for row in facts.invocations} == {binding.id},
        "same_references": all(
            (row.tool_definition_id, row.tool_implementation_id)
            == (binding.tool_definition_id, binding.tool_implementation_id)
            for row in facts.invocations
        ),
        "failures": [[error["classification"], error["code"], error["retryable"]] for error in failed],
        "sessions_used": len({digest for digest in facts.session_digests if digest is not None}),
        "last_message": messages[-1],
    }


SHOWN = {
    "tool": "remote_echo",
    "governance_mode": "replaceable",
    "attempts": [1, 2, 3],
    "one_binding": True,
    "same_references": True,
    "sessions_used": 2,
    "last_message": "echo: third",
}
FAILED_ONCE = {
    **SHOWN,
    "statuses": ["succeeded", "failed", "succeeded"],
    "failures": [["transport", "session_not_found", True]],
}


@pytest.mark.parametrize(
    ("settings", "losses", "expected"),
    [
        ({"on_session_loss": "report"}, 1, FAILED_ONCE),
        ({"on_session_loss": "retry_once"}, 1, {**SHOWN, "statuses": ["succeeded"] * 3, "failures": []}),
        ({"on_session_loss": "retry_once"}, 2, {**FAILED_ONCE, "sessions_used": 3}),
    ],
    ids=["report", "retry_once", "retry_once, lost twice"],
)
async def test_a_lost_session_is_reported_or_repaired_as_the_connection_says(
    settings: dict[str, Any], losses: int, expected: dict[str, Any], product: Product, report: Report
) -> None:
    async with core_matrix_server_process() as server:
        program = await connect(product, server, **settings)
        facts, messages = await three_rounds(product, program, server, losses)

    name = f"governed_mcp_validation ({settings['on_session_loss']}, {losses} lost)"
    report.add(name, product.kind, expected, observe(facts, messages))


async def test_the_requests_are_those_of_the_original(product: Product, report: Report) -> None:
    async with core_matrix_server_process() as server:
        program = await connect(product, server, on_session_loss="report", event_stream="always")
        before = len(await server.log())
        facts, messages = await three_rounds(product, program, server, 1)
        log = (await server.log())[before:]
        issued = await server.sessions()

    expected = {
        **FAILED_ONCE,
        "log": [*OPENING, *STREAM, *CALL, *LOST, *OPENING, *STREAM, *CALL],
        "sessions_of_the_calls": issued[-2:],
    }
    observed = {**observe(facts, messages), "log": log, "sessions_of_the_calls": issued[-2:]}
    report.add("governed_mcp_validation (2024-11-05, stream always)", product.kind, expected, observed)
