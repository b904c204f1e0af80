"""Lists in pages: newest first, each page ending with the cursor of the next."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Query

from api.errors import malformed
from governance.canonical import JSON

DEFAULT_PAGE = 50
LARGEST_PAGE = 200

_CURSOR_PROBLEM = "cursor is the next_cursor of an earlier page"

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="Rows in a page.")]
"""How many rows a page has."""

Cursor = Annotated[str | None, Query(max_length=100, description="The `next_cursor` of the page before.")]
"""Where a page begins."""


def page_of(
    rows: Sequence[T], limit: int, show: Callable[[T], JSON], cursor_of: Callable[[T], str]
) -> dict[str, JSON]:
    """Return a page of rows read with one more than `limit`, which tells whether another page follows."""
    shown = rows[:limit]
    more = len(rows) > limit
    return {"items": [show(row) for row in shown], "next_cursor": cursor_of(shown[-1]) if more else None}


def id_of(cursor: str) -> str:
    """Read a cursor that is an id; raises invalid_request."""
    try:
        return str(UUID(cursor))
    except ValueError as error:
        raise malformed(_CURSOR_PROBLEM) from error


def number_of(cursor: str | None) -> int | None:
    """Read a cursor that is a number; raises invalid_request."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal()) or len(cursor) > 18:
        raise malformed(_CURSOR_PROBLEM)
    return int(cursor)
