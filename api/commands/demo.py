"""The demo: `make demo` plays an agent's turn on a real installation and checks what it claims.

It uses the command line and the HTTP API and nothing else; every figure it shows is read back from them, or
from the counters of the two MCP servers. CALLS=file.json plays other calls, KEEP=1 stays up until Ctrl-C.
Exit status: 0 when every claim holds, 1 when one does not, 2 for a wrong CALLS file, 130 after Ctrl-C.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.text import Text

from api.commands.demo_claims import Claim, claims_of_built_in, claims_of_repeat, claims_of_round
from api.commands.demo_processes import ROOT, Child, clean_environment, sluicegate
from api.commands.failures import CommandFailed
from api.commands.json_input import read_json_file
from api.commands.output import console, print_table
from api.commands.rounds import event_line, follow, show_round, tool_calls_of
from api.commands.server import Server
from governance.canonical import JSON, is_object

BUILT_IN_CALLS = ROOT / "examples" / "calls.json"
"""The seven calls of an agent that looks an order up, refunds it and reports."""

OVERLAYS = [
    {"match": {"tool_name": "orders-find_order"}, "execution_policy": {"parallel_safe": True}},
    {"match": {"tool_name": "reports-build_report"}, "execution_policy": {"parallel_safe": True}},
]
"""Looking up and reporting may run beside others; an MCP server's tools run alone unless told otherwise."""

GRANTS = ("orders=find_order,refund_order", "reports=*")
"""What the agent's key may use: deleting orders is not among it."""

READY_S = 60
"""How long `up` may take on a machine that is busy."""


class Demo:
    """One run of the demo in a temporary data folder."""

    def __init__(self, folder: Path, calls: list[Any]) -> None:
        self._folder = folder
        self._calls = calls
        self._environment = clean_environment(folder / "data")
        self._servers: dict[str, str] = {}
        self.claims: list[Claim] = []

    def start(self, stack: ExitStack) -> None:
        """Start `up` and the two MCP servers, and wait until they are ready."""
        began = time.monotonic()
        heading("Starting `sluicegate up` and two MCP servers, orders and reports")
        free = [f"--{port}=0" for port in ("port", "temporal-port", "ui-port")]
        up = stack.enter_context(self._child("up", [*sluicegate(), "up", *free]))
        servers = {
            name: stack.enter_context(
                self._child(name, [sys.executable, "-m", f"examples.demo_servers.{name}"])
            )
            for name in ("orders", "reports")
        }
        self._servers = {name: server.first_line() for name, server in servers.items()}
        place = self._ready(up)
        note(f"ready after {time.monotonic() - began:.1f} s: {place['url']}")
        self.url: str = place["url"]
        self.docs_url: str = place["docs_url"]

    def _ready(self, up: Child) -> Any:
        """Wait until `up` is ready, and return where it is; one that ends is not waited for."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                return self._cli("status", "--wait", "5")
            except CommandFailed as exc:
                if up.has_ended or time.monotonic() > deadline:
                    raise CommandFailed(f"`sluicegate up` did not start:\n{up.output()}") from exc

    def set_up(self) -> None:
        """Register the servers, set policies and make a key."""
        heading("Registering them, letting two tools run beside others, making a key for the agent")
        for name, url in self._servers.items():
            added = self._cli(
                *("connections", "add", name, f"{url}/mcp", "--network", "loopback", "--tools", "*")
            )
            note(f"{name} is {added['health']} and offers {added['tool_count']} tools")
        overlays = self._folder / "overlays.json"
        overlays.write_text(json.dumps(OVERLAYS))
        changed = self._cli("policies", "set", "--file", str(overlays))["changed_tools"]
        note(f"may run beside others now: {', '.join(changed)}")
        made = self._cli("keys", "create", "agent")
        self.key: str = made["secret"]
        self._cli("keys", "tools", "set", "agent", *GRANTS)
        with Server(self.url, self.key, as_json=False) as server:
            visible = [tool["function"]["name"] for tool in server.get("/v1/mcp/tools")["tools"]]
        note(f"the agent sees: {', '.join(visible)}")

    def play(self) -> None:
        """Play the round, show it live and after, then send it again."""
        calls = "1 call" if len(self._calls) == 1 else f"{len(self._calls)} calls"
        heading(f"Playing {calls} as one round; what happens, as it happens:")
        with Server(self.url, self.key, as_json=False) as server:
            before = self._runs()
            body = {"tool_calls": self._calls, "wait": 0}
            round_id = self._send(server, body)["round_id"]
            for event in follow(server, round_id):
                note(event_line(event))
            found = server.get(f"/v1/rounds/{round_id}")
            runs = self._runs() - before
            heading("What came of it")
            shown = self._cli("rounds", "show", round_id)
            show_round(shown)
            heading("The same round again, under the same Idempotency-Key")
            again = self._send(server, {"tool_calls": self._calls, "wait": 30})
            runs_after = self._runs() - before
        print_table(
            ("tool", "runs after the first time", "runs after the second time"),
            [(tool, runs[tool], runs_after[tool]) for tool in sorted(runs_after)],
            empty="No tool ran.",
        )
        self.claims += claims_of_round([call_id(call) for call in self._calls], found, runs)
        if self._calls == read_json_file(BUILT_IN_CALLS)["tool_calls"]:
            self.claims += claims_of_built_in(found, runs)
        self.claims += claims_of_repeat(found, again, runs, runs_after)
        heading("Look further (KEEP=1 make demo stays up for it)")
        note(f"API docs                       {self.docs_url}")
        note(f"this round in the Temporal UI  {shown['engine_url']}")
        note(f"this round over HTTP           {self.url}/v1/rounds/{round_id}")

    def _send(self, server: Server, body: dict[str, Any]) -> Any:
        headers = {"idempotency-key": "demo-turn-1"}
        return server.send("POST", "/v1/rounds", body=body, headers=headers).json()

    def _runs(self) -> Counter[str]:
        """Read how often each tool ran, under its exposed name, from the servers themselves."""
        runs: Counter[str] = Counter()
        for name, url in self._servers.items():
            counters: dict[str, int] = httpx.get(f"{url}/counters", trust_env=False).json()
            runs.update({f"{name}-{tool}": count for tool, count in counters.items()})
        return runs

    def _child(self, name: str, command: list[str]) -> Child:
        return Child(command, self._folder / f"{name}.log", self._environment)

    def _cli(self, *arguments: str) -> Any:
        """Run one of our commands, showing it, and return the JSON that it prints."""
        console().print(Text(f"  $ sluicegate {' '.join(_shown(one) for one in arguments)}", style="bold"))
        done = subprocess.run(
            [*sluicegate(), *arguments, "--json"],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CommandFailed(f"sluicegate {arguments[0]} failed: {done.stderr.strip()}")
        return json.loads(done.stdout)


@dataclass(frozen=True)
class Wishes:
    """What the environment asks of the demo."""

    calls: list[Any]
    keep: bool


def read_wishes() -> Wishes:
    """Read CALLS and KEEP.

    Raises:
        UsageFailed: the file of CALLS cannot be read or holds no calls; says where.
    """
    path = Path(os.environ.get("CALLS") or BUILT_IN_CALLS)
    keep = os.environ.get("KEEP", "") not in ("", "0")
    return Wishes(tool_calls_of(read_json_file(path), str(path)), keep)


def call_id(call: JSON) -> str:
    """Return the id of a call as the round's results show it."""
    return str(call["id"]) if is_object(call) and "id" in call else ""


def run(wishes: Wishes) -> int:
    """Run the demo and return its exit status."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-demo-") as folder, ExitStack() as stack:
        demo = Demo(Path(folder), wishes.calls)
        demo.start(stack)
        demo.set_up()
        demo.play()
        status = show_claims(demo.claims)
        if wishes.keep:
            heading("Staying up until Ctrl-C; try, in another terminal:")
            note(f"export SLUICEGATE_DATA_DIR={folder}/data")
            note(f"export SLUICEGATE_KEY={demo.key}")
            command = " ".join(sluicegate())
            note(f"{command} tools list")
            note(f'{command} execute orders-find_order \'{{"order_id": "A-1002"}}\'')
            try:
                signal.pause()
            except KeyboardInterrupt:
                note("Stopping.")
    return status


def show_claims(claims: Sequence[Claim]) -> int:
    """Print what was claimed and whether it holds; return the exit status."""
    heading("What this shows")
    for claim in claims:
        mark, style = ("holds ", "green") if not claim.faults else ("FAILED", "bold red")
        console().print(Text.assemble("  ", (mark, style), f"  {claim.sentence}"))
        for fault in claim.faults:
            console().print(Text(f"          {fault}", style="red"))
    failed = [claim for claim in claims if claim.faults]
    if failed:
        sys.stderr.write(f"error: {len(failed)} of {len(claims)} claims do not hold\n")
    return 1 if failed else 0


def heading(text: str) -> None:
    """Print the title of a step."""
    console().print()
    console().print(Text(text, style="bold cyan"))


def note(text: str) -> None:
    """Print a line of a step."""
    # Never broken into lines: commands and addresses are copied from here.
    console().print(Text(f"  {text}"), soft_wrap=True)


def _shown(argument: str) -> str:
    return f"'{argument}'" if any(character in argument for character in " *,") else argument


def main() -> None:
    """Run the demo as a process of its own."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        sys.exit(run(read_wishes()))
    except CommandFailed as failed:
        sys.stderr.write(f"error: {failed}\n")
        sys.exit(failed.status)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
