"""Programs whose tools are on real MCP servers, and their rounds over HTTP."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from api.mcp_server.probe import Probe, probe_tool, serving
from tests.api.bench import Agent, APIBench, start_round
from tests.support.programs import Program, definition, mcp_tool, register

SEARCH = [
    mcp_tool("search", "files", "read", implementation_ref="mcp/files/read"),
    mcp_tool("search", "backup", "read", implementation_ref="mcp/backup/read"),
]
"""One tool that two servers offer; the first is the default."""


@dataclass(frozen=True)
class Servers:
    """The API with servers behind it that remember what reached them."""

    api: APIBench
    probes: dict[str, Probe] = field(default_factory=dict[str, Probe])

    def counts(self) -> dict[str, int]:
        """How many calls each server carried out."""
        return {name: len(probe.calls) for name, probe in self.probes.items()}

    async def program(self, **parts: Any) -> Program:
        """Register a program that may use every server whole."""
        return await register(self.api, definition(**parts), grants=list(self.probes))


@asynccontextmanager
async def servers(
    api: APIBench, names: Sequence[str] = ("files", "backup"), **settings: Any
) -> AsyncIterator[Servers]:
    """Run one server for each name and register it with the operator's API."""
    found = Servers(api)
    async with AsyncExitStack() as stack:
        for name in names:
            probe = Probe([probe_tool("read"), probe_tool("write")])
            port = await stack.enter_async_context(serving(probe))
            body = {
                "name": name,
                "url": f"http://127.0.0.1:{port}/mcp",
                "network": "loopback",
                "tools_to_execute": ["*"],
                **settings,
            }
            made = await api.operator("POST", "/api/v1/mcp/clients", json=body)
            assert made.json()["health"] == "healthy", made.text
            found.probes[name] = probe
        yield found


async def agent_of(program: Program) -> Agent:
    """Let a program call tools on the data plane: give a secret to the key that it acts as."""
    made = await program.api.operator("POST", f"/api/v1/keys/{program.key_id}/secrets", json={})
    assert made.status_code == 201, made.text
    return Agent(program.key_id, made.json()["secret"])


async def statuses(
    api: APIBench, agent: Agent, calls: Sequence[Mapping[str, Any]], **place: Any
) -> list[str]:
    """Run a round and return each call's status, or the code of its error."""
    response = await start_round(api, agent, calls, **place)
    assert response.status_code == 200, response.text
    return outcomes(response)


def outcomes(response: httpx.Response) -> list[str]:
    """Return each call's status, or the code of its error."""
    rows = response.json()["results"]
    return [row["error"]["code"] if row["error"] else row["status"] for row in rows]
