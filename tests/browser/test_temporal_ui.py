"""A round in the Temporal UI: an operator reads there what was called, in which stage, and how it ended."""

from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Installation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


async def test_the_history_names_tool_server_and_stage_of_each_call(
    page: Page, installation: Installation
) -> None:
    await page.goto(installation.temporal_url)
    await page.get_by_role("tab", name="Event History").click()
    for step in (
        "orders-find_order · orders · stage 1/2 serial",
        "orders-refund_order · orders · stage 2/2 serial",
    ):
        await expect(page.get_by_text(step).first).to_be_visible()
    await expect(page.get_by_text("Completed").first).to_be_visible()


async def test_the_page_of_a_round_holds_no_arguments_and_no_results(
    page: Page, installation: Installation
) -> None:
    await page.goto(installation.temporal_url)
    await page.get_by_role("tab", name="Event History").click()
    await expect(page.get_by_text("stage 1/2 serial").first).to_be_visible()
    shown = await page.content()
    assert installation.round_id in shown
    assert "A-1001" not in shown


async def test_summary_and_details_tell_of_the_calls(page: Page, installation: Installation) -> None:
    await page.goto(installation.temporal_url)
    await page.get_by_role("tab", name="User Metadata").click()
    # The UI shows text that workflows give in frames of their own.
    summary, details = (page.frame_locator("iframe").nth(place) for place in (0, 1))
    await expect(summary.get_by_text("3 calls · orders-find_order")).to_be_visible()
    await expect(details.get_by_text(f"Round {installation.round_id}")).to_be_visible()


@pytest.mark.parametrize(
    ("query", "found"), [('ToolNames="orders-refund_order"', True), ("HasUnknown=true", False)]
)
async def test_rounds_are_found_by_their_search_attributes(
    page: Page, installation: Installation, query: str, *, found: bool
) -> None:
    workflows = installation.temporal_url.split("/workflows/")[0] + "/workflows"
    await page.goto(f"{workflows}?query={quote(query)}")
    await expect(page.get_by_role("heading", level=1)).to_contain_text(
        "1 Workflow" if found else "0 Workflows"
    )
