"""`sluicegate up` as a process: it starts, it serves, it drains, and it leaves nothing running."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from api.commands.service import LAST_S
from api.processes import identify
from governance.codes import InvocationOutcome, InvocationStatus
from models.database import Database
from models.invocation import ToolInvocation
from tests.support.command_line import (
    FREE_PORTS,
    Up,
    environment,
    example_server,
    run,
    running_up,
    sluicegate,
)

# Each start imports everything and runs a Temporal server: several seconds where the cores are shared.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]

GONE_S = 5


@pytest.fixture(scope="module")
async def up(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """An installation that the tests of this file share."""
    async with running_up(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture(scope="module")
async def orders(up: Up) -> AsyncIterator[str]:
    """The example server of orders, connected to the shared installation."""
    async with example_server("orders") as url:
        arguments = ("connections", "add", "orders", f"{url}/mcp", "--network", "loopback", "--tools", "*")
        added = (await sluicegate(*arguments, "--json", data_dir=up.data_dir)).json()
        assert (added["health"], added["tool_count"]) == ("healthy", 3)
        yield url


async def as_key(up: Up, *arguments: str) -> Any:
    """Run a command with the first key and return the JSON it prints."""
    done = await sluicegate(
        *arguments, "--json", data_dir=up.data_dir, extra={"SLUICEGATE_KEY": up.secrets["key"]}
    )
    return done.json()


async def as_admin(up: Up, *arguments: str) -> Any:
    """Run a command as the operator of the data folder and return the JSON it prints."""
    return (await sluicegate(*arguments, "--json", data_dir=up.data_dir)).json()


async def test_the_first_start_shows_urls_the_admin_token_and_a_first_key(up: Up) -> None:
    token = up.data_dir / "admin.token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert up.secrets["admin"] == token.read_text()
    assert up.secrets["admin"].startswith("sga_")
    assert up.secrets["key"].startswith("sgk_")
    async with httpx.AsyncClient() as client:
        for url in (f"{up.url}/readyz", f"{up.url}/docs", f"{up.url}/console", up.place["temporal_ui_url"]):
            assert url.removesuffix("/readyz") in "".join(up.banner)
            assert (await client.get(url, follow_redirects=True)).status_code == 200


async def test_a_second_up_on_the_folder_is_refused_and_names_the_first(up: Up) -> None:
    done = await sluicegate("up", *FREE_PORTS, data_dir=up.data_dir)
    assert done.status == 1
    assert f"is in use by process {up.process.pid}" in done.err
    assert up.url in done.err
    assert "--data-dir" in done.err


async def test_keys_are_managed_from_the_shell(up: Up) -> None:
    made = await as_admin(up, "keys", "create", "shell", "--may-explain")
    assert made["secret"].startswith("sgk_")
    rotated = await as_admin(up, "keys", "rotate", "shell")
    assert rotated["secret"] != made["secret"]
    async with httpx.AsyncClient(base_url=up.url) as client:
        tools = "/v1/mcp/tools"
        old, new = ({"authorization": f"Bearer {one['secret']}"} for one in (made, rotated))
        assert (await client.get(tools, headers=old)).status_code == 401
        assert (await client.get(tools, headers=new)).json()["tools"] == []
        assert (await as_admin(up, "keys", "disable", made["id"]))["enabled"] is False
        assert (await client.get(tools, headers=new)).status_code == 403
    assert (await as_admin(up, "keys", "enable", "shell"))["enabled"] is True
    renamed = await as_admin(up, "keys", "set", "shell", "--name", "shell2", "--request-filter", "narrow")
    assert (renamed["name"], renamed["request_filter"]) == ("shell2", "narrow")
    assert {"first", "shell2"} <= {key["name"] for key in await as_admin(up, "keys", "list")}
    deleted = await sluicegate("keys", "delete", "shell2", data_dir=up.data_dir)
    assert deleted.status == 0
    gone = await sluicegate("keys", "show", "shell2", data_dir=up.data_dir)
    assert (gone.status, gone.err) == (
        1,
        "error: no key has the name 'shell2'; `sluicegate keys list` shows them\n",
    )


async def test_a_rotation_says_when_the_secret_before_ends(up: Up) -> None:
    made = await as_admin(up, "keys", "create", "rotated")
    later = await sluicegate("keys", "rotate", "rotated", "--overlap", "3600", data_dir=up.data_dir)
    assert f"The secret {made['secrets'][0]['hint']} stays valid until 20" in later.err
    await as_admin(up, "keys", "create", "replaced")
    now = await sluicegate("keys", "rotate", "replaced", data_dir=up.data_dir)
    assert "The secrets before are not valid any more." in now.err


async def test_a_quota_is_set_shown_and_cleared_from_the_shell(up: Up) -> None:
    await as_admin(up, "keys", "create", "spender")
    quota = ("keys", "quota")
    assert (await as_admin(up, *quota, "get", "spender"))["limits"] is None
    await as_admin(up, *quota, "set", "spender", "--requests-per-minute", "0", "--budget-per-day", "2.50")
    both = await as_admin(up, *quota, "set", "spender", "--concurrent-calls", "3")
    limits = {name: value for name, value in both["limits"].items() if value is not None}
    assert limits == {"requests_per_minute": 0, "budget_per_day": "2.5", "concurrent_calls": 3}
    shown = await sluicegate(*quota, "get", "spender", data_dir=up.data_dir)
    assert "budget per day" in shown.out
    wrong = await sluicegate(*quota, "set", "spender", data_dir=up.data_dir)
    assert (wrong.status, "--requests-per-minute" in wrong.err) == (2, True)
    assert (await sluicegate(*quota, "clear", "spender", "--yes", data_dir=up.data_dir)).status == 0
    assert (await as_admin(up, *quota, "get", "spender"))["limits"] is None


async def test_providers_are_managed_from_the_shell_and_their_credential_is_read_from_elsewhere(
    up: Up,
) -> None:
    add = ("providers", "add", "vendor", "https://vendor.example/v1", "--model", "small=vendor-small-1")
    secret = {"VENDOR_KEY": "vendor-secret"}
    plain = await sluicegate(*add, "--credential", "vendor-secret", data_dir=up.data_dir)
    assert (plain.status, "env:VARIABLE" in plain.err, "vendor-secret" in plain.err) == (2, True, False)
    added = await sluicegate(*add, "--credential", "env:VENDOR_KEY", data_dir=up.data_dir, extra=secret)
    assert (added.status, "sealed" in added.out, "vendor-secret" in added.out) == (0, True, False)
    [provider] = await as_admin(up, "providers", "list")
    assert provider["model_aliases"]["small"]["upstream_model"] == "vendor-small-1"
    assert (await as_admin(up, "providers", "remove", "vendor"))["models"] == ["small"]
    assert await as_admin(up, "providers", "list") == []


async def test_grants_decide_what_a_key_may_call(up: Up, orders: str) -> None:
    made = await as_admin(up, "keys", "create", "granted")
    config = await as_admin(up, "keys", "tools", "set", "granted", "orders=find_order,not_there")
    assert config["mcp_configs"] == [{"client": "orders", "tools_to_execute": ["find_order", "not_there"]}]
    assert config["unmatched"] == [{"client": "orders", "tool": "not_there"}]
    key = {"SLUICEGATE_KEY": made["secret"]}
    explained = await as_admin(up, "explain", "granted")
    decisions = {one["tool"]: one["decision"] for one in explained["tools"] if one["client"] == "orders"}
    assert decisions == {
        "orders-find_order": "allowed",
        "orders-refund_order": "denied",
        "orders-delete_order": "denied",
    }
    call = ("execute", "orders-find_order", '{"order_id": "A-1002"}')
    called = await sluicegate(*call, data_dir=up.data_dir, extra=key)
    assert (called.status, json.loads(called.out)["customer"]) == (0, "Osei")
    refused = await sluicegate(
        "execute", "orders-delete_order", '{"order_id": "A-1002"}', data_dir=up.data_dir, extra=key
    )
    assert refused.status == 1
    assert "[tool_not_allowed, request " in refused.err
    await sluicegate("keys", "tools", "clear", "granted", "--yes", data_dir=up.data_dir)
    assert (await as_admin(up, "keys", "tools", "get", "granted"))["mcp_configs"] is None


async def test_a_connection_is_changed_and_looked_at(up: Up, orders: str) -> None:
    changed = await as_admin(up, "connections", "set", "orders", "--timeout", "7", "--idempotency", "keyed")
    assert (changed["tool_timeout_s"], changed["idempotency"]) == (7.0, "keyed")
    overlays = [{"match": {"server_slug": "orders"}, "execution_policy": {"parallel_safe": True}}]
    path = up.data_dir / "overlays.json"
    path.write_text(json.dumps(overlays))
    assert (await as_admin(up, "policies", "set", "-f", str(path)))["overlays"] == overlays
    tools = await as_admin(up, "connections", "tools", "orders")
    assert {tool["parallel_safe"] for tool in tools["tools"]} == {True}
    assert (await as_admin(up, "connections", "refresh", "orders"))["sync"]["state"] == "finished"
    assert (await as_admin(up, "connections", "disable", "orders"))["enabled"] is False
    assert (await as_key(up, "tools", "list"))["tools"] == []
    assert (await as_admin(up, "connections", "enable", "orders"))["enabled"] is True


async def test_a_server_that_is_away_is_kept_with_its_failure_and_can_be_removed(up: Up) -> None:
    url = "http://127.0.0.1:9/mcp"
    add = ("connections", "add", "away", url, "--json")
    refused = await sluicegate(*add, data_dir=up.data_dir)
    assert (refused.status, json.loads(refused.out)["health"]) == (1, "failing")
    assert "`sluicegate connections set away --network loopback`" in refused.err
    changed = await as_admin(up, "connections", "set", "away", "--network", "loopback")
    assert (changed["health"], changed["last_failure"]["stage"]) == ("failing", "connect")
    still = await sluicegate("connections", "refresh", "away", data_dir=up.data_dir)
    assert (still.status, f"is a server running at {url}?" in still.err) == (1, True)
    shown = await sluicegate("connections", "show", "away", data_dir=up.data_dir)
    assert "connect: " in shown.out
    assert (await sluicegate("connections", "remove", "away", data_dir=up.data_dir)).status == 0
    gone = await sluicegate("connections", "show", "away", data_dir=up.data_dir)
    assert gone.status == 1
    assert "[not_found, " in gone.err


async def test_a_round_is_started_followed_shown_and_repeated(up: Up, orders: str) -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "orders-find_order", "arguments": arguments}}
        for arguments in ({"order_id": "A-1001"},)
    ]
    given = json.dumps({"tool_calls": calls})
    key = {"SLUICEGATE_KEY": up.secrets["key"]}
    start = ("rounds", "start", "-f", "-", "--idempotency-key", "shell-round")
    first = await sluicegate(*start, "--json", data_dir=up.data_dir, extra=key, given=given)
    again = await sluicegate(*start, "--json", data_dir=up.data_dir, extra=key, given=given)
    assert first.json() == again.json()
    round_id = first.json()["round_id"]
    followed = await sluicegate("rounds", "events", round_id, data_dir=up.data_dir, extra=key)
    kinds = [line.split()[2] for line in followed.out.splitlines()]
    assert kinds == ["round_requested", "round_started", "call_started", "call_finished", "round_completed"]
    resumed = await sluicegate("rounds", "events", round_id, "--after", "4", data_dir=up.data_dir, extra=key)
    assert [line.split()[2] for line in resumed.out.splitlines()] == ["round_completed"]
    shown = await sluicegate("rounds", "show", round_id, data_dir=up.data_dir)
    assert up.place["temporal_ui_url"] in shown.out
    assert "█" in shown.out
    assert round_id in {one["round_id"] for one in await as_admin(up, "rounds", "list")}
    ended = await sluicegate("rounds", "cancel", round_id, data_dir=up.data_dir, extra=key)
    assert ended.out == f"Round {round_id} had ended already; its state is completed.\n"


async def test_the_example_starts_a_round_through_temporal(up: Up, orders: str) -> None:
    key_id = (await as_admin(up, "keys", "show", "first"))["id"]
    where = {
        "SLUICEGATE_TEMPORAL_ADDRESS": up.place["temporal_address"],
        "SLUICEGATE_URL": up.url,
        "SLUICEGATE_KEY": up.secrets["key"],
    }
    command = [sys.executable, "-m", "examples.start_round", key_id]
    done = await run(command, environment(up.data_dir, where))
    assert done.err == ""
    assert "is completed: " in done.out
    assert "call_2  succeeded  orders-find_order: {" in done.out
    assert "call_7  refused    orders-find_odrer: " in done.out


async def test_the_reconciler_can_be_run_by_hand(up: Up) -> None:
    report = await as_admin(up, "reconcile")
    assert (report["started"], report["finalized"], report["unreachable"]) == (0, 0, 0)


async def test_a_killed_up_leaves_no_temporal_server_and_its_folder_can_be_used_again(tmp_path: Path) -> None:
    async with running_up(tmp_path) as killed:
        server = identify(json.loads((tmp_path / "temporal.json").read_text())["server"]["pid"])
        assert server.is_running()
        os.kill(killed.process.pid, signal.SIGKILL)
        async with asyncio.timeout(GONE_S):
            await killed.process.wait()
            while server.is_running():  # noqa: ASYNC110 - A process of nobody here: nothing to wait on.
                await asyncio.sleep(0)
    status = await sluicegate("status", data_dir=tmp_path)
    assert (status.status, "no server runs on it" in status.err) == (3, True)
    async with running_up(tmp_path) as second:
        assert second.secrets == {}
        assert len(await as_admin(second, "keys", "list")) == 1
        assert "Stopped." in await second.end()
        assert second.process.returncode == 0
    assert not (tmp_path / "server.json").exists()


@asynccontextmanager
async def slow_round(tmp_path: Path, seconds: float, *options: str) -> AsyncIterator[tuple[Up, str]]:
    """Run an `up` that is in the middle of a slow call; gives it and the round's id."""
    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(running_up(tmp_path, *options))
        url = await stack.enter_async_context(example_server("reports"))
        arguments = ("connections", "add", "reports", f"{url}/mcp", "--network", "loopback", "--tools", "*")
        await as_admin(up, *arguments)
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=up.url, timeout=60))
        client.headers["authorization"] = f"Bearer {up.secrets['key']}"
        arguments_of_call = {"month": "2026-06", "seconds": seconds}
        function = {"name": "reports-build_report", "arguments": arguments_of_call}
        body = {"tool_calls": [{"id": "slow", "type": "function", "function": function}]}
        round_id = (await client.post("/v1/rounds", json={**body, "wait": 0})).json()["round_id"]
        async with client.stream("GET", f"/v1/rounds/{round_id}/events") as events:
            async for line in events.aiter_lines():
                if line == "event: call_started":
                    break
        yield up, round_id


async def test_a_stopped_up_says_what_it_waits_for_and_lets_it_finish(tmp_path: Path) -> None:
    async with slow_round(tmp_path, 4) as (up, round_id):
        printed = await up.end()
        assert f"Waiting up to 20 s for round {round_id} (reports-build_report)." in printed
        assert "Not waiting any longer" not in printed
        assert printed.endswith("Stopped.\n")
        assert up.process.returncode == 0
    assert stored_invocations(tmp_path) == [(InvocationStatus.SUCCEEDED, InvocationOutcome.KNOWN)]


async def test_a_second_signal_settles_running_calls_as_unknown_and_stops_at_once(tmp_path: Path) -> None:
    async with slow_round(tmp_path, 30) as (up, round_id):
        up.process.send_signal(signal.SIGINT)
        assert "Waiting up to 20 s" in await up.line()
        began = asyncio.get_running_loop().time()
        printed = await up.end(signal.SIGINT)
        assert f"Not waiting any longer for round {round_id}" in printed
        assert asyncio.get_running_loop().time() - began < LAST_S + GONE_S
        assert up.process.returncode == 0
    assert stored_invocations(tmp_path) == [(InvocationStatus.FAILED, InvocationOutcome.UNKNOWN)]


async def test_the_drain_time_ends_a_wait_that_would_be_too_long(tmp_path: Path) -> None:
    async with slow_round(tmp_path, 30, "--drain", "0.5") as (up, _):
        assert "Not waiting any longer" in await up.end()
    assert stored_invocations(tmp_path) == [(InvocationStatus.FAILED, InvocationOutcome.UNKNOWN)]


def stored_invocations(data_dir: Path) -> list[tuple[InvocationStatus, InvocationOutcome]]:
    query = select(ToolInvocation.status, ToolInvocation.outcome)
    with (
        closing(Database(f"sqlite:///{data_dir / 'sluicegate.db'}")) as database,
        database.engine.connect() as connection,
    ):
        return [(status, outcome) for status, outcome in connection.execute(query)]
