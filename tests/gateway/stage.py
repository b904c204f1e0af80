"""A gateway on a real socket with engine and worker, in front of a server that remembers everything."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from temporalio.client import Client

from api.mcp_server.probe import Probe, probe_tool, serving
from tests.api.bench import ADMIN_TOKEN, Agent, APIBench, api_bench, make_settings
from worker import WorkerParts, running_worker

TOOLS = ("read", "write", "delete")


@dataclass(frozen=True)
class Stage:
    """The gateway, how to reach it over the network, and the server behind it."""

    api: APIBench
    http: httpx.AsyncClient
    probe: Probe
    probe_url: str

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    async def operator(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a control-plane request with the admin token; it must succeed."""
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}", **options.pop("headers", {})}
        answer = await self.http.request(method, path, headers=headers, **options)
        assert answer.is_success, answer.text
        return answer

    async def connect(
        self, name: str, tools: Sequence[str] | None = ("*",), **settings: Any
    ) -> dict[str, Any]:
        """Register the probe as a connection and have its tools listed."""
        body = {
            "name": name,
            "url": self.probe_url,
            "network": "loopback",
            "tools_to_execute": None if tools is None else list(tools),
            **settings,
        }
        made: dict[str, Any] = (await self.operator("POST", "/api/v1/mcp/clients", json=body)).json()
        assert made["sync"]["ok"], made
        return made

    async def key(
        self, name: str | None = None, grants: Mapping[str, Sequence[str]] | None = None, **settings: Any
    ) -> Agent:
        """Make a key, with a tool configuration where grants by connection name are given."""
        name = name or f"agent {uuid4().hex}"
        made = (await self.operator("POST", "/api/v1/keys", json={"name": name, **settings})).json()
        agent = Agent(made["id"], made["secret"])
        if grants is not None:
            configs = [
                {"client": client, "tools_to_execute": list(tools)} for client, tools in grants.items()
            ]
            await self.operator(
                "PUT", f"/api/v1/mcp/keys/{agent.key_id}/tools", json={"mcp_configs": configs}
            )
        return agent


@asynccontextmanager
async def stage(
    tmp_path: Path,
    database_url: str,
    temporal: Client,
    task_queue: str,
    probe: Probe | None = None,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """Build everything on free ports of loopback."""
    upstream = probe or Probe([probe_tool(name) for name in TOOLS])
    built = make_settings(tmp_path, database_url, task_queue=task_queue, **settings)
    async with api_bench(built, temporal) as api, serving(upstream) as probe_port, serving(api.app) as port:
        parts = WorkerParts(api.deps.settings, api.database, api.deps.vault, api.temporal)
        async with (
            running_worker(parts),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http,
        ):
            yield Stage(api, http, upstream, f"http://127.0.0.1:{probe_port}/mcp")


def listed_names(answer: httpx.Response) -> set[str]:
    """Return the names in an answer of the tool list."""
    assert answer.status_code == 200, answer.text
    return {tool["function"]["name"] for tool in answer.json()["tools"]}
