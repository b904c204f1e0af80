"""governed_mcp_validation: a tool of a real MCP server process before, in and after a lost session."""

from typing import Any

import pytest

from tests.acceptance.conftest import STATES, Product, Report, TaskFacts
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
        "session_states": list(facts.session_states),
        "last_message": messages[-1],
        **facts.states(),
    }


SHOWN = {
    "tool": "remote_echo",
    "governance_mode": "replaceable",
    "attempts": [1, 2, 3],
    "one_binding": True,
    "same_references": True,
    "sessions_used": 2,
    "session_states": ["open"],
    "last_message": "echo: third",
    **STATES,
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
        before, opened = len(await server.log()), len(await server.sessions())
        facts, messages = await three_rounds(product, program, server, 1)
        requests = (await server.requests())[before:]
        issued = (await server.sessions())[opened:]

    # The server ends each stream at once. What listening again then takes, a ping and another GET at the own
    # pace of the client, is left out; each session's first GET stays.
    streams: set[str | None] = set()
    shown: list[tuple[tuple[str, str, int], str | None]] = []
    for request, session in requests:
        what = request[1]
        if what != "ping" and not (what == "stream" and session in streams):
            shown.append((request, None if session is None else f"session {issued.index(session) + 1}"))
        if what == "stream":
            streams.add(session)

    expected = {
        **FAILED_ONCE,
        "log": [*OPENING, *STREAM, *CALL, *LOST, *OPENING, *STREAM, *CALL],
        "sessions_opened": 2,
        # The second call goes to the session that the server has just lost; only then is another one opened.
        "sessions_of_the_calls": ["session 1", "session 1", "session 2"],
        "sessions_of_the_requests": [None, *["session 1"] * 4, None, *["session 2"] * 3],
    }
    observed = {
        **observe(facts, messages),
        "log": [request for request, _ in shown],
        "sessions_opened": len(issued),
        "sessions_of_the_calls": [session for request, session in shown if request[1] == "tools/call"],
        "sessions_of_the_requests": [session for _, session in shown],
    }
    report.add("governed_mcp_validation (2024-11-05, stream always)", product.kind, expected, observed)
