"""The servers of other makers, pinned: how each is installed and started, and what its tools are called."""

import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.node_packages import install, node_binary

HERE: Final = Path(__file__).parent
SERVERS: Final = HERE.parent / "support" / "mcp_servers"
SDK_EXAMPLES: Final = "@modelcontextprotocol/sdk/dist/esm/examples/server"

NODE_PACKAGES: Final = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/server@2.4.0",
    "@modelcontextprotocol/node@2.1.2",
    "zod@4.6.7",
)

Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Server:
    """One server under test.

    `command` builds the argument vector for a port; `long` is a call that reports progress for a second or
    two, `endless` one that takes long enough to be cancelled; None where the server has no such tool.
    """

    name: str
    command: Callable[[int], list[str]]
    call: Call
    long: Call | None = None
    endless: Call | None = None
    version: str = "auto"
    path: str = "/mcp"
    transport: str = "streamable_http"
    environment: Callable[[int], Mapping[str, str]] = field(default=lambda _: {})


def python_with(name: str, *requirements: str) -> str:
    """Return the interpreter of an environment of its own below this folder, made on first use."""
    folder = HERE / "pythons" / name / ".venv"
    python = folder / "bin" / "python"
    stamp = folder / "sluicegate-requirements"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *requirements,
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"pip could not install {', '.join(requirements)}:\n{done.stderr[-2000:]}")
        stamp.write_text(wanted)
    return str(python)


def all_servers(scratch: Path) -> list[Server]:
    """Install everything and return the servers in the order of the table."""
    modules = install(HERE, NODE_PACKAGES)
    return [
        *_sdk_lab(),
        *_everything(modules),
        *_frameworks(),
        *_typescript(modules),
        *_bridges(modules, scratch),
    ]


def _sdk_lab() -> list[Server]:
    def lab(*options: str) -> Callable[[int], list[str]]:
        module = "tests.support.mcp_servers.sdk_server"
        return lambda port: [sys.executable, "-m", module, "--port", str(port), *options]

    tools: dict[str, Any] = {
        "call": ("echo", {"text": "x"}),
        "long": ("slow", {"seconds": 1}),
        "endless": ("slow", {"seconds": 30}),
    }
    return [
        Server("Python SDK 2.3.0", lab(), **tools),
        Server("Python SDK 2.3.0, events", lab("--events"), version="2025-11-25", **tools),
        Server("Python SDK 2.3.0, JSON answers", lab("--json"), version="2025-11-25", **tools),
        Server("Python SDK 2.3.0, stateless", lab("--stateless"), version="2025-11-25", **tools),
    ]


def _everything(modules: Path) -> list[Server]:
    script = str(modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js")
    slow = "trigger-long-running-operation"
    tools: dict[str, Any] = {
        "call": ("echo", {"message": "x"}),
        "long": (slow, {"duration": 2, "steps": 4}),
        "endless": (slow, {"duration": 30, "steps": 60}),
        "environment": lambda port: {"PORT": str(port)},
    }
    return [
        Server("server-everything 2026.8.31", lambda _: [node_binary(), script, "streamableHttp"], **tools),
        Server(
            "server-everything 2026.8.31, HTTP+SSE",
            lambda _: [node_binary(), script, "sse"],
            path="/sse",
            transport="http_sse",
            **tools,
        ),
    ]


def _frameworks() -> list[Server]:
    script = str(SERVERS / "framework_server.py")
    tools: dict[str, Any] = {
        "call": ("echo", {"text": "x"}),
        "long": ("slow", {"seconds": 1}),
        "endless": ("slow", {"seconds": 30}),
    }
    sdk1 = python_with("sdk1", "mcp==1.30.0")
    fastmcp = python_with("fastmcp", "fastmcp==4.1.6")
    return [
        Server("Python SDK 1.30.0", lambda port: [sdk1, script, "sdk1", str(port)], **tools),
        Server("fastmcp 4.1.6", lambda port: [fastmcp, script, "fastmcp", str(port)], **tools),
        Server(
            "fastmcp 4.1.6, handshake",
            lambda port: [fastmcp, script, "fastmcp", str(port)],
            version="2025-11-25",
            **tools,
        ),
    ]


def _typescript(modules: Path) -> list[Server]:
    examples = modules / SDK_EXAMPLES
    second = modules / "ts2_server.mjs"  # Packages are found from where the file lies.
    shutil.copyfile(SERVERS / "ts2_server.mjs", second)
    tools: dict[str, Any] = {
        "call": ("echo", {"text": "x"}),
        "long": ("slow", {"seconds": 1}),
        "endless": ("slow", {"seconds": 30}),
    }
    return [
        Server(
            "TypeScript SDK 1.32.2",
            lambda _: [node_binary(), str(examples / "simpleStreamableHttp.js")],
            call=("greet", {"name": "x"}),
            long=("multi-greet", {"name": "x"}),
            environment=lambda port: {"MCP_PORT": str(port)},
        ),
        Server(
            "TypeScript SDK 1.32.2, polling",
            lambda port: [node_binary(), str(_on_port(examples / "ssePollingExample.js", port))],
            call=("long-task", {}),
            long=("long-task", {}),
        ),
        Server(
            "TypeScript SDK 1.32.2, JSON answers",
            lambda port: [node_binary(), str(_on_port(examples / "jsonResponseStreamableHttp.js", port))],
            call=("greet", {"name": "x"}),
        ),
        Server(
            "TypeScript SDK 1.32.2, stateless",
            lambda port: [node_binary(), str(_on_port(examples / "simpleStatelessStreamableHttp.js", port))],
            call=("start-notification-stream", {"interval": 10, "count": 2}),
        ),
        Server("TypeScript SDK 2.4.0", lambda port: [node_binary(), str(second), str(port)], **tools),
        Server(
            "TypeScript SDK 2.4.0, handshake",
            lambda port: [node_binary(), str(second), str(port)],
            version="2025-11-25",
            **tools,
        ),
        Server(
            "TypeScript SDK 2.4.0, modern only",
            lambda port: [node_binary(), str(second), str(port), "modern"],
            **tools,
        ),
    ]


def _on_port(script: Path, port: int) -> Path:
    """Return a copy of an example whose port is written into it, with another port."""
    copy = script.with_name(f"sluicegate-{script.name}")
    text = script.read_text()
    for line in ("const PORT = 3000;", "const PORT = 3001;"):
        text = text.replace(line, f"const PORT = {port};")
    copy.write_text(text)
    return copy


def _bridges(modules: Path, scratch: Path) -> list[Server]:
    proxy = str(Path(python_with("bridge", "mcp-proxy==0.13.0")).with_name("mcp-proxy"))
    packages = modules / "@modelcontextprotocol"
    filesystem = [node_binary(), str(packages / "server-filesystem" / "dist" / "index.js"), str(scratch)]
    memory = [node_binary(), str(packages / "server-memory" / "dist" / "index.js")]
    clock = [str(Path(python_with("time", "mcp-server-time==2026.10.19")).with_name("mcp-server-time"))]

    def behind(port: int, server: list[str], *options: str) -> list[str]:
        return [proxy, *options, "--host", "127.0.0.1", "--port", str(port), "--", *server]

    return [
        Server(
            "mcp-proxy 0.13.0, filesystem",
            lambda port: behind(port, filesystem),
            call=("list_directory", {"path": str(scratch)}),
        ),
        Server(
            "mcp-proxy 0.13.0, memory, stateless",
            lambda port: behind(port, memory, "--stateless"),
            call=("read_graph", {}),
            environment=lambda _: {"MEMORY_FILE_PATH": str(scratch / "memory.jsonl")},
        ),
        Server(
            "mcp-proxy 0.13.0, time",
            lambda port: behind(port, clock),
            call=("get_current_time", {"timezone": "Etc/UTC"}),
        ),
    ]
