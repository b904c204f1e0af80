"""What a verification works with: the gateway as its callers reach it, and things of its own behind it.

Everything that is made here is removed at the end, also after a failure.
"""

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from api.mcp_server.eras import (
    META_CAPABILITIES,
    META_VERSION,
    METHOD_HEADER,
    MODERN,
    NAME_HEADER,
    VERSION_HEADER,
)
from api.mcp_server.probe import Probe, probe_tool

ALLOWED: Final = "allowed"
GRANTED: Final = "granted"
UNLISTED: Final = "unlisted"
TOOLS: Final = (ALLOWED, GRANTED, UNLISTED)
"""What the server of ours offers; the last one is on no list of the gateway."""

LIMIT_S: Final = 60.0
"""How long one request may take."""


class SceneProblem(Exception):
    """The verification cannot be carried out; says which step failed and how."""


@dataclass(frozen=True)
class Key:
    """A key to call with; `expected` is what it may use of our server, None where others configured it."""

    label: str
    secret: str
    key_id: str | None = None
    expected: frozenset[str] | None = None


@dataclass
class Scene:
    """The gateway, our server behind it, and the keys that were made or given."""

    http: httpx.AsyncClient
    admin_token: str
    probe: Probe
    connection: str
    keys: list[Key] = field(default_factory=list[Key])

    def tool(self, name: str) -> str:
        """Return the exposed name of a tool of our server."""
        return f"{self.connection}-{name}"

    @property
    def wide(self) -> Key:
        """The key that was made without a tool configuration."""
        return next(key for key in self.keys if key.label == "wide")

    async def operator(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request to the control plane."""
        headers = {"authorization": f"Bearer {self.admin_token}", **options.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **options)

    async def made(self, method: str, path: str, **options: Any) -> Any:
        """Send a request to the control plane that must succeed; return its JSON.

        Raises:
            SceneProblem: it did not.
        """
        answer = await self.operator(method, path, **options)
        if not answer.is_success:
            raise SceneProblem(f"{method} {path} was answered {answer.status_code}: {answer.text[:300]}")
        return answer.json() if answer.content else None

    async def execute(
        self, key: Key, tool: str, arguments: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Execute one call of a tool of our server."""
        call = self.call(tool, arguments)
        return await self.http.post(
            "/v1/mcp/tool/execute", json=call, headers={**(headers or {}), **_bearer(key)}
        )

    async def round(self, key: Key, tool: str, arguments: Mapping[str, Any]) -> httpx.Response:
        """Run one call of a tool of our server as a round."""
        calls = {"tool_calls": [self.call(tool, arguments)]}
        return await self.http.post("/v1/rounds", json=calls, headers=_bearer(key))

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Write a call as a model would; the same arguments make the same call."""
        function = {"name": self.tool(tool), "arguments": dict(arguments)}
        return {"id": "verify", "type": "function", "function": function}

    async def listed(self, key: Key, headers: Mapping[str, str]) -> set[str]:
        """Return the tools of our server that the list in function format holds."""
        answer = await self.http.get("/v1/mcp/tools", headers={**_bearer(key), **headers})
        return self._ours([tool["function"]["name"] for tool in _json(answer)["tools"]])

    async def mcp_listed(self, key: Key, headers: Mapping[str, str]) -> set[str]:
        """Return the tools of our server that the MCP endpoint lists, over all pages."""
        names: list[str] = []
        params: dict[str, Any] = {}
        while True:
            page = _json(await self.mcp(key, "tools/list", params, headers))["result"]
            names += [tool["name"] for tool in page["tools"]]
            if "nextCursor" not in page:
                return self._ours(names)
            params = {"cursor": page["nextCursor"]}

    async def mcp(
        self, key: Key, method: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> httpx.Response:
        """Send one request to the MCP endpoint."""
        meta: dict[str, Any] = {META_VERSION: MODERN, META_CAPABILITIES: {}}
        body: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": method,
            "params": {**params, "_meta": meta},
        }
        own = {VERSION_HEADER: MODERN, METHOD_HEADER: method}
        if "name" in params:
            own[NAME_HEADER] = params["name"]
        return await self.http.post("/mcp", json=body, headers={**headers, **_bearer(key), **own})

    async def explained(self, key: Key, headers: Mapping[str, str]) -> set[str]:
        """Return the tools of our server that the control plane says the key may use."""
        params = {"key": key.key_id or ""}
        params |= {name.removeprefix("x-mcp-").replace("-", "_"): value for name, value in headers.items()}
        rows = (await self.made("GET", "/api/v1/explain", params=params))["tools"]
        return self._ours([row["tool"] for row in rows if row["decision"] == "allowed"])

    def _ours(self, names: Sequence[str]) -> set[str]:
        prefix = f"{self.connection}-"
        return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


@asynccontextmanager
async def scene(
    http: httpx.AsyncClient, admin_token: str, probe: Probe, where: tuple[str, str], given: Sequence[str]
) -> AsyncGenerator[Scene]:
    """Put our server behind the gateway at `where` (URL and network), make keys, and remove both afterwards.

    Raises:
        SceneProblem: the gateway does not take the connection, or cannot reach it.
    """
    built = Scene(http, admin_token, probe, f"verify_{secrets.token_hex(4)}")
    try:
        await _connect(built, *where)
        await _make_keys(built)
        built.keys += [Key(f"given {number}", secret) for number, secret in enumerate(given, 1)]
        yield built
    finally:
        for key in built.keys:
            if key.key_id is not None:
                await built.operator("DELETE", f"/api/v1/keys/{key.key_id}")
        await built.operator("DELETE", f"/api/v1/mcp/clients/{built.connection}")


def new_probe() -> Probe:
    """Make our server."""
    return Probe([probe_tool(name) for name in TOOLS])


async def _connect(built: Scene, url: str, network: str) -> None:
    body = {
        "name": built.connection,
        "url": url,
        "network": network,
        "tools_to_execute": [ALLOWED, GRANTED],
    }
    made = await built.made("POST", "/api/v1/mcp/clients", json=body)
    if not made["sync"].get("ok"):
        reason = made["last_failure"] or made["sync"]["state"]
        raise SceneProblem(f"the gateway cannot reach the verification's server at {url}: {reason}")


async def _make_keys(built: Scene) -> None:
    grants: dict[str, list[str] | None] = {"wide": None, "narrow": [GRANTED], "nothing": []}
    expected = {"wide": {ALLOWED, GRANTED}, "narrow": {GRANTED}, "nothing": set[str]()}
    for label, tools in grants.items():
        name = f"{built.connection} {label}"
        made = await built.made("POST", "/api/v1/keys", json={"name": name})
        built.keys.append(Key(label, made["secret"], made["id"], frozenset(expected[label])))
        if tools is not None:
            configs = [{"client": built.connection, "tools_to_execute": tools}]
            path = f"/api/v1/mcp/keys/{made['id']}/tools"
            await built.made("PUT", path, json={"mcp_configs": configs})


def _bearer(key: Key) -> dict[str, str]:
    return {"authorization": f"Bearer {key.secret}"}


def _json(answer: httpx.Response) -> Any:
    if not answer.is_success:
        raise SceneProblem(
            f"{answer.request.url.path} was answered {answer.status_code}: {answer.text[:300]}"
        )
    return answer.json()
