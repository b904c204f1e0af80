"""Judge the MCP endpoint by others' software: ``python -m tests.gateway.outside [SCENARIO ...]``.

Runs the server scenarios of the official conformance suite that a tool gateway can meet, and the TypeScript
clients of both generations. Needs npm packages, so it is no part of `make test`. The suite sends no
credentials and calls tools by fixed names: a small proxy adds the key and the connection's prefix, and
changes nothing else.
"""

import asyncio
import base64
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.mcp_server.probe import Probe, probe_tool, serving
from models.database import Database
from models.migration import migrate
from tests.api.bench import Agent
from tests.gateway.stage import Stage, stage
from tests.support.node_packages import install, node_binary
from tests.support.temporal_server import connect, running_temporal

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
SUITE: Final = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
CLIENTS: Final = ("@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/client@2.4.0", "zod@4.6.7")

PREFIX: Final = "suite-"

SCENARIOS: Final = {
    "2025-11-25": (
        "server-initialize",
        "ping",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-image",
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
        "tools-call-error",
        "server-sse-multiple-streams",
        "dns-rebinding-protection",
    ),
    "2026-07-28": (
        "tools-list",
        "tools-call-simple-text",
        "tools-call-image",
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
        "tools-call-error",
        "server-sse-multiple-streams",
        "dns-rebinding-protection",
        "server-stateless",
    ),
}
"""What is run; the rest asks for prompts, resources, completion, logging, sampling or elicitation, or for
progress and input requests of a tool, which a durable call does not pass on."""

UNTESTABLE: Final = {
    ("2026-07-28", "server-stateless"): frozenset(
        {
            # Asks for a tool that needs a client's sampling; the gateway asks clients for nothing.
            "sep-2575-server-rejects-undeclared-capability",
            "sep-2575-missing-capability-http-400",
            # Ask for tools that stream of their own accord.
            "sep-2575-http-server-no-independent-requests-on-stream",
            "sep-2575-server-no-log-without-loglevel",
        }
    ),
}
"""Checks of a scenario that need what is not declared; each must fail as "untestable" or be skipped."""

PNG: Final = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
WAV: Final = base64.b64encode(b"RIFF\x00\x00\x00\x00WAVE").decode()
TEXT: Final = {"type": "text", "text": "This is a simple text response for testing."}
IMAGE: Final = {"type": "image", "data": PNG, "mimeType": "image/png"}
EMBEDDED: Final = {
    "type": "resource",
    "resource": {
        "uri": "test://embedded-resource",
        "mimeType": "text/plain",
        "text": "An embedded resource.",
    },
}
MIXED: Final = {
    "type": "resource",
    "resource": {
        "uri": "test://mixed",
        "mimeType": "application/json",
        "text": '{"test":"data","value":123}',
    },
}
RESULTS: Final[Mapping[str, list[dict[str, Any]]]] = {
    "test_simple_text": [TEXT],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}],
    "test_embedded_resource": [EMBEDDED],
    "test_multiple_content_types": [TEXT, IMAGE, MIXED],
    "test_error_handling": [{"type": "text", "text": "This tool intentionally returns an error for testing"}],
}


class SuiteServer(Probe):
    """The server that the suite's tools are on."""

    async def _call(self, request: Any, receive: Receive) -> dict[str, Any]:
        name = request.params["name"]
        if name not in RESULTS:
            return await super()._call(request, receive)
        return {"content": RESULTS[name], "isError": name == "test_error_handling"}


@dataclass(frozen=True)
class Renaming:
    """Adds the key, and the connection's prefix to the names of tools; takes it off in lists."""

    http: httpx.AsyncClient
    agent: Agent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        body = (await request.body()).replace(b'"name":"test_', f'"name":"{PREFIX}test_'.encode())
        if headers.get("mcp-name", "").startswith("test_"):
            headers["mcp-name"] = PREFIX + headers["mcp-name"]
        answer = await self.http.request(
            request.method, "/mcp", content=body, headers={**headers, **self.agent.headers}
        )
        kept = {name: value for name, value in answer.headers.items() if name != "content-length"}
        content = answer.content.replace(f'"name":"{PREFIX}test_'.encode(), b'"name":"test_')
        await Response(content, answer.status_code, kept)(scope, receive, send)


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Stage]:
    url = f"sqlite:///{folder / 'outside.db'}"
    with closing(Database(url)) as database:
        migrate(database)
    probe = SuiteServer([probe_tool(name) for name in (*RESULTS, "read", "write", "delete")])
    async with running_temporal(folder) as server:
        client = await connect(server)
        async with stage(folder, url, client, "outside", probe) as built:
            await built.connect("suite")
            await built.connect("files", ["read", "write"])
            yield built


async def run(*command: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, output.decode()


def checks_in(folder: Path) -> list[dict[str, Any]]:
    """Read what the suite wrote down."""
    return [check for path in sorted(folder.rglob("checks.json")) for check in json.loads(path.read_text())]


async def scenario(script: Path, url: str, version: str, name: str) -> tuple[bool, str]:
    """Run one scenario; return whether it is as it should be, and what to print."""
    with tempfile.TemporaryDirectory() as results:
        arguments = ("server", "--url", url, "--scenario", name, "--spec-version", version, "-o", results)
        _, output = await run(node_binary(), str(script), *arguments)
        checks = await asyncio.to_thread(checks_in, Path(results))
    if not checks:
        return False, output[-1500:]
    excused = UNTESTABLE.get((version, name), frozenset())
    bad = [
        check for check in checks if check["status"] in {"FAILURE", "WARNING"} and check["id"] not in excused
    ]
    good = sum(check["status"] == "SUCCESS" for check in checks)
    lines = [f"{check['id']}: {check.get('errorMessage')}" for check in bad]
    stale = sorted(excused - {check["id"] for check in checks if check["status"] in {"FAILURE", "WARNING"}})
    lines += [f"{check}: is excused and does not fail" for check in stale]
    return not bad and not stale and good > 0, "\n      ".join([f"{good}/{len(checks)}", *lines])


async def conformance(built: Stage, wanted: Collection[str]) -> int:
    modules = install(ROOT / "tests" / "conformance", [SUITE])
    script = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    agent = await built.key(grants={"suite": ["*"]})
    wrong = 0
    async with serving(Renaming(built.http, agent)) as port:
        for version, names in SCENARIOS.items():
            for name in (one for one in names if not wanted or one in wanted):
                holds, shown = await scenario(script, f"http://127.0.0.1:{port}/mcp", version, name)
                wrong += not holds
                say(f"  {version}  {name:32} {'pass' if holds else 'FAIL'}  {shown}")
    return wrong


async def typescript(built: Stage) -> int:
    modules = install(HERE, CLIENTS)
    sdk = modules / "@modelcontextprotocol" / "sdk" / "dist" / "esm" / "client"
    second = modules / "@modelcontextprotocol" / "client"
    entry = json.loads((second / "package.json").read_text())["exports"]["."]
    path = entry["import"] if isinstance(entry["import"], str) else entry["import"]["default"]
    legs = [
        ("TypeScript SDK 1.32.2", str(sdk / "index.js"), str(sdk / "streamableHttp.js"), ""),
        ("TypeScript client 2.4.0", str(second / path), str(second / path), ""),
        ("TypeScript client 2.4.0, auto", str(second / path), str(second / path), "auto"),
    ]
    agent = await built.key(grants={"files": ["*"]})
    wrong = 0
    for number, (label, client, transport, mode) in enumerate(legs):
        built.probe.forget()
        nonce = f"leg {number}"
        _, output = await run(
            *(node_binary(), str(HERE / "legs.mjs"), client, transport, f"{built.url}/mcp", agent.secret),
            env={"NONCE": nonce, "MODE": mode},
        )
        seen = re.search(r"^\{.*\}$", output, re.MULTILINE)
        expected = {"tools": ["files-read", "files-write"], "isError": True, "code": -32602}
        found = json.loads(seen.group()) if seen else {}
        holds = (
            all(found.get(name) == value for name, value in expected.items())
            and built.probe.count(nonce) == 1
            and built.probe.given_up == 1
        )
        wrong += not holds
        say(f"  {label:32} {'pass' if holds else 'FAIL  ' + output[-1500:]}")
    return wrong


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this is a command


async def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        async with gateway(Path(folder)) as built:
            say("Conformance suite, server scenarios")
            wrong = await conformance(built, sys.argv[1:])
            if not sys.argv[1:]:
                say("Clients")
                wrong += await typescript(built)
    say(f"{wrong} are not as they should be" if wrong else "all as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
