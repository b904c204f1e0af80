"""JSON-RPC frames as a server reads and writes them. Pure: no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from governance.canonical import JSON, is_object

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
UNSUPPORTED_VERSION: Final = -32022

RequestId = str | int
"""What names a request; a client never uses one twice in a session."""


@dataclass(frozen=True)
class Request:
    """A request, which is owed exactly one answer."""

    id: RequestId
    method: str
    params: dict[str, JSON]


@dataclass(frozen=True)
class Notification:
    """A message that is owed no answer."""

    method: str
    params: dict[str, JSON]


@dataclass(frozen=True)
class Answer:
    """An answer to a request of ours; we make none, so it answers nothing."""


@dataclass(frozen=True)
class Malformed:
    """A JSON value that is no message; `id` is the id that it carried, None if it carried no usable one."""

    reason: str
    id: RequestId | None = None


Frame = Request | Notification | Answer | Malformed


class RPCProblem(Exception):
    """A request cannot be served; carries the whole of its error answer."""

    def __init__(
        self,
        code: int,
        message: str,
        data: JSON = None,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with an error object; `status` is that of the HTTP response."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status
        self.headers = dict(headers or {})


def read_frame(value: JSON) -> Frame:
    """Tell what a JSON value is as a message.

    Source: JSON-RPC 2.0, sections 4 and 5; MCP 2025-11-25, Base Protocol, Messages: ids are never null.
    """
    if not is_object(value):
        return Malformed("a message is an object")
    frame_id = value.get("id")
    known_id = frame_id if _is_id(frame_id) else None
    if problem := _problem_of(value, known_id):
        return Malformed(problem, known_id)
    if "method" not in value:
        return Answer()
    method: str = value["method"]
    params: dict[str, JSON] = value.get("params", {})
    return Notification(method, params) if known_id is None else Request(known_id, method, params)


def _problem_of(value: Mapping[str, JSON], known_id: RequestId | None) -> str | None:
    """Return what makes an object no message, None for nothing."""
    if value.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if "id" in value and known_id is None:
        return "id must be a string or an integer"
    if "method" not in value:
        is_answer = known_id is not None and ("result" in value) != ("error" in value)
        return None if is_answer else "neither a request nor an answer"
    if not isinstance(value["method"], str) or not value["method"]:
        return "method must be a name"
    return None if is_object(value.get("params", {})) else "params must be an object"


def _is_id(value: JSON) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def result_frame(request_id: RequestId, result: Mapping[str, JSON]) -> dict[str, JSON]:
    """Write the answer to a request."""
    return {"jsonrpc": "2.0", "id": request_id, "result": dict(result)}


def error_frame(request_id: RequestId | None, problem: RPCProblem) -> dict[str, JSON]:
    """Write the refusal of a request; the id is null where the request could not be read that far."""
    error: dict[str, JSON] = {"code": problem.code, "message": problem.message}
    if problem.data is not None:
        error["data"] = problem.data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}
