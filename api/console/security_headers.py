"""Headers that keep a browser from doing more with our answers than we mean."""

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NOTHING: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "content-security-policy": _NOTHING,
    "cache-control": "no-store",
}
"""What every answer carries, unless its route says something narrower of its own.

Source: OWASP, HTTP Headers Cheat Sheet; Content Security Policy Level 3.
"""

PAGE_POLICY: Final = _NOTHING + "; script-src 'self'; style-src 'self'; connect-src 'self'"
"""What the console's page may load: its own script and style, nothing from elsewhere and nothing inline."""

DOCS_POLICY: Final = _NOTHING + "; style-src 'unsafe-inline'"
"""What the page of the routes may use: the style that is written in it, and no script at all."""

STRICT_TRANSPORT: Final = "max-age=31536000"
"""Says over HTTPS that the host is to be reached by HTTPS from now on. Source: RFC 6797."""


class SecurityHeaders:
    """Adds the headers to every answer; pure ASGI, so that streamed answers pass through unbuffered."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"] == "/docs":
                    headers["content-security-policy"] = DOCS_POLICY
                if scope.get("scheme") == "https":
                    headers.setdefault("strict-transport-security", STRICT_TRANSPORT)
            await send(message)

        await self._app(scope, receive, send_with_headers)
