"""The client the suite drives: the production transport, and what each scenario wants done with it.

The suite appends the URL of its mock server and sets ``MCP_CONFORMANCE_SCENARIO``,
``MCP_CONFORMANCE_PROTOCOL_VERSION`` and, for some scenarios, ``MCP_CONFORMANCE_CONTEXT`` (JSON).
"""

import asyncio
import contextlib
import json
import os
import ssl
import sys
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from activities.mcp_http.client import MCPClient, build_http_client
from activities.mcp_http.errors import MCPError
from activities.mcp_http.types import CallHooks, Endpoint, ListedTool, OpenSession, ToolCall

MODERN = "2026-07-28"
ASKING = frozenset({"elicitation-sep1034-client-defaults", "sep-2322-client-request-state"})
"""Scenarios whose tools elicit; in the others nothing is declared."""

STUBS: Mapping[str, Any] = {
    "integer": 5,
    "number": 5,
    "boolean": True,
    "array": [],
    "object": {},
    "string": "x",
}


async def accept_defaults(params: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a form with its defaults; what has none is filled by type."""
    properties: Mapping[str, Any] = (params.get("requestedSchema") or {}).get("properties") or {}
    content = {name: schema.get("default", _stub(schema)) for name, schema in properties.items()}
    return {"action": "accept", "content": content}


def _stub(schema: Mapping[str, Any]) -> Any:
    return schema["enum"][0] if schema.get("enum") else STUBS.get(schema.get("type", "string"))


def _arguments(tool: ListedTool) -> dict[str, Any]:
    properties = tool.input_schema.get("properties") or {}
    if tool.name == "add_numbers":
        return {"a": 5, "b": 3}
    return {name: _stub(properties.get(name) or {}) for name in tool.input_schema.get("required") or []}


def calls_of(scenario: str, tools: Iterable[ListedTool], context: Mapping[str, Any]) -> list[ToolCall]:
    """Return what to call, in order."""
    by_name = {tool.name: tool for tool in tools}
    if scenario == "http-custom-headers":
        wanted = [(call["name"], call.get("arguments") or {}) for call in context["toolCalls"]]
    elif scenario == "json-schema-2020-12-preservation":
        schema = by_name["json_schema_2020_12_tool"].input_schema
        wanted = [("json_schema_echo", {"schema": schema})]
    else:
        wanted = [(tool.name, _arguments(tool)) for tool in by_name.values()]
    return [
        ToolCall(name, arguments, str(uuid4()), input_schema=by_name[name].input_schema)
        for name, arguments in wanted
        if name in by_name
    ]


async def drive(url: str, scenario: str, version: str, context: Mapping[str, Any]) -> None:
    """List all tools and make the scenario's calls; a failed call does not stop the others."""
    endpoint = Endpoint(
        url,
        network="loopback",
        protocol_version="auto" if version == MODERN else version,
        elicitation="ask" if scenario in ASKING else "none",
    )
    hooks = CallHooks(on_elicitation=accept_defaults)
    async with build_http_client(endpoint, ssl.create_default_context()) as http:
        client = MCPClient(http, endpoint)
        session = await client.open_session()
        # The suite elicits over the stream outside of calls, which is held only where that is declared.
        listening = await _listening(client, session, hooks) if scenario in ASKING else None
        tools = (await client.list_tools(session)).tools
        for call in calls_of(scenario, tools, context):
            with contextlib.suppress(MCPError):
                await client.call_tool(session, call, hooks, timeout_s=20)
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        await client.close_session(session)


async def _listening(client: MCPClient, session: OpenSession, hooks: CallHooks) -> asyncio.Task[None]:
    """Return the task that listens, once its stream stands or it is known that there is none."""
    stands = asyncio.Event()
    task = asyncio.create_task(_listen(client, session, hooks, stands))
    await stands.wait()
    return task


async def _listen(client: MCPClient, session: OpenSession, hooks: CallHooks, stands: asyncio.Event) -> None:
    async def ignore(_message: dict[str, Any], _event_id: str | None) -> None:
        return None

    try:
        with contextlib.suppress(MCPError):
            await client.listen(session, ignore, hooks=hooks, on_open=stands.set)
    finally:
        stands.set()


def main() -> None:
    """Read what the suite wants and do it; exit status 1 when no session could be opened."""
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "2025-11-25")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    try:
        asyncio.run(drive(sys.argv[-1], scenario, version, context))
    except MCPError as exc:
        sys.exit(repr(exc))


if __name__ == "__main__":
    main()
