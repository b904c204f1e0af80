"""Wraps every request: gives it an id, and turns what nobody expected into a plain 500."""

import json
import logging
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import APIProblem, error_body
from governance.codes import ErrorCode
from governance.messages import preferred_language
from models.base import new_id

REQUEST_ID_HEADER = "x-request-id"
"""Carries the request's id both ways."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

logger = logging.getLogger(__name__)


class RequestContext:
    """The outermost layer; pure ASGI, so that streamed answers pass through unbuffered."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; lifespan and other events pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id()
        state = scope.setdefault("state", {})
        state["request_id"], state["actor"] = request_id, None
        begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            # The edge of the process: whatever went wrong, the caller gets an answer and the log the reason.
            logger.exception("request %s failed", request_id)
            if begun:
                raise
            await _answer_internal_error(send_with_id, request_id, headers.get("accept-language"))


async def _answer_internal_error(send: Send, request_id: str, accept_language: str | None) -> None:
    problem = APIProblem(ErrorCode.INTERNAL_ERROR)
    shown = error_body(problem, request_id, preferred_language(accept_language))
    body = json.dumps(shown, ensure_ascii=False)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode("utf-8")})
