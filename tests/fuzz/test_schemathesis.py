"""Requests generated from the published OpenAPI, against every route: no 5xx, and answers as documented."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.responses import JSONResponse, Response
from temporalio.client import Client

from api.schemas.errors import ErrorBody
from tests.api.bench import ADMIN_TOKEN, Agent, APIBench, api_bench, make_settings, tool_call
from tests.api.chat_bench import MODEL, register
from tests.support.databases import sqlite_copy
from tests.support.fake_provider import answer, completion, fake_provider, streamed, text_chunks
from tests.support.live_server import live_server
from tests.support.raw_server import Peer, RawRequest
from tests.support.world import ConnectionPlan
from worker import WorkerParts, running_worker

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
"""What is held of every answer."""

PLANES = {"callers": r"^/(v1|program_api|healthz|readyz)", "operators": r"^/api/"}
"""The routes of each run, by their paths; the runs go side by side where there are cores for it."""

CONFIGURATION = """
[phases.coverage]
# Every method on every path is tests/api/test_errors.py's; leaving them out here halves the time.
unexpected-methods = []
generate-duplicate-query-parameters = false
"""

EXAMPLES = 4
"""Random requests for each operation, beside those that schemathesis derives from the schemas one by one."""


@pytest.fixture
async def bench(
    sqlite_template_path: Path, tmp_path: Path, temporal_client: Client, task_queue: str
) -> AsyncIterator[APIBench]:
    """An app with the real engine and a worker; the kind of database changes nothing that is documented."""
    settings = make_settings(
        tmp_path,
        sqlite_copy(sqlite_template_path, tmp_path),
        task_queue=task_queue,
        auth_failures_per_minute=1_000_000,
    )
    async with api_bench(settings, temporal_client) as built:
        parts = WorkerParts(settings, built.database, built.deps.vault, built.temporal)
        async with running_worker(parts):
            yield built


async def model(request: RawRequest, peer: Peer) -> None:
    """Answer whatever is asked, streamed where that is asked for."""
    streams = json.loads(request.body).get("stream")
    await peer.send(streamed(text_chunks("Hello")) if streams else answer(completion()))


async def seed(api: APIBench, agent: Agent, mcp_url: str) -> tuple[dict[str, str], dict[str, str]]:
    """Make one of everything that paths name; the tokens by plane and the names by path."""

    async def made(path: str, body: Any) -> Any:
        response = await api.operator("POST", path, json=body)
        assert response.status_code in (200, 201), response.text
        return response.json()

    connection = {"name": "demo", "url": mcp_url, "network": "loopback", "tools_to_execute": ["*"]}
    assert (await made("/api/v1/mcp/clients", connection))["health"] == "healthy"
    key = await made("/api/v1/keys", {"name": "victim"})
    program = await made("/api/v1/programs", {"name": "prog"})
    await made("/api/v1/runtimes", {"name": "runtime", "fingerprint": "one"})
    version = await made(
        f"/api/v1/programs/{program['name']}/versions",
        {"fingerprint": "one", "protocol_version": "agent-program/2026-04-01", "sdk_version": "1"},
    )
    version_id = version["id"]
    secret = await made(f"/api/v1/programs/prog/versions/{version_id}/credentials", {})
    calls = {"tool_calls": [tool_call("files-unknown")]}
    ended = await api.http.post("/v1/rounds", headers=agent.headers, json=calls)
    [tool, *_] = (await api.operator("GET", "/api/v1/tools")).json()["items"]
    known = {
        "key_id": key["id"],
        "round_id": ended.json()["round_id"],
        "definition_id": tool["id"],
        "version_id": version_id,
        "slug": "fake",
        "model": MODEL,
        "tool": "demo-echo",
        "/api/v1/explain key": key["id"],
        "/api/v1/mcp/clients name": "files",
        "/api/v1/programs name": "prog",
        "/api/v1/runtimes name": "runtime",
    }
    tokens = {"/v1/": agent.secret, "/api/v1/": ADMIN_TOKEN, "/program_api/": secret["secret"]}
    return tokens, known


def known_by_path(document: dict[str, Any], known: dict[str, str]) -> dict[str, str]:
    """Return the seeds by path and parameter: `key_id` everywhere, a bare `name` by what it names."""
    found = dict(known)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    name = parameter["name"]
                    value = known.get(name) or known.get(f"{path.partition('/{')[0]} {name}")
                    if value is not None:
                        found[f"{path} {name}"] = value
    return found


async def run_schemathesis(
    url: str, paths: str, tokens: dict[str, str], known: dict[str, str], folder: Path
) -> str:
    """Generate and send the requests; what it printed, with its exit status as the last line."""
    (folder / "schemathesis.toml").write_text(CONFIGURATION)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{url}/openapi.json",
        "--no-color",
        "--checks=" + ",".join(CHECKS),
        "--phases=examples,coverage,fuzzing",
        f"--max-examples={EXAMPLES}",
        "--workers=2",
        "--generation-deterministic",
        "--no-shrink",
        "--continue-on-failure",
        "--request-timeout=10",
        "--suppress-health-check=all",
        f"--include-path-regex={paths}",
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks",
            "SCHEMATHESIS_TOKENS": json.dumps(tokens),
            "SCHEMATHESIS_KNOWN": json.dumps(known),
            "NO_PROXY": "*",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
    )
    output, _ = await process.communicate()
    return f"{output.decode()}\nexit status {process.returncode}"


def operations(document: dict[str, Any], paths: str) -> int:
    return sum(len(methods) for path, methods in document["paths"].items() if re.search(paths, path))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("paths", PLANES.values(), ids=list(PLANES))
async def test_every_route_answers_generated_requests_as_it_documents(
    bench: APIBench, mcp_url: str, tmp_path: Path, paths: str
) -> None:
    agent = await bench.agent(ConnectionPlan(), may_explain=True)
    document = bench.app.openapi()
    async with fake_provider(model) as provider, live_server(bench.app) as url:
        await register(bench, provider.base_url)
        tokens, known = await seed(bench, agent, mcp_url)
        output = await run_schemathesis(url, paths, tokens, known_by_path(document, known), tmp_path)

    assert output.endswith("exit status 0"), output
    assert re.search(rf"Tested: +{operations(document, paths)}\n", output), output


def test_every_route_is_generated_for(bench: APIBench) -> None:
    matched = {
        path: [plane for plane, paths in PLANES.items() if re.search(paths, path)]
        for path in bench.app.openapi()["paths"]
    }
    assert {path: planes for path, planes in matched.items() if len(planes) != 1} == {}


async def test_an_answer_that_is_not_as_documented_is_noticed(bench: APIBench, tmp_path: Path) -> None:
    @bench.app.get("/planted", responses={200: {"model": ErrorBody}})
    async def planted() -> Response:
        return JSONResponse({"error": "no object"})

    bench.app.openapi_schema = None
    async with live_server(bench.app) as url:
        output = await run_schemathesis(url, "^/planted", {}, {}, tmp_path)

    assert output.endswith("exit status 1"), output
    assert "violates schema" in output
