"""Keeps one client for each provider as it is configured now, and opens the providers' credentials.

The one module under `activities` that the API's process runs too, for pass-through chat: what opens secrets
stays in this folder, and it can open nothing but what was sealed for a provider.
See docs/decisions/0010-pass-through-chat-opens-credentials.md.
"""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import httpx

from activities.chat_http.client import ChatClient, build_chat_http_client
from activities.chat_http.errors import NotReached
from activities.chat_http.types import ChatEndpoint, ChatTimeouts
from models.provider import ProviderTarget, credential_purpose
from models.vault import CannotOpenError, Vault

CAPACITY = 100
"""Providers kept open at once; the least recently used one is closed first."""


@dataclass
class _Kept:
    """An open client, how many answers it is giving, and whether it is to be closed after the last."""

    http: httpx.AsyncClient
    client: ChatClient
    answers: int = 0
    retired: bool = False


class ChatProviders:
    """Gives out chat clients; close it when the process ends."""

    def __init__(self, vault: Vault) -> None:
        """Open credentials with `vault`."""
        self._vault = vault
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Return the clients."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close every client."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close every client, whatever it does."""
        kept, self._kept = list(self._kept.values()), OrderedDict()
        await asyncio.gather(*(one.http.aclose() for one in kept), *self._closing, return_exceptions=True)

    @asynccontextmanager
    async def client(self, target: ProviderTarget) -> AsyncGenerator[ChatClient, None]:
        """Lend a client for a provider for one answer; one that was edited since gets a new one.

        Raises:
            NotReached: the provider may not be dialled, or its credential cannot be opened.
        """
        kept = self._client(target)
        kept.answers += 1
        try:
            yield kept.client
        finally:
            kept.answers -= 1
            self._close_if_done_with(kept)

    def _client(self, target: ProviderTarget) -> _Kept:
        key = (target.id, target.version)
        kept = self._kept.get(key)
        if kept is None:
            endpoint = self._endpoint(target)
            http = build_chat_http_client(endpoint, self._ssl)
            kept = self._kept[key] = _Kept(http, ChatClient(http, endpoint))
            self._evict(target)
        self._kept.move_to_end(key)
        return kept

    @cached_property
    def _ssl(self) -> ssl.SSLContext:
        # 16 ms of CPU, so made once and only where a provider is used.
        return ssl.create_default_context()

    def _endpoint(self, target: ProviderTarget) -> ChatEndpoint:
        return ChatEndpoint(
            base_url=target.base_url,
            network=target.network.value,
            headers=self._credential(target),
            timeouts=ChatTimeouts(answer_s=target.answer_timeout_s, idle_s=target.idle_timeout_s),
        )

    def _credential(self, target: ProviderTarget) -> dict[str, str]:
        if target.sealed_credential is None:
            return {}
        try:
            secret = self._vault.open(target.sealed_credential, credential_purpose(target.id)).decode()
        except CannotOpenError as exc:
            message = "The provider's credential cannot be opened with this vault key; set it again."
            raise NotReached("credential_unreadable", message, may_have_run=False, retryable=False) from exc
        if target.credential_header is None:
            return {"Authorization": f"Bearer {secret}"}
        return {target.credential_header: secret}

    def _evict(self, target: ProviderTarget) -> None:
        """Retire clients of earlier versions of the provider, and the oldest above the capacity."""
        stale = [key for key in self._kept if key[0] == target.id and key[1] < target.version]
        surplus = list(self._kept)[: max(0, len(self._kept) - CAPACITY)]
        for key in {*stale, *surplus}:
            kept = self._kept.pop(key)
            kept.retired = True
            self._close_if_done_with(kept)

    def _close_if_done_with(self, kept: _Kept) -> None:
        # Closing a client breaks the answers it is giving, so a retired one is closed after the last.
        if kept.retired and kept.answers == 0:
            task = asyncio.get_running_loop().create_task(kept.http.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
