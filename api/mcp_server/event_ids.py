"""Ids of the events that begin a stream: enough to make its answer again. Pure: no I/O."""

import base64
import binascii
import json
from uuid import UUID

from api.mcp_server.frames import INVALID_REQUEST, RequestId, RPCProblem


def event_id_of(round_id: str, request_id: RequestId) -> str:
    """Name the stream of a request by its round and its own id."""
    text = json.dumps(request_id).encode()
    return f"{round_id}.{base64.urlsafe_b64encode(text).decode().rstrip('=')}"


def read_event_id(event_id: str) -> tuple[str, RequestId]:
    """Return the round and the request of a stream; both are still to be checked against the caller.

    Raises:
        RPCProblem: it is none of ours.
    """
    round_id, _, encoded = event_id.partition(".")
    try:
        text = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        request_id = json.loads(text)
        round_id = str(UUID(round_id))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise unknown_event() from error
    if not isinstance(request_id, str | int) or isinstance(request_id, bool):
        raise unknown_event()
    return round_id, request_id


def unknown_event() -> RPCProblem:
    """Refuse an event id that names no stream of this session."""
    return RPCProblem(INVALID_REQUEST, "Last-Event-ID names no event of this session", status=400)
