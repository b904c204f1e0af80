"""Asks a guardrail's webhook: one signed POST, bounded in time and size, through the outbound guard.

The signature is HMAC-SHA256 over the time, a dot and the body, so a request can be neither forged nor sent
again later. Nothing is followed, nothing is repeated, and only a 200 with a JSON body is an answer.
"""

import asyncio
import base64
import hashlib
import hmac
import ssl
import time
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import Self

import httpx

from activities.mcp_http.client import build_http_client
from activities.mcp_http.errors import MCPError
from activities.mcp_http.types import Endpoint, Network
from governance.canonical import JSON, canonical_bytes
from governance.guardrails import LARGEST_CHECKED, Guardrail
from governance.strict_json import JSONProblem, parse_json_strict
from models.guardrail import guardrail_purpose
from models.vault import CannotOpenError, Vault

TIMESTAMP_HEADER = "x-sluicegate-timestamp"
"""Seconds since 1970; a receiver refuses a request whose time is not now."""

SIGNATURE_HEADER = "x-sluicegate-signature"
"""`v1=` and the signature in hexadecimal."""

ENVELOPE_BYTES = 64 * 1024
"""What an answer may hold beside a redacted value."""

CAPACITY = 50
"""Webhooks whose connections are kept at once."""


class WebhookFailed(Exception):
    """The webhook gave no answer that can be used; `reason` says why in one word."""

    def __init__(self, reason: str) -> None:
        """Say why."""
        super().__init__(f"The webhook gave no verdict ({reason}).")
        self.reason = reason


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a request."""
    signed = timestamp.encode("ascii") + b"." + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


class Webhooks:
    """Keeps the connections to webhooks; close it when the worker ends."""

    def __init__(self, vault: Vault) -> None:
        """Open secrets with `vault`."""
        self._vault = vault
        self._clients: OrderedDict[tuple[str, str], httpx.AsyncClient] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Return the webhooks."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close every connection."""
        clients, self._clients = list(self._clients.values()), OrderedDict()
        await asyncio.gather(*(client.aclose() for client in clients), *self._closing, return_exceptions=True)

    async def ask(self, guardrail: Guardrail, question: Mapping[str, JSON]) -> JSON:
        """Return the JSON that a webhook answers.

        Raises:
            WebhookFailed: it may not be dialled, cannot be signed for, fails, or answers something else.
        """
        body = canonical_bytes(dict(question))
        headers = {"content-type": "application/json", "accept": "application/json"}
        if guardrail.sealed_secret is not None:
            timestamp = str(int(time.time()))
            headers |= {
                TIMESTAMP_HEADER: timestamp,
                SIGNATURE_HEADER: sign(self._secret(guardrail), timestamp, body),
            }
        try:
            async with asyncio.timeout(guardrail.timeout_s):
                return await self._post(guardrail, body, headers)
        except TimeoutError as exc:
            raise WebhookFailed("timeout") from exc
        except MCPError as exc:
            raise WebhookFailed(exc.code) from exc
        except httpx.HTTPError as exc:
            raise WebhookFailed("unreachable") from exc

    async def _post(self, guardrail: Guardrail, body: bytes, headers: Mapping[str, str]) -> JSON:
        url: str = guardrail.settings["url"]
        client = self._client(url, guardrail.settings.get("network") or "public")
        request = client.build_request("POST", url, content=body, headers=dict(headers))
        request.extensions["timeout"] = dict.fromkeys(
            ("connect", "read", "write", "pool"), guardrail.timeout_s
        )
        answer = await client.send(request, stream=True)
        try:
            if answer.status_code != 200:
                raise WebhookFailed(f"status_{answer.status_code}")
            return _parsed(await _read(answer))
        finally:
            await answer.aclose()

    def _client(self, url: str, network: Network) -> httpx.AsyncClient:
        key = (url, network)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = build_http_client(Endpoint(url=url, network=network), self._ssl)
            if len(self._clients) > CAPACITY:
                self._close(self._clients.popitem(last=False)[1])
        self._clients.move_to_end(key)
        return client

    def _close(self, client: httpx.AsyncClient) -> None:
        task = asyncio.get_running_loop().create_task(client.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    @cached_property
    def _ssl(self) -> ssl.SSLContext:
        # 16 ms of CPU, so made once and only where a webhook is used.
        return ssl.create_default_context()

    def _secret(self, guardrail: Guardrail) -> str:
        try:
            sealed = base64.urlsafe_b64decode(guardrail.sealed_secret or "")
            return self._vault.open(sealed, guardrail_purpose(guardrail.name)).decode()
        except (CannotOpenError, ValueError) as exc:
            raise WebhookFailed("secret_unreadable") from exc


async def _read(answer: httpx.Response) -> bytes:
    """Read an answer as it is sent, up to its limit; one that is compressed could be any size."""
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        raise WebhookFailed("compressed")
    chunks: list[bytes] = []
    size = 0
    async for chunk in answer.aiter_raw():
        size += len(chunk)
        if size > LARGEST_CHECKED + ENVELOPE_BYTES:
            raise WebhookFailed("answer_too_large")
        chunks.append(chunk)
    return b"".join(chunks)


def _parsed(content: bytes) -> JSON:
    try:
        return parse_json_strict(content)
    except JSONProblem as exc:
        raise WebhookFailed("not_json") from exc
