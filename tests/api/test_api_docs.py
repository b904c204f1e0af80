"""docs/api.md says what the code says: every route, every code with its statuses."""

import re
from pathlib import Path

import pytest

from api.errors import RETRYABLE, STATUSES
from tests.api.bench import APIBench

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
ROUTE = re.compile(r"^\| `([A-Z]+ /[^`]*)` \| (.+) \|$", re.MULTILINE)
ERROR = re.compile(r"^\| `([a-z_]+)` \| ([\d, ]+) \| (yes|no) \| (.+) \|$", re.MULTILINE)


@pytest.mark.anyio
async def test_the_page_lists_every_route_with_its_first_line(api: APIBench) -> None:
    routes = {
        f"{method.upper()} {path}": operation["description"].splitlines()[0]
        for path, operations in api.app.openapi()["paths"].items()
        for method, operation in operations.items()
    }

    assert dict(ROUTE.findall(DOCUMENT.read_text("utf-8"))) == routes


def test_the_page_lists_every_code_with_its_statuses() -> None:
    written = [
        (code, statuses, again) for code, statuses, again, _ in ERROR.findall(DOCUMENT.read_text("utf-8"))
    ]

    assert written == [
        (code.value, ", ".join(map(str, statuses)), "yes" if code in RETRYABLE else "no")
        for code, statuses in STATUSES.items()
    ]
