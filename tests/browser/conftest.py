"""A headless Chromium, and an installation that has run a round."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, async_playwright, expect

from tests.support.command_line import Up, example_server, running_up, sluicegate

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

CALLS = [
    ("call_1", "orders-find_order", '{"order_id": "A-1001"}'),
    ("call_2", "orders-refund_order", '{"order_id": "A-1001", "amount_cents": 100}'),
    ("call_3", "orders-no_such_tool", "{}"),
]


PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


@dataclass(frozen=True)
class Installation:
    """A running installation and the round that it has run."""

    up: Up
    round_id: str
    temporal_url: str


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
async def installation(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Installation]:
    async with running_up(tmp_path_factory.mktemp("up")) as up, example_server("orders") as url:
        arguments = ("connections", "add", "orders", f"{url}/mcp", "--network", "loopback", "--tools", "*")
        added = await sluicegate(*arguments, "--json", data_dir=up.data_dir)
        assert added.json()["health"] == "healthy"
        answer = await _run_round(up)
        yield Installation(up, answer["round_id"], answer["engine_url"])


async def _run_round(up: Up) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in CALLS
    ]
    bearer = {"Authorization": f"Bearer {up.secrets['key']}"}
    async with httpx.AsyncClient(base_url=up.url, headers=bearer, timeout=60, trust_env=False) as http:
        answer = await http.post("/v1/rounds", json={"tool_calls": calls, "wait": 60})
    answer.raise_for_status()
    shown = await sluicegate("rounds", "show", answer.json()["round_id"], "--json", data_dir=up.data_dir)
    found: dict[str, Any] = shown.json()
    assert found["state"] == "completed", found
    return found


@pytest.fixture
async def page(anyio_backend: str) -> AsyncIterator[Page]:
    """A page of a fresh browser profile; whatever it reports as an error fails the test."""
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.fail(f"These tests drive a browser; install one of {', '.join(BROWSERS)}.")
    problems: list[str] = []
    async with async_playwright() as playwright:
        # The sandbox needs privileges that containers do not give; the pages are our own.
        browser = await playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1600, "height": 1200})
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        yield page
        await browser.close()
    assert problems == []
