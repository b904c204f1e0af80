"""`sluicegate serve` as a process, against a Temporal server and a database that it did not start."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from api.embedded import EmbeddedTemporal
from api.processes import free_port
from tests.support.command_line import COMMAND_S, ROOT, environment, example_server, sluicegate

# Each command imports everything: several seconds where the cores are shared.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


@dataclass
class Serving:
    """A running `serve`, and the environment that leads the commands to it."""

    process: asyncio.subprocess.Process
    url: str
    where: dict[str, str]

    async def end(self) -> tuple[str, str]:
        """Ask it to stop; return what it printed and what it logged until it had."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(COMMAND_S):
            out, err = await self.process.communicate()
        return out.decode(), err.decode()


@asynccontextmanager
async def serving(data_dir: Path, settings: Mapping[str, str], *options: str) -> AsyncIterator[Serving]:
    """Run `serve` on a free port; it is killed if it still runs at the end."""
    assert (await sluicegate("migrate", "--schema-only", data_dir=data_dir)).status == 0
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "api.cli", "serve", "--port", "0", *options),
        cwd=ROOT,
        env=environment(data_dir, settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(COMMAND_S):
            url = (await process.stdout.readline()).decode().split()[2]
        token = (data_dir / "admin.token").read_text()
        yield Serving(process, url, {"SLUICEGATE_URL": url, "SLUICEGATE_ADMIN_TOKEN": token})
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_serve_answers_while_temporal_is_away_and_ends_when_told(tmp_path: Path) -> None:
    away = {"SLUICEGATE_TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"}
    async with serving(tmp_path, away) as server:
        made = await sluicegate("keys", "create", "a", data_dir=tmp_path, extra=server.where)
        assert made.status == 0
        out, err = await server.end()
        assert (out, server.process.returncode) == ("Stopped.\n", 0)
        assert "does not answer yet" in err


async def test_a_worker_in_serve_waits_for_the_calls_that_run_in_it(
    tmp_path: Path, temporal_server: EmbeddedTemporal, task_queue: str
) -> None:
    there = {
        "SLUICEGATE_TEMPORAL_ADDRESS": temporal_server.address,
        "SLUICEGATE_TASK_QUEUE": task_queue,
    }
    async with serving(tmp_path, there, "--with-worker") as server, example_server("reports") as reports:
        add = ("connections", "add", "reports", f"{reports}/mcp", "--network", "loopback", "--tools", "*")
        assert (await sluicegate(*add, data_dir=tmp_path, extra=server.where)).status == 0
        create = ("keys", "create", "a", "--json")
        key = (await sluicegate(*create, data_dir=tmp_path, extra=server.where)).json()["secret"]
        function = {"name": "reports-build_report", "arguments": {"month": "2026-06", "seconds": 4}}
        body = {"tool_calls": [{"id": "slow", "type": "function", "function": function}], "wait": 60}
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=COMMAND_S) as client:
            begun = (await client.post("/v1/rounds", json={**body, "wait": 0})).json()["round_id"]
            async with client.stream("GET", f"/v1/rounds/{begun}/events") as events:
                async for line in events.aiter_lines():
                    if line == "event: call_started":
                        break
            out, _ = await server.end()
    assert f"Waiting up to 20 s for round {begun} (reports-build_report)." in out
    assert "Not waiting any longer" not in out
    assert out.endswith("Stopped.\n")


async def test_two_processes_on_one_database_run_one_round_for_one_key(
    tmp_path: Path, temporal_server: EmbeddedTemporal, task_queue: str
) -> None:
    there = {
        "SLUICEGATE_TEMPORAL_ADDRESS": temporal_server.address,
        "SLUICEGATE_TASK_QUEUE": task_queue,
    }
    async with (
        serving(tmp_path, there, "--with-worker") as one,
        serving(tmp_path, there, "--with-worker") as two,
        example_server("orders") as orders,
    ):
        add = ("connections", "add", "orders", f"{orders}/mcp", "--network", "loopback", "--tools", "*")
        assert (await sluicegate(*add, data_dir=tmp_path, extra=one.where)).status == 0
        create = ("keys", "create", "a", "--json")
        key = (await sluicegate(*create, data_dir=tmp_path, extra=two.where)).json()["secret"]
        function = {"name": "orders-refund_order", "arguments": {"order_id": "A-1001", "amount_cents": 1}}
        body = {"tool_calls": [{"id": "once", "type": "function", "function": function}], "wait": 60}
        headers = {"authorization": f"Bearer {key}", "idempotency-key": "one-refund"}
        async with httpx.AsyncClient(headers=headers, timeout=COMMAND_S) as client:
            answers = await asyncio.gather(
                *(client.post(f"{server.url}/v1/rounds", json=body) for server in [one, two] * 4)
            )
            counts = (await client.get(f"{orders}/counters")).json()
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["round_id"] for answer in answers}) == 1
    assert counts["refund_order"] == 1
