"""The API over ASGI on a real database, with a key, an operator and, where asked for, a worker."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from temporalio.client import Client

from api.app import create_app
from api.deps import APIDeps
from models.database import Database, WriteSession
from models.key import ApiKey, add_secret, hash_secret
from models.vault import Vault
from settings import Settings
from tests.support.world import ConnectionPlan, add_connection, add_key

ADMIN_TOKEN = "sga_test-token-of-the-operator"


@dataclass(frozen=True)
class Agent:
    """A key that calls tools."""

    key_id: str
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}


@dataclass(frozen=True)
class APIBench:
    """An app and how to reach it."""

    app: FastAPI
    deps: APIDeps
    http: httpx.AsyncClient

    @property
    def database(self) -> Database:
        return self.deps.database

    @property
    def temporal(self) -> Client:
        assert self.deps.temporal is not None, "this test needs the workflow engine"
        return self.deps.temporal

    @property
    def task_queue(self) -> str:
        return self.deps.settings.task_queue

    async def agent(
        self,
        plan: ConnectionPlan | None = None,
        *,
        name: str = "agent",
        may_explain: bool = False,
        prefix: str = "sgk_",
    ) -> Agent:
        """Make a key without a tool configuration and, with a plan, a connection."""

        def build(session: WriteSession) -> Agent:
            if plan is not None:
                add_connection(session, plan)
            key = add_key(session, name)
            key.may_explain = may_explain
            return Agent(key.id, add_secret(session, key.id, prefix).text)

        return await self.database.write(build)

    async def disable(self, agent: Agent) -> None:
        def change(session: WriteSession) -> None:
            session.get_one(ApiKey, agent.key_id).enabled = False

        await self.database.write(change)

    async def operator(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a control-plane request with the admin token."""
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}", **options.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **options)


def make_settings(tmp_path: Path, database_url: str, **changes: Any) -> Settings:
    """Return settings as the entry points would read them, on this test's database.

    Tests of refusals fail to authenticate by the hundred, from one address.
    """
    values = {"heartbeat_timeout_s": 1.0, "auth_failures_per_minute": 100_000, **changes}
    return Settings(data_dir=tmp_path, database_url=database_url, **values)


@asynccontextmanager
async def api_bench(
    settings: Settings, temporal: Client | None, database: Database | None = None
) -> AsyncIterator[APIBench]:
    """Build an app on the settings' database, or on `database`."""
    owned = database or Database(
        settings.resolved_database_url(), pool_size=4, busy_timeout_ms=settings.database_busy_timeout_ms
    )
    deps = APIDeps(
        settings=settings,
        database=owned,
        vault=Vault(bytes(32)),
        admin_token_hash=hash_secret(ADMIN_TOKEN),
        temporal=temporal,
        search_attributes=False,
    )
    app = create_app(deps)
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=20) as http:
            yield APIBench(app, deps, http)
    finally:
        await deps.aclose()
        if database is None:
            owned.close()


def error_of(response: httpx.Response) -> Mapping[str, Any]:
    """Return the error of a refusal, having checked that it has the one form."""
    body = response.json()
    assert set(body) == {"error"}, body
    error: Mapping[str, Any] = body["error"]
    assert set(error) == {"code", "message", "request_id", "retryable", "details"}
    assert error["request_id"] == response.headers["x-request-id"]
    return error


def tool_call(name: str, arguments: Any = "{}", call_id: str = "call_1") -> dict[str, Any]:
    """Write a tool call object as a model gives it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def start_round(
    api: APIBench, agent: Agent, calls: Sequence[Mapping[str, Any]], **options: Any
) -> httpx.Response:
    """Start a round; `headers` are added to the agent's, other options to the body."""
    headers = {**agent.headers, **options.pop("headers", {})}
    return await api.http.post("/v1/rounds", headers=headers, json={"tool_calls": list(calls), **options})


async def execute(
    api: APIBench, agent: Agent, call: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """Execute one call."""
    return await api.http.post(
        "/v1/mcp/tool/execute", headers={**agent.headers, **(headers or {})}, json=call
    )
