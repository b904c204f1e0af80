"""The console's page: three files that are served as they are, and load nothing from elsewhere."""

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from api.console.security_headers import PAGE_POLICY

router = APIRouter(include_in_schema=False)

_FOLDER = files("api.console") / "static"


def _file(name: str, media_type: str) -> Response:
    content = (_FOLDER / name).read_bytes()
    return Response(content, media_type=media_type, headers={"content-security-policy": PAGE_POLICY})


@router.get("/console")
def page() -> Response:
    """Serve the page; everything on it is read from the control plane with the cookie."""
    return _file("console.html", "text/html; charset=utf-8")


@router.get("/console/console.js")
def script() -> Response:
    """Serve the page's script."""
    return _file("console.js", "text/javascript; charset=utf-8")


@router.get("/console/console.css")
def style() -> Response:
    """Serve the page's style."""
    return _file("console.css", "text/css; charset=utf-8")
