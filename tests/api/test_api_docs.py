"""docs/api.md says what the code says: every route, every code with its statuses."""

import pytest

from tests.api.api_page import PAGE, UNWRITTEN, current_page
from tests.api.bench import APIBench


@pytest.mark.anyio
async def test_the_page_lists_every_route_and_every_code(api: APIBench) -> None:
    page = PAGE.read_text("utf-8")

    assert page == current_page(api.app, page), "run: python -m tests.api.api_page"
    assert UNWRITTEN not in page
