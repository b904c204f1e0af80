"""Keeps one HTTP client for each connection as it is configured now; making one costs 16 ms of CPU."""

import asyncio
import json
import ssl
from collections import OrderedDict
from typing import Self

from activities.mcp_http.client import MCPClient, build_http_client
from activities.mcp_http.connections import GuardedClient
from activities.mcp_http.errors import EndpointRefused
from activities.mcp_http.types import Endpoint, Limits
from governance.connection_auth import auth_purpose
from models.connection import ConnectionTarget
from models.vault import CannotOpenError, Vault

CAPACITY = 200
"""Clients kept at once; the least recently used one is retired first."""

RESULT_ENVELOPE_BYTES = 1024 * 1024
"""What a response may hold beside the result itself: the JSON-RPC frame, escapes, other events."""


class ClientPool:
    """Gives out MCP clients; close it when the worker ends."""

    def __init__(self, result_max_bytes: int, vault: Vault) -> None:
        """Let servers send results of up to `result_max_bytes`; `vault` opens what connections send along."""
        self._vault = vault
        self._ssl = ssl.create_default_context()
        self._clients: OrderedDict[tuple[str, int, str], GuardedClient] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        cap = result_max_bytes + RESULT_ENVELOPE_BYTES
        self._limits = Limits(max_body_bytes=cap, max_event_bytes=cap)

    async def __aenter__(self) -> Self:
        """Return the pool."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close every client."""
        clients, self._clients = list(self._clients.values()), OrderedDict()
        await asyncio.gather(*(client.aclose() for client in clients), *self._closing, return_exceptions=True)

    def client(self, target: ConnectionTarget) -> MCPClient:
        """Return a client for a connection; one that was edited since gets a new one."""
        endpoint = self.endpoint(target)
        # A round that runs while its connection moves keeps the address that it froze.
        key = (target.id, target.version, target.url)
        http = self._clients.get(key)
        if http is None:
            http = build_http_client(endpoint, self._ssl_context(target))
            self._clients[key] = http
            self._evict(target)
        self._clients.move_to_end(key)
        return MCPClient(http, endpoint)

    def endpoint(self, target: ConnectionTarget) -> Endpoint:
        """Return how the transport is to speak to a connection."""
        return Endpoint(
            url=target.url,
            network=target.network.value,
            protocol_version=target.protocol_version,
            transport=target.transport.value,
            elicitation=target.elicitation.value,
            limits=self._limits,
            refusal_statuses=frozenset(target.refusal_statuses),
            headers=self._headers(target),
        )

    def _ssl_context(self, target: ConnectionTarget) -> ssl.SSLContext:
        """Return the authorities that may certify a connection's server: its own only, or the system's."""
        return self._ssl if target.ca_bundle is None else ssl.create_default_context(cadata=target.ca_bundle)

    def _headers(self, target: ConnectionTarget) -> dict[str, str]:
        """Open the headers that the operator gave for a connection.

        Raises:
            EndpointRefused: they cannot be opened, so nothing may be sent without them.
        """
        if target.sealed_auth is None:
            return {}
        try:
            opened = self._vault.open(target.sealed_auth, auth_purpose(target.id))
        except CannotOpenError as error:
            message = "The connection's headers cannot be opened with this vault key; set them again."
            raise EndpointRefused(message, "credential_unusable") from error
        headers: dict[str, str] = json.loads(opened)
        return headers

    def _evict(self, target: ConnectionTarget) -> None:
        """Retire clients of earlier versions of the connection, and the oldest above the capacity.

        Calls and streams that have one go on with it.
        """
        stale = [key for key in self._clients if key[0] == target.id and key[1] < target.version]
        surplus = list(self._clients)[: max(0, len(self._clients) - CAPACITY)]
        for key in {*stale, *surplus}:
            task = asyncio.get_running_loop().create_task(self._clients.pop(key).retire())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
