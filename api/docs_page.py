"""A page that lists the routes, made from the OpenAPI document; it loads nothing from elsewhere."""

from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
code {{ font: 14px ui-monospace, monospace; }}
details {{ border-bottom: 1px solid #ccc; padding: .5rem 0; }}
summary {{ cursor: pointer; }}
td {{ padding: 0 1rem 0 0; vertical-align: top; }}
p {{ white-space: pre-line; }}
</style></head><body>
<h1>{title}</h1><p>{summary}. The whole contract: <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1).</p>
{routes}
</body></html>
"""

_ROUTE = """<details><summary><code><b>{method}</b> {path}</code> — {summary}</summary>
<p>{description}</p><table>{answers}</table></details>"""


def install_docs(app: FastAPI) -> None:
    """Serve the page at /docs."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:  # pyright: ignore[reportUnusedFunction]
        return HTMLResponse(_page(app.openapi()))


def _page(document: dict[str, Any]) -> str:
    info = document["info"]
    routes = [
        _route(method, path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return _PAGE.format(
        title=escape(info["title"]), summary=escape(info["summary"]), routes="\n".join(routes)
    )


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    summary, _, description = operation.get("description", "").partition("\n")
    answers = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(answer.get('description', ''))}</td></tr>"
        for status, answer in sorted(operation["responses"].items())
    )
    return _ROUTE.format(
        method=method.upper(),
        path=escape(path),
        summary=escape(summary),
        description=escape(description.strip()),
        answers=answers,
    )
