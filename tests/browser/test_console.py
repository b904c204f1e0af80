"""The console: log in, look, ask what a key may use, log out."""

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Installation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


async def _log_in(page: Page, installation: Installation) -> None:
    await page.goto(f"{installation.up.url}/console")
    await page.get_by_label("Admin token").fill(installation.up.secrets["admin"])
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", name="Connections")).to_be_visible()


async def test_the_console_shows_rounds_connections_and_keys(page: Page, installation: Installation) -> None:
    await _log_in(page, installation)
    round_row = page.get_by_role("row").filter(has_text=installation.round_id)
    await expect(round_row.get_by_role("cell", name="completed", exact=True)).to_be_visible()
    connection = page.get_by_role("row").filter(has_text="orders")
    await expect(connection.get_by_role("cell", name="healthy", exact=True)).to_be_visible()


async def test_the_console_explains_what_a_key_may_use(page: Page, installation: Installation) -> None:
    await _log_in(page, installation)
    await page.get_by_role("button", name="Tools").first.click()
    tool = page.get_by_role("row").filter(has_text="orders-refund_order")
    await expect(tool.get_by_role("cell", name="allowed", exact=True)).to_be_visible()


async def test_a_wrong_token_shows_why_and_nothing_else(page: Page, installation: Installation) -> None:
    await page.goto(f"{installation.up.url}/console")
    await page.get_by_label("Admin token").fill("sga_wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_have_text(
        "This admin token is not the one of this installation."
    )
    await expect(page.get_by_role("heading", name="Connections")).to_be_hidden()


async def test_logging_out_ends_the_session_for_every_page(page: Page, installation: Installation) -> None:
    await _log_in(page, installation)
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Admin token")).to_be_visible()
    await page.reload()
    await expect(page.get_by_label("Admin token")).to_be_visible()
    await expect(page.get_by_role("heading", name="Connections")).to_be_hidden()
