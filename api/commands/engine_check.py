"""Reach the Temporal server that a command needs, or say plainly that it does not answer."""

from datetime import timedelta

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from api.commands.failures import ServerNotReachable
from api.search_attributes import SEARCH_ATTRIBUTES
from settings import Settings
from worker import connect
from workflows.payloads import data_converter

CHECK_TIMEOUT = timedelta(seconds=2)
"""How long the engine may take to answer a question that is asked at start."""


async def connect_now(settings: Settings) -> Client:
    """Connect to the Temporal server of the settings.

    Raises:
        ServerNotReachable: it does not answer, or has no such namespace.
    """
    try:
        return await connect(settings)
    except (RuntimeError, RPCError) as exc:
        raise ServerNotReachable(
            f"the Temporal server at {settings.temporal_address!r} does not answer: start it, or name another"
            f" with SLUICEGATE_TEMPORAL_ADDRESS ({exc})"
        ) from exc


async def connect_later(settings: Settings) -> Client:
    """Return a client that connects when it is first used, so that an engine which is away can come back."""
    return await Client.connect(
        settings.temporal_address,
        namespace=settings.temporal_namespace,
        data_converter=data_converter,
        lazy=True,
    )


async def knows_search_attributes(client: Client) -> bool | None:
    """Tell whether rounds can be listed by our search attributes; None when the engine does not answer."""
    query = " AND ".join(f"{name} IS NULL" for name in SEARCH_ATTRIBUTES)
    try:
        await client.count_workflows(query, rpc_timeout=CHECK_TIMEOUT)
    except RPCError as exc:
        return False if exc.status is RPCStatusCode.INVALID_ARGUMENT else None
    except RuntimeError:
        return None
    return True
