"""Registers programs and runtimes over HTTP, as an operator does, and speaks as they do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from tests.api.bench import APIBench

JSONObject = Mapping[str, Any]


def tool(name: str, **changes: Any) -> dict[str, Any]:
    """Write a tool as a program declares it."""
    declared = {
        "tool_name": name,
        "tool_kind": "agent_observation",
        "implementation_ref": f"program/{name}",
        "input_schema": {"type": "object"},
        **changes,
    }
    return {key: value for key, value in declared.items() if value is not None}


def mcp_tool(name: str, server: str, remote: str, **changes: Any) -> dict[str, Any]:
    """Write a tool of a registered connection as a program declares it."""
    named = {
        "implementation_source": "mcp",
        "implementation_ref": f"mcp/{server}/{remote}",
        "transport_kind": "streamable_http",
        "server_slug": server,
        "mcp_tool_name": remote,
    }
    return tool(name, **{**named, **changes})


def runtime_tool(name: str, **changes: Any) -> dict[str, Any]:
    """Write a tool as an execution runtime declares it."""
    named = {"tool_kind": "execution_runtime", "implementation_ref": f"env/{name}"}
    return tool(name, **{**named, **changes})


def definition(**parts: Any) -> dict[str, Any]:
    """Write what a program declares of a version."""
    return {
        "fingerprint": f"release-{uuid4().hex[:8]}",
        "protocol_version": "agent-program/2026-04-01",
        "sdk_version": "1.0.0",
        "protocol_methods": [{"method_id": "agent_health"}, {"method_id": "capabilities_handshake"}],
        "tool_catalog": [],
        "profile_catalog": {},
        "default_config_snapshot": {},
        **parts,
    }


@dataclass(frozen=True)
class Program:
    """A registered version of a program, with its credential."""

    api: APIBench
    name: str
    key_id: str
    version_id: str
    secret: str
    declared: JSONObject = field(default_factory=dict)

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.api.http.post(
            f"/program_api/{path}", headers={"authorization": f"Bearer {self.secret}"}, json=body
        )

    async def get(self, path: str) -> httpx.Response:
        return await self.api.http.get(
            f"/program_api/{path}", headers={"authorization": f"Bearer {self.secret}"}
        )

    async def handshake(self, **changes: Any) -> httpx.Response:
        return await self.post("capabilities", {**self.declared, **changes})

    async def conversation(self, **override: Any) -> str:
        response = await self.post("conversations", {"override_payload": override})
        assert response.status_code == 201, response.text
        return str(response.json()["conversation_id"])

    async def task(self, conversation_id: str, work: str = "work", **changes: Any) -> httpx.Response:
        body = {"conversation_id": conversation_id, "logical_work_id": work, **changes}
        return await self.post("tasks", body)

    async def new_task(self, conversation_id: str, work: str = "work", **changes: Any) -> dict[str, Any]:
        response = await self.task(conversation_id, work, **changes)
        assert response.status_code == 201, response.text
        return dict(response.json())


async def register(api: APIBench, declared: JSONObject | None = None, **settings: Any) -> Program:
    """Register a program with one version; `grants` are the connections that its key may use whole."""
    grants: Sequence[str] = settings.pop("grants", ())
    name = f"program_{uuid4().hex[:8]}"
    made = await api.operator("POST", "/api/v1/programs", json={"name": name, **settings})
    assert made.status_code == 201, made.text
    key_id = made.json()["key_id"]
    configs = [{"client": client, "tools_to_execute": ["*"]} for client in grants]
    granted = await api.operator("PUT", f"/api/v1/mcp/keys/{key_id}/tools", json={"mcp_configs": configs})
    assert granted.status_code == 200, granted.text
    body = definition() if declared is None else declared
    version = await api.operator("POST", f"/api/v1/programs/{name}/versions", json=body)
    assert version.status_code == 201, version.text
    return Program(api, name, key_id, version.json()["id"], version.json()["secret"], body)


@dataclass(frozen=True)
class Runtime:
    """A registered execution runtime, with its credential."""

    api: APIBench
    name: str
    id: str
    secret: str
    fingerprint: str

    async def declare(self, *tools: JSONObject, **changes: Any) -> httpx.Response:
        body = {"fingerprint": self.fingerprint, "execution_tool_catalog": list(tools), **changes}
        return await self.api.http.post(
            "/program_api/capabilities", headers={"authorization": f"Bearer {self.secret}"}, json=body
        )


async def register_runtime(api: APIBench) -> Runtime:
    name = f"runtime_{uuid4().hex[:8]}"
    made = await api.operator("POST", "/api/v1/runtimes", json={"name": name, "fingerprint": "host-1"})
    assert made.status_code == 201, made.text
    return Runtime(api, name, made.json()["id"], made.json()["secret"], "host-1")
