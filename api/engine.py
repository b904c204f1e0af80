"""The workflow engine as the API uses it: start, wait, cancel, and say plainly what is certain.

Nothing here reads the state of a workflow: the database is the source of every read.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import TypedSearchAttributes, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from governance.resolutions import OnUnknown
from settings import Settings
from workflows.labels import RoundLabel
from workflows.messages import (
    CONNECTION_SYNC,
    PROVIDER_ROUND,
    ConnectionSyncInput,
    ConnectionSyncResult,
    RoundInput,
    RoundResult,
    round_workflow_id,
)

RPC_TIMEOUT = timedelta(seconds=2)
"""How long the engine may take to answer one request that a caller waits for."""

PROMPT_S = 0.3
"""A start that takes longer may be talking to nobody, which is then looked into."""

CONTACT_S = 1.0
"""How long the engine may take to say that it is there."""

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
    """What the engine's answers say of a start; only the database can tell that it never happened."""

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


class _Contact(StrEnum):
    """What a short question to the engine shows."""

    ANSWERS = "answers"
    REFUSES = "refuses"
    SILENT = "silent"


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
    on_unknown: OnUnknown = OnUnknown.FAIL
    stored_workflow_id: str | None = None
    """The id that the round's row names, which differs from the first one where the round is repeated."""

    @property
    def workflow_id(self) -> str:
        """The id of the round's workflow."""
        return self.stored_workflow_id or workflow_id_of(self.key_id, self.round_key)

    @property
    def label(self) -> RoundLabel:
        """What operators see of the round."""
        return RoundLabel(self.round_id, self.key_id, self.tool_names)


def workflow_id_of(key_id: str, round_key: str) -> str:
    """Return the id of the workflow of a key's round."""
    return round_workflow_id(key_id, hashlib.sha256(round_key.encode("utf-8")).hexdigest())


@dataclass(frozen=True)
class Engine:
    """Starts, awaits and cancels workflows for the API."""

    client: Client | None
    settings: Settings
    search_attributes: bool
    eager_start: bool

    async def start_round(self, start: RoundStart) -> Start:
        """Start the workflow of a stored round; one that runs or has ended already counts as started."""
        if self.client is None:
            return Start.REFUSED
        label = start.label
        starting = self.client.start_workflow(
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
                on_unknown=start.on_unknown.value,
            ),
            id=start.workflow_id,
            task_queue=self.settings.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            request_eager_start=self.eager_start,
            task_timeout=timedelta(seconds=self.settings.task_timeout_s),
            rpc_timeout=RPC_TIMEOUT,
            static_summary=label.summary,
            static_details=label.details,
            search_attributes=label.attributes if self.search_attributes else TypedSearchAttributes.empty,
        )
        return await self._started(starting)

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
            async with asyncio.timeout(RPC_TIMEOUT.total_seconds()):
                await self.client.get_workflow_handle(workflow_id).cancel(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            missing = error.status is RPCStatusCode.NOT_FOUND
            return Cancel.UNKNOWN_WORKFLOW if missing else Cancel.UNREACHABLE
        except (RuntimeError, TimeoutError):
            return Cancel.UNREACHABLE
        return Cancel.ACCEPTED

    async def sync_connection(
        self, connection_id: str, wait_s: float
    ) -> tuple[Start, ConnectionSyncResult | None]:
        """Verify a connection and discover its tools; the result is None while that goes on.

        A sync that runs already is joined.
        """
        if self.client is None:
            return Start.REFUSED, None
        workflow_id = f"connection-sync:{connection_id}"
        starting = self.client.start_workflow(
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
        started = await self._started(starting)
        if started is not Start.STARTED:
            return started, None
        handle = self.client.get_workflow_handle(workflow_id, result_type=ConnectionSyncResult)
        _, result = await _await_result(handle, wait_s)
        return started, result

    async def is_reachable(self) -> bool:
        """Tell whether the engine answers now."""
        return await self._contact() is _Contact.ANSWERS

    async def _started(self, starting: Coroutine[Any, Any, object]) -> Start:
        """Await a start for as long as `RPC_TIMEOUT`, and not that long where nobody listens.

        The SDK repeats a failed request for about six seconds and tells of the last failure only, so an
        earlier attempt may have been carried out; whoever must be certain asks the database, not us.
        """
        task = asyncio.create_task(_outcome(starting))
        done, _ = await asyncio.wait({task}, timeout=PROMPT_S)
        if not done and await self._contact() is _Contact.REFUSES:
            task.cancel()
            return Start.REFUSED
        if not done:
            done, _ = await asyncio.wait({task}, timeout=RPC_TIMEOUT.total_seconds())
        if not done:
            task.cancel()
            return Start.AMBIGUOUS
        return task.result()

    async def _contact(self) -> "_Contact":
        if self.client is None:
            return _Contact.REFUSES
        try:
            async with asyncio.timeout(CONTACT_S):
                healthy = await self.client.service_client.check_health()
        except TimeoutError:
            return _Contact.SILENT
        except RPCError as error:
            refuses = error.status is RPCStatusCode.UNAVAILABLE
            return _Contact.REFUSES if refuses else _Contact.SILENT
        except RuntimeError:
            # A client that never connected.
            return _Contact.REFUSES
        return _Contact.ANSWERS if healthy else _Contact.SILENT


async def _outcome(starting: Coroutine[Any, Any, object]) -> Start:
    try:
        await starting
    except WorkflowAlreadyStartedError:
        return Start.STARTED
    except RPCError as error:
        return Start.AMBIGUOUS if error.status in AMBIGUOUS else Start.REFUSED
    except RuntimeError:
        # A lazy client that cannot connect; it has sent nothing.
        return Start.REFUSED
    return Start.STARTED


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
