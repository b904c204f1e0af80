"""Wraps every request: gives it an id, and turns what nobody expected into a plain 500.

A request that states its length in two ways is refused here, before anything of it is read.
"""

import json
import logging
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import APIProblem, error_body, malformed
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

        language = headers.get("accept-language")
        if "content-length" in headers and "transfer-encoding" in headers:
            await _refuse_two_lengths(send_with_id, request_id, language)
            return
        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            # The caller hung up before its body had come: nothing was begun, and nobody is there to be told.
            logger.info("request %s ended before its body did", request_id)
        except Exception:
            # The edge of the process: whatever went wrong, the caller gets an answer and the log the reason.
            logger.exception("request %s failed", request_id)
            if begun:
                raise
            await _answer(send_with_id, APIProblem(ErrorCode.INTERNAL_ERROR), request_id, language)


async def _refuse_two_lengths(send: Send, request_id: str, accept_language: str | None) -> None:
    """Refuse a request that a proxy may have cut elsewhere than we would, and close its connection.

    What follows on the connection could be a request that the proxy took for a body.
    Source: RFC 9112, section 6.1.
    """
    problem = malformed("content-length and transfer-encoding exclude each other")
    problem.headers["connection"] = "close"
    await _answer(send, problem, request_id, accept_language)


async def _answer(send: Send, problem: APIProblem, request_id: str, accept_language: str | None) -> None:
    shown = error_body(problem, request_id, preferred_language(accept_language))
    body = json.dumps(shown, ensure_ascii=False).encode("utf-8")
    headers = Headers({"content-type": "application/json", **problem.headers}).raw
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
