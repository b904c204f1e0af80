"""The workflow engine as the API uses it: start, wait, cancel, and say plainly what is certain.

Nothing here reads the state of a workflow: the database is the source of every read.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from google.protobuf.message import Message
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode, ServiceClient, ServiceResponse

from governance.codes import RoundState
from governance.names import EXPOSED_NAME
from settings import Settings
from workflows.messages import (
    CONNECTION_SYNC,
    KEY_ATTRIBUTE,
    PROVIDER_ROUND,
    STATE_ATTRIBUTE,
    TOOLS_ATTRIBUTE,
    UNKNOWN_ATTRIBUTE,
    ConnectionSyncInput,
    ConnectionSyncResult,
    RoundInput,
    RoundResult,
    round_workflow_id,
)

RPC_TIMEOUT = timedelta(seconds=2)
"""How long the engine may take to answer one request that a caller waits for."""

SHOWN_TOOLS = 10
"""Tool names in the summary and search attributes of a round; their sizes are limited by the engine."""

AMBIGUOUS = frozenset(
    {
        # The SDK reports its own time limit as CANCELLED and a broken connection as UNKNOWN or CANCELLED.
        RPCStatusCode.CANCELLED,
        RPCStatusCode.UNKNOWN,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.ABORTED,
        RPCStatusCode.INTERNAL,
        RPCStatusCode.DATA_LOSS,
    }
)
"""Answers after which a request may have been carried out; all others mean that it was not."""


ResultT = TypeVar("ResultT")


class Start(StrEnum):
    """What is known of a start."""

    STARTED = "started"
    AMBIGUOUS = "ambiguous"
    REFUSED = "refused"


class Wait(StrEnum):
    """How a bounded wait ended."""

    ENDED = "ended"
    STILL_RUNNING = "still_running"
    UNKNOWN_WORKFLOW = "unknown_workflow"
    UNREACHABLE = "unreachable"


class Cancel(StrEnum):
    """What became of a request to cancel."""

    ACCEPTED = "accepted"
    UNKNOWN_WORKFLOW = "unknown_workflow"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True)
class RoundStart:
    """A round to start, stored already."""

    round_id: str
    key_id: str
    round_key: str
    body_digest: str
    tool_names: Sequence[str]
    include_clients: list[str] | None
    include_tools: list[str] | None

    @property
    def workflow_id(self) -> str:
        """The id of the round's workflow."""
        return workflow_id_of(self.key_id, self.round_key)

    def safe_tool_names(self) -> list[str]:
        """Return the names that are fit for an operator's list, each once; a model may ask for anything."""
        fit = dict.fromkeys(name for name in self.tool_names if EXPOSED_NAME.fullmatch(name))
        return list(fit)[:SHOWN_TOOLS]


def workflow_id_of(key_id: str, round_key: str) -> str:
    """Return the id of the workflow of a key's round."""
    return round_workflow_id(key_id, hashlib.sha256(round_key.encode("utf-8")).hexdigest())


class OneAttempt(ServiceClient):
    """A connection on which every request is tried once.

    The SDK retries for up to ten seconds and reports the last error only, which hides that an earlier attempt
    may have been carried out.
    """

    def __init__(self, inner: ServiceClient) -> None:
        super().__init__(inner.config)
        self._inner = inner

    @property
    def worker_service_client(self) -> ServiceClient:  # type: ignore[override]
        """The connection below, which eager starts are matched by."""
        return self._inner.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        """Pass new headers on."""
        self._inner.update_rpc_metadata(metadata)

    def update_api_key(self, api_key: str | None) -> None:
        """Pass a new key on."""
        self._inner.update_api_key(api_key)

    async def _rpc_call(  # noqa: PLR0913 - the SDK's own signature.
        self,
        rpc: str,
        req: Message,
        resp_type: type[ServiceResponse],
        *,
        service: str,
        retry: bool,
        metadata: Mapping[str, str | bytes],
        timeout: timedelta | None,  # noqa: ASYNC109
    ) -> ServiceResponse:
        del retry
        return await self._inner._rpc_call(  # noqa: SLF001 - the one method that subclasses implement.
            rpc, req, resp_type, service=service, retry=False, metadata=metadata, timeout=timeout
        )


@dataclass(frozen=True)
class Engine:
    """Starts, awaits and cancels workflows for the API."""

    client: Client | None
    settings: Settings
    search_attributes: bool
    eager_start: bool
    _starter: Client | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Prepare the client whose requests are tried once."""
        object.__setattr__(self, "_starter", None if self.client is None else _one_attempt(self.client))

    async def start_round(self, start: RoundStart) -> Start:
        """Start the workflow of a stored round; one that runs or has ended already counts as started."""
        if self._starter is None:
            return Start.REFUSED
        names = start.safe_tool_names()
        try:
            await self._starter.start_workflow(
                PROVIDER_ROUND,
                RoundInput(
                    key_id=start.key_id,
                    round_key=start.round_key,
                    round_id=start.round_id,
                    body_digest=start.body_digest,
                    include_clients=start.include_clients,
                    include_tools=start.include_tools,
                    search_attributes=self.search_attributes,
                    heartbeat_timeout_s=self.settings.heartbeat_timeout_s,
                ),
                id=start.workflow_id,
                task_queue=self.settings.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                request_eager_start=self.eager_start,
                task_timeout=timedelta(seconds=self.settings.task_timeout_s),
                rpc_timeout=RPC_TIMEOUT,
                static_summary=_summary(len(start.tool_names), names),
                static_details=_details(start, names),
                search_attributes=self._attributes(start.key_id, names),
            )
        except WorkflowAlreadyStartedError:
            return Start.STARTED
        except RPCError as error:
            return Start.AMBIGUOUS if error.status in AMBIGUOUS else Start.REFUSED
        except RuntimeError:
            # A lazy client that cannot connect; it has sent nothing.
            return Start.REFUSED
        return Start.STARTED

    async def wait_for_round(self, workflow_id: str, wait_s: float) -> Wait:
        """Wait until the workflow of a round has ended, however it did, for at most `wait_s` seconds."""
        if self.client is None:
            return Wait.UNREACHABLE
        handle = self.client.get_workflow_handle(workflow_id, result_type=RoundResult)
        ended, _ = await _await_result(handle, wait_s)
        return ended

    async def cancel_round(self, workflow_id: str) -> Cancel:
        """Ask the workflow of a round to cancel; asking one that has ended does nothing."""
        if self.client is None:
            return Cancel.UNREACHABLE
        try:
            await self.client.get_workflow_handle(workflow_id).cancel(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            missing = error.status is RPCStatusCode.NOT_FOUND
            return Cancel.UNKNOWN_WORKFLOW if missing else Cancel.UNREACHABLE
        except RuntimeError:
            return Cancel.UNREACHABLE
        return Cancel.ACCEPTED

    async def sync_connection(
        self, connection_id: str, wait_s: float
    ) -> tuple[Start, ConnectionSyncResult | None]:
        """Verify a connection and discover its tools; the result is None while that goes on.

        A sync that runs already is joined.
        """
        if self._starter is None or self.client is None:
            return Start.REFUSED, None
        workflow_id = f"connection-sync:{connection_id}"
        try:
            await self._starter.start_workflow(
                CONNECTION_SYNC,
                ConnectionSyncInput(connection_id=connection_id),
                id=workflow_id,
                task_queue=self.settings.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                request_eager_start=self.eager_start,
                rpc_timeout=RPC_TIMEOUT,
                static_summary=f"sync of connection {connection_id}",
            )
        except RPCError as error:
            return (Start.AMBIGUOUS if error.status in AMBIGUOUS else Start.REFUSED), None
        except RuntimeError:
            return Start.REFUSED, None
        handle = self.client.get_workflow_handle(workflow_id, result_type=ConnectionSyncResult)
        _, result = await _await_result(handle, wait_s)
        return Start.STARTED, result

    async def is_reachable(self) -> bool:
        """Tell whether the engine answers now."""
        if self.client is None:
            return False
        try:
            return await self.client.service_client.check_health(timeout=RPC_TIMEOUT)
        except (RPCError, RuntimeError):
            return False

    def _attributes(self, key_id: str, names: list[str]) -> TypedSearchAttributes:
        if not self.search_attributes:
            return TypedSearchAttributes.empty
        return TypedSearchAttributes(
            [
                SearchAttributePair(KEY_ATTRIBUTE, key_id),
                SearchAttributePair(STATE_ATTRIBUTE, RoundState.REQUESTED.value),
                SearchAttributePair(TOOLS_ATTRIBUTE, names),
                SearchAttributePair(UNKNOWN_ATTRIBUTE, value=False),
            ]
        )


async def _await_result(
    handle: WorkflowHandle[object, ResultT], wait_s: float
) -> tuple[Wait, ResultT | None]:
    if wait_s <= 0:
        return Wait.STILL_RUNNING, None
    try:
        async with asyncio.timeout(wait_s):
            return Wait.ENDED, await handle.result()
    except TimeoutError:
        return Wait.STILL_RUNNING, None
    except WorkflowFailureError:
        return Wait.ENDED, None
    except RPCError as error:
        missing = error.status is RPCStatusCode.NOT_FOUND
        return (Wait.UNKNOWN_WORKFLOW if missing else Wait.UNREACHABLE), None
    except RuntimeError:
        return Wait.UNREACHABLE, None


def _one_attempt(client: Client) -> Client:
    config = client.config()
    config["service_client"] = OneAttempt(client.service_client)
    return Client(**config)


def _summary(count: int, names: Iterable[str]) -> str:
    calls = "1 call" if count == 1 else f"{count} calls"
    return " · ".join([calls, *names])[:200]


def _details(start: RoundStart, names: Iterable[str]) -> str:
    lines = [f"Round {start.round_id}", f"Key {start.key_id}", f"Calls {len(start.tool_names)}"]
    return "\n".join([*lines, *(f"- {name}" for name in names)])
