"""The transport against a server on the official SDK, as a process of its own."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from activities.mcp_http.client import MCPClient
from activities.mcp_http.errors import MCPError, Outcome, SessionLost
from activities.mcp_http.types import CallHooks, Cursor, Limits, OpenSession, Timeouts
from tests.activities.mcp_http.connecting import client_of, tool_call

SLOW_MACHINE = Timeouts(negotiation_s=10)


@contextmanager
def sdk_server(*options: str) -> Iterator[str]:
    """Run the server and give its base URL; it accepts connections when it prints its port."""
    command = [sys.executable, "-m", "tests.support.mcp_servers.sdk_server", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with sdk_server() as url:
        yield url


@pytest.fixture(scope="module")
def with_events() -> Iterator[str]:
    with sdk_server("--events") as url:
        yield url


@asynccontextmanager
async def session_with(url: str, version: str) -> AsyncGenerator[tuple[MCPClient, OpenSession], None]:
    async with client_of(f"{url}/mcp", protocol_version=version, timeouts=SLOW_MACHINE) as client:
        session = await client.open_session()
        yield client, session
        await client.close_session(session)


def counters(url: str, path: str = "counters") -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/{path}", timeout=5) as response:  # noqa: S310 - loopback, our own server
        found: dict[str, int] = json.load(response)
        return found


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "auto"])
async def test_every_version_lists_and_calls(plain: str, version: str) -> None:
    async with session_with(plain, version) as (client, session):
        assert session.protocol_version == ("2026-07-28" if version == "auto" else version)
        listing = await client.list_tools(session)
        assert (len(listing.tools), listing.pages, listing.dropped, listing.stopped) == (10, 3, (), None)
        add = next(tool for tool in listing.tools if tool.name == "add")
        before = counters(plain)["POST"]
        answer = await client.call_tool(
            session, tool_call("add", {"a": 1915883588174806058, "b": 0}, output_schema=add.output_schema)
        )
        assert counters(plain)["POST"] == before + 1
        assert (answer.is_error, answer.marks) == (False, ())
        if version >= "2025-06-18":
            assert answer.structured_content == {"sum": 1915883588174806058}
        assert (await client.call_tool(session, tool_call("fail"))).is_error


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["2025-11-25", "auto"])
async def test_progress_and_cancellation_reach_each_other(plain: str, version: str) -> None:
    steps: list[float] = []
    moved = asyncio.Event()

    async def on_progress(progress: Any) -> None:
        steps.append(progress.progress)
        moved.set()

    async with session_with(plain, version) as (client, session):
        hooks = CallHooks(on_progress=on_progress)
        await client.call_tool(session, tool_call("slow", {"seconds": 0.1}), hooks)
        assert steps == [0, 1, 2, 3]
        moved.clear()
        running = asyncio.create_task(client.call_tool(session, tool_call("slow", {"seconds": 60}), hooks))
        await asyncio.wait_for(moved.wait(), 5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert counters(plain, "cancelled")["cancelled"] >= 1


@pytest.mark.anyio
async def test_a_ping_and_a_refused_elicitation_in_the_middle_of_a_call(plain: str) -> None:
    async with session_with(plain, "2025-11-25") as (client, session):
        answer = await client.call_tool(session, tool_call("ping_me"), timeout_s=20)
        assert answer.content[0]["text"] == "pong received"
        with pytest.raises(MCPError) as caught:
            await client.call_tool(session, tool_call("ask_me"), timeout_s=20)
        assert caught.value.details["jsonrpc_code"] == -32601


@pytest.mark.anyio
async def test_an_output_that_breaks_its_schema_is_kept_and_marked(plain: str) -> None:
    async with session_with(plain, "2025-11-25") as (client, session):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        answer = await client.call_tool(session, tool_call("bad_output", output_schema=schema))
        assert answer.marks == ("output_schema_violation",)
        assert answer.structured_content == {"n": "not a number"}


@pytest.mark.anyio
async def test_a_deleted_session_is_lost_and_one_initialize_brings_the_next_call_through(plain: str) -> None:
    async with session_with(plain, "2025-11-25") as (client, session):
        await client.close_session(session)
        before = counters(plain)["initialize"]
        with pytest.raises(SessionLost):
            await client.call_tool(session, tool_call("echo", {"text": "x"}))
        again = await client.open_session()
        assert (await client.call_tool(again, tool_call("echo", {"text": "x"}))).content[0]["text"] == "x"
        assert counters(plain)["initialize"] == before + 1
        await client.close_session(again)


@pytest.mark.anyio
async def test_a_large_answer_arrives_whole_and_a_larger_one_than_allowed_is_refused(plain: str) -> None:
    async with session_with(plain, "2025-11-25") as (client, session):
        answer = await client.call_tool(session, tool_call("big", {"bytes": 3_000_000}))
        assert len(answer.content[0]["text"]) == 3_000_000
    async with client_of(f"{plain}/mcp", limits=Limits(max_body_bytes=1_000_000)) as client:
        session = await client.open_session()
        with pytest.raises(MCPError) as caught:
            await client.call_tool(session, tool_call("big", {"bytes": 3_000_000}))
        assert (caught.value.code, caught.value.outcome) == ("answer_too_large", Outcome.UNKNOWN)
        assert (await client.call_tool(session, tool_call("echo", {"text": "alive"}))).content
        await client.close_session(session)


@pytest.mark.anyio
async def test_a_stream_closed_by_the_server_is_resumed(with_events: str) -> None:
    async with session_with(with_events, "2025-11-25") as (client, session):
        answer = await client.call_tool(session, tool_call("drop_stream", {"seconds": 0.2}), timeout_s=10)
        assert answer.content[0]["text"] == "survived"
        assert counters(with_events)["tool:drop_stream"] == 1


@pytest.mark.anyio
async def test_a_call_whose_process_went_away_is_finished_by_another_from_the_cursor(
    with_events: str,
) -> None:
    cursors: list[Cursor] = []
    reached = asyncio.Event()

    async def on_cursor(cursor: Cursor) -> None:
        cursors.append(cursor)
        reached.set()

    call = tool_call("slow", {"seconds": 0.4})
    hooks = CallHooks(on_cursor=on_cursor, tell_upstream_on_cancel=lambda: False)
    async with session_with(with_events, "2025-11-25") as (client, session):
        running = asyncio.create_task(client.call_tool(session, call, hooks))
        await asyncio.wait_for(reached.wait(), 5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        stored = OpenSession.from_json(json.loads(json.dumps(session.to_json())))
        async with client_of(f"{with_events}/mcp", timeouts=SLOW_MACHINE) as other:
            answer = await other.resume_call(stored, cursors[-1], call, timeout_s=10)
        assert answer.content[0]["text"] == "slept"
        assert counters(with_events)["tool:slow"] == 1


@pytest.mark.anyio
@pytest.mark.parametrize("option", ["--json", "--stateless"])
async def test_json_and_stateless_servers_work_too(option: str) -> None:
    with sdk_server(option) as url:
        async with session_with(url, "2025-11-25") as (client, session):
            assert (session.session_id is None) == (option == "--stateless")
            answer = await client.call_tool(session, tool_call("echo", {"text": "a\u2028b\u0085c ✅ 北京"}))
            assert answer.content[0]["text"] == "a\u2028b\u0085c ✅ 北京"
