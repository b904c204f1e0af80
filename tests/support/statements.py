"""Counts the statements that a database is sent, for tests that hold a budget."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from models.database import Database


@contextmanager
def statements_of(database: Database, *words: str) -> Generator[list[str]]:
    """Collect the statements of write transactions that hold any of `words`, or all of them without words."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        is_own = not statement.lstrip().upper().startswith(("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA"))
        if is_own and (not words or any(word in statement for word in words)):
            seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
