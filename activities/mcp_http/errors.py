"""Every way in which an exchange with an MCP server can fail, as types.

::

    MCPError                    code, outcome, retryable, details
    ├── TransportError          no usable JSON-RPC answer: connection, HTTP status, timeout, size
    │   ├── EndpointRefused     our own outbound guard refused the URL or address; nothing was sent
    │   └── SessionLost         the server no longer knows the session; it did not run the call
    ├── ProtocolError           an answer that breaks JSON-RPC or MCP, or an error code reserved by them
    └── SemanticError           the server answered the call with a JSON-RPC error of its own

A result with ``isError`` is no exception: it is a `ToolAnswer` and goes to the model. Messages and details
never hold credentials, session ids or tool arguments; texts from the server are cleaned and cut first.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from activities.mcp_http.types import JSON


class Outcome(StrEnum):
    """What is known about the effect of the request that failed."""

    NOT_SENT = "not_sent"
    """No byte of the request left this process."""

    REFUSED = "refused"
    """The server proved that it did not run the request."""

    UNKNOWN = "unknown"
    """The request was sent and no answer tells whether it ran."""

    ANSWERED = "answered"
    """The server answered; the answer is an error."""


Classification = Literal["transport", "protocol", "semantic"]
"""The three layers of failure a caller tells apart."""


class MCPError(Exception):
    """The root: one failed exchange.

    Args:
        code: A word for programs, e.g. ``tool_timeout``; stable.
        message: A sentence for people, without secrets.
        outcome: What is known about the effect of the request.
        retryable: Whether sending the same request again, unchanged, is safe and may succeed.
        details: JSON facts. Keys in use: ``http_status``, ``retry_after_s``, ``jsonrpc_code``,
            ``jsonrpc_message``, ``jsonrpc_data``, ``content_type``, ``body_start``, ``www_authenticate``,
            ``supported``, ``foreign_ids`` and ``remedy``
            (``credential``, ``initialize``, ``negotiate``, ``refresh_tools``, ``wait``, ``new_connection``).
    """

    classification: Classification = "transport"

    def __init__(
        self,
        code: str,
        message: str,
        outcome: Outcome,
        *,
        retryable: bool = False,
        details: Mapping[str, JSON] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.outcome = outcome
        self.retryable = retryable
        self.details: dict[str, JSON] = dict(details or {})

    @property
    def http_status(self) -> int | None:
        """The status of the HTTP response, if one arrived."""
        status = self.details.get("http_status")
        return status if isinstance(status, int) else None

    @property
    def retry_after_s(self) -> float | None:
        """Seconds the server asked us to wait, bounded to a day; None if it named none."""
        wait_s = self.details.get("retry_after_s")
        return float(wait_s) if isinstance(wait_s, int | float) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(code={self.code!r}, outcome={self.outcome.value!r}, {self.message!r})"


class TransportError(MCPError):
    """No usable JSON-RPC answer came back."""


class EndpointRefused(TransportError):
    """The outbound guard refused the URL, a header or the address behind the name."""

    def __init__(self, message: str, code: str = "endpoint_refused") -> None:
        super().__init__(code, message, Outcome.NOT_SENT)


class SessionLost(TransportError):
    """The server does not know our session any more; one initialize and one repeat of the call are safe.

    Source: MCP 2025-11-25, Transports, Session Management.
    """

    def __init__(self, details: Mapping[str, JSON] | None = None) -> None:
        super().__init__(
            "session_not_found",
            "The MCP server no longer knows this session; initialize a new one and repeat the call.",
            Outcome.REFUSED,
            retryable=True,
            details={"remedy": "initialize", **(details or {})},
        )


class ProtocolError(MCPError):
    """The other side broke the protocol, or answered with a code that the protocol reserves."""

    classification: Classification = "protocol"


class SemanticError(MCPError):
    """The server answered the request with a JSON-RPC error that is its own business."""

    classification: Classification = "semantic"


def without_effect(error: MCPError) -> MCPError:
    """Return `error` as the failure of a request that runs no tool: nothing about effects is unknown.

    Transport errors become retryable where only the doubt about effects forbade it.
    """
    if error.outcome is Outcome.UNKNOWN:
        error.outcome = Outcome.NOT_SENT
        error.retryable = isinstance(error, TransportError)
    return error


def already_begun(error: MCPError) -> MCPError:
    """Return `error` as the failure of a later round of a call whose first one reached the tool.

    That this round was refused or never left says nothing about what the earlier ones began.
    """
    if error.outcome is not Outcome.ANSWERED:
        error.outcome = Outcome.UNKNOWN
    error.retryable = False
    error.details.pop("remedy", None)
    return error


def no_time(method: str, limit_s: float) -> TransportError:
    """Return the error for a request beside tool calls that was not answered in time."""
    return TransportError(
        "negotiation_timeout",
        f"The MCP server did not answer {method!r} within {limit_s:g} s.",
        Outcome.NOT_SENT,
        retryable=True,
    )
