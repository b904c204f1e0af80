"""Brings the tables of docs/api.md up to the code: ``python -m tests.api.api_page`` after adding a route.

The prose, and what is said of each error code, stay as they are; a new code gets "TO BE WRITTEN", which the
test of the page refuses.
"""

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fastapi import FastAPI

from api.app import create_app
from api.deps import APIDeps
from api.errors import RETRYABLE, STATUSES
from models.database import Database
from models.vault import Vault
from settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
UNWRITTEN = "TO BE WRITTEN"

_ROUTE = re.compile(r"^\| `[A-Z]+ (/[^`]*)` \| .+ \|$")
_ERROR = re.compile(r"^\| `([a-z_]+)` \| [\d, ]+ \| (?:yes|no) \| (.+) \|$")


def current_page(app: FastAPI, page: str) -> str:
    """Return the page with its tables as the code has them now."""
    rows = _route_rows(app)
    described = [found for line in page.splitlines() if (found := _ERROR.match(line))]
    meanings = {str(found.group(1)): str(found.group(2)) for found in described}
    lines: list[str] = []
    written: set[str] = set()
    for line in page.splitlines():
        route, error = _ROUTE.match(line), _ERROR.match(line)
        plane = _plane(route.group(1)) if route else "errors" if error else None
        if plane is None:
            lines.append(line)
        elif plane not in written:
            written.add(plane)
            lines += _error_rows(meanings) if error else rows.get(plane, [])
    missing = set(rows) - written
    assert not missing, f"add a heading with a table of one row for each of: {sorted(missing)}"
    return "\n".join(lines) + "\n"


def _plane(path: str) -> str:
    first = path.split("/")[1]
    return "health" if first in ("healthz", "readyz") else first


def _route_rows(app: FastAPI) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            first_line = operation["description"].splitlines()[0]
            rows.setdefault(_plane(path), []).append(f"| `{method.upper()} {path}` | {first_line} |")
    return rows


def _error_rows(meanings: dict[str, str]) -> Iterable[str]:
    for code, statuses in STATUSES.items():
        again = "yes" if code in RETRYABLE else "no"
        meaning = meanings.get(code.value, UNWRITTEN)
        yield f"| `{code.value}` | {', '.join(map(str, statuses))} | {again} | {meaning} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        database = Database(settings.resolved_database_url())
        app = create_app(APIDeps(settings, database, Vault(bytes(32)), "", None))
        PAGE.write_text(current_page(app, PAGE.read_text("utf-8")), "utf-8")
        database.close()


if __name__ == "__main__":
    main()
