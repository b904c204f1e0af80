"""Console sessions over HTTP: the cookie, and which requests it is good for."""

from datetime import datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.console.origins import is_own_page
from api.errors import APIProblem
from governance.codes import ErrorCode
from models.base import utc_now
from models.console_session import find_console_session
from models.database import Database, ReadSession

COOKIE: Final = "sluicegate_console"
"""The cookie that holds a session's secret."""

COOKIE_PATH: Final = "/api/v1"
"""Where the cookie is sent: to the control plane alone."""

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing. Source: RFC 9110, section 9.2.1."""


def set_cookie(response: Response, request: Request, secret: str, max_age_s: int) -> None:
    """Hand a session's secret to the browser, out of reach of scripts and of other sites' requests."""
    response.set_cookie(
        COOKIE,
        secret,
        max_age=max_age_s,
        path=COOKIE_PATH,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def clear_cookie(response: Response, request: Request) -> None:
    """Take the cookie away."""
    response.delete_cookie(
        COOKIE,
        path=COOKIE_PATH,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


async def require_session(request: Request, database: Database, admin_token_hash: str) -> None:
    """Let a request through whose cookie is a valid session, if one of our pages or a program sends it.

    Raises:
        APIProblem: forbidden for a request that a page of another site made; invalid_key for no session.
    """
    check_page(request)
    secret = request.cookies.get(COOKIE, "")
    if not await database.read(_is_valid, secret, admin_token_hash, utc_now()):
        raise APIProblem(ErrorCode.INVALID_KEY)


def check_page(request: Request) -> None:
    """Refuse a request that a page of another site made: by its origin, or by a form's kind of body.

    A browser sends forms and plain text across origins without asking first, JSON never.

    Source: OWASP, Cross-Site Request Forgery Prevention; Fetch, CORS-safelisted request-header.
    """
    if not is_own_page(request.headers):
        raise APIProblem(ErrorCode.FORBIDDEN, {"reason": "foreign_origin"})
    if request.method in SAFE_METHODS:
        return
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and (has_body or media_type):
        raise APIProblem(ErrorCode.FORBIDDEN, {"reason": "not_json"})


def _is_valid(session: ReadSession, secret: str, admin_token_hash: str, now: datetime) -> bool:
    return find_console_session(session, secret, admin_token_hash, now) is not None
