"""Bounds how many requests without a valid credential an address may send.

A secret of 256 random bits cannot be guessed at any rate; an admin token that an operator chose might be, and
every guess costs a look into the database and a row in the audit trail.
"""

import ipaddress
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import APIProblem, error_body
from governance.codes import ErrorCode
from governance.messages import preferred_language
from models.key import hash_secret

ADDRESSES: Final = 10_000
"""Addresses that are remembered; the one heard of least recently goes first."""

KNOWN_CREDENTIALS: Final = 10_000
"""Credentials that were valid here not long ago, by their hash."""

KNOWN_FOR_S: Final = 300.0
"""How long a credential that was valid is let through although its address has used up its failures."""

COUNTED: Final = frozenset({401})
"""Statuses that count as a failure to say who one is."""


class AuthFailureLimit:
    """Refuses an address that failed too often, but for credentials that were valid a moment ago.

    Behind a proxy many callers share an address; those that work go on working while one guesses. Pure ASGI,
    so that streamed answers pass through unbuffered; it runs inside the layer that gives requests their ids.
    """

    def __init__(self, app: ASGIApp, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Let each address fail `per_minute` times at once, and as often again in each minute."""
        self._app = app
        self._capacity = float(per_minute)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._known: OrderedDict[str, float] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it before anything is looked up."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address, headers = _address_of(scope), Headers(scope=scope)
        credential = _credential_of(headers)
        left = self._tokens(address)
        if left < 1 and not self._is_known(credential):
            await _refuse(scope, send, math.ceil((1 - left) * 60 / self._capacity))
            return

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in COUNTED:
                self._spend(address)
            await send(message)

        await self._app(scope, receive, watched)
        # Only what authentication itself said counts: a guess sent to a public page proves nothing.
        if credential is not None and scope["state"].get("actor") is not None:
            self._remember(credential)

    def _tokens(self, address: str) -> float:
        found = self._left.get(address)
        if found is None:
            return self._capacity
        left, since = found
        return min(self._capacity, left + (self._clock() - since) * self._capacity / 60)

    def _spend(self, address: str) -> None:
        self._left[address] = (max(0.0, self._tokens(address) - 1), self._clock())
        self._left.move_to_end(address)
        while len(self._left) > ADDRESSES:
            self._left.popitem(last=False)

    def _is_known(self, credential: str | None) -> bool:
        until = self._known.get(credential or "")
        return until is not None and until > self._clock()

    def _remember(self, credential: str) -> None:
        self._known[credential] = self._clock() + KNOWN_FOR_S
        self._known.move_to_end(credential)
        while len(self._known) > KNOWN_CREDENTIALS:
            self._known.popitem(last=False)


def _address_of(scope: Scope) -> str:
    """Return what stands for the caller; a holder of an IPv6 network has 2^64 addresses and counts as one."""
    client = scope.get("client")
    host: str = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def _credential_of(headers: Headers) -> str | None:
    given = headers.get("authorization") or headers.get("cookie")
    return None if given is None else hash_secret(given)


async def _refuse(scope: Scope, send: Send, retry_after_s: int) -> None:
    request_id: str = scope["state"]["request_id"]
    language = preferred_language(Headers(scope=scope).get("accept-language"))
    problem = APIProblem(ErrorCode.TOO_MANY_FAILURES, {"retry_after_s": retry_after_s})
    content = json.dumps(error_body(problem, request_id, language), ensure_ascii=False).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"content-language", language.value.encode()),
        (b"retry-after", str(retry_after_s).encode()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
