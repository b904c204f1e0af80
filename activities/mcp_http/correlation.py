"""Finds the answer to one request among everything a server sends meanwhile. Pure: no I/O.

Answers are matched by id only. Ids of the server's own requests are another number space and never compared
with ours. Source: MCP 2025-11-25, Basic, Requests and Responses; Transports, Sending Messages.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from activities.mcp_http import wire
from activities.mcp_http.errors import MCPError, Outcome, ProtocolError
from activities.mcp_http.refusals import error_of_rpc
from activities.mcp_http.types import JSON, Era, Progress

MAX_REMEMBERED: Final = 64
"""The latest requests of the server whose ids are kept, so that one a replay repeats is answered once."""

MAX_ID_LENGTH: Final = 1024
"""Requests with a longer id are no messages: each id is kept, and sent back."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Our answer: the result object."""

    result: dict[str, JSON]


@dataclass(frozen=True, slots=True)
class Failed:
    """Our answer: an error."""

    error: MCPError


@dataclass(frozen=True, slots=True)
class Asked:
    """The server wants something of us and waits."""

    request: wire.Request


@dataclass(frozen=True, slots=True)
class Progressed:
    """Our request came forward."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Noted:
    """A notification that is not about our request."""

    notification: wire.Notification


Step = Answered | Failed | Asked | Progressed | Noted


class AnswerWait:
    """Waits for the answer to the request `request_id`; feed it each body or event text in order.

    Attributes:
        foreign_ids: Responses seen that answer something else.
        bad_frames: Frames seen that are no JSON-RPC message.
        shares_stream: Set once what is read may hold answers to other requests, as a resumed stream does:
            an error without id is then nobody's answer.
    """

    def __init__(self, request_id: str, era: Era, max_json_depth: int) -> None:
        self.request_id = request_id
        self.foreign_ids = 0
        self.bad_frames = 0
        self.shares_stream = False
        self._era = era
        self._max_json_depth = max_json_depth
        self._progress = -math.inf
        self._asked: deque[str] = deque(maxlen=MAX_REMEMBERED)

    def take_body(self, body: bytes) -> list[Step]:
        """Read a JSON body, which must hold our answer: the last step is always `Answered` or `Failed`."""
        try:
            value = wire.parse_json(body, self._max_json_depth)
        except wire.BadJSON as exc:
            return [Failed(self._broken("invalid_json", f"The MCP server's answer is no JSON: {exc}."))]
        steps = self._take_value(value)
        if steps and isinstance(steps[-1], Answered | Failed):
            return steps
        message = f"The MCP server's answer does not carry the id of the request, {self.request_id!r}."
        details: dict[str, JSON] = {"foreign_ids": self.foreign_ids, "bad_frames": self.bad_frames}
        return [*steps, Failed(self._broken("answer_id_mismatch", message, details))]

    def take_event(self, data: str) -> list[Step]:
        """Read the data of one event; what cannot be read is skipped while the stream lives."""
        try:
            value = wire.parse_json(data, self._max_json_depth)
        except wire.BadJSON:
            self.bad_frames += 1
            return []
        return self._take_value(value)

    def _take_value(self, value: JSON) -> list[Step]:
        # Batches exist at 2025-03-26 only, but some servers go on sending them; ids keep that safe.
        batch = wire.as_list(value) if self._era == "legacy" else None
        steps: list[Step] = []
        for item in [value] if batch is None else batch:
            step = self._take_message(wire.read_message(item))
            if step is not None:
                steps.append(step)
            if isinstance(step, Answered | Failed):
                break
        return steps

    def _take_message(self, message: wire.Message) -> Step | None:
        match message:
            case wire.Response():
                return self._take_response(message)
            case wire.Request():
                return self._take_request(message)
            case wire.Notification():
                return self._take_notification(message)
            case wire.Malformed():
                if wire.is_answer_to(message.id, self.request_id):
                    text = f"The MCP server's answer is malformed: {message.reason}."
                    return Failed(self._broken("invalid_answer", text))
                self.bad_frames += 1
                return None

    def _take_response(self, response: wire.Response) -> Step | None:
        # An error without id means the server could not read the request; nobody else will answer it.
        orphan = response.id is None and response.error is not None and not self.shares_stream
        if not orphan and not wire.is_answer_to(response.id, self.request_id):
            self.foreign_ids += 1
            return None
        if response.error is not None:
            return Failed(error_of_rpc(response.error))
        return Answered(response.result or {})

    def _take_request(self, request: wire.Request) -> Step | None:
        key = f"{type(request.id).__name__}:{request.id}"
        if key in self._asked or len(key) > MAX_ID_LENGTH:
            return None
        self._asked.append(key)
        return Asked(request)

    def _take_notification(self, notification: wire.Notification) -> Step:
        if notification.method != "notifications/progress":
            return Noted(notification)
        progress = self._read_progress(notification.params)
        return Noted(notification) if progress is None else Progressed(progress)

    def _read_progress(self, params: dict[str, JSON]) -> Progress | None:
        """Accept only our token and rising numbers. Source: MCP 2025-11-25, Utilities, Progress."""
        value, message = _number(params.get("progress")), params.get("message")
        if not wire.is_answer_to(params.get("progressToken"), self.request_id) or value is None:
            return None
        if value <= self._progress:
            return None
        self._progress = value
        text = wire.clean_text(message, 1000) if isinstance(message, str) else None
        return Progress(value, _number(params.get("total")), text)

    def _broken(self, code: str, message: str, details: dict[str, JSON] | None = None) -> ProtocolError:
        return ProtocolError(code, message, Outcome.UNKNOWN, details=details)


def _number(value: JSON) -> float | None:
    # Integers beyond the range of a float are no progress either; converting them would raise.
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value)
