"""The values that cross the boundary of the MCP transport; all frozen, none does I/O."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

JSON: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list of JSON or dict of str to JSON."""

Network = Literal["public", "private", "loopback"]
"""Which addresses an endpoint may resolve to."""

Era = Literal["legacy", "modern"]
"""``legacy``: handshake and sessions (to 2025-11-25). ``modern``: each request stands alone (2026-07-28)."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
NO_JSON: Mapping[str, JSON] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds. The hard limit of a call is the ``timeout_s`` argument of the call itself."""

    connect_s: float = 10.0
    """Name resolution, TCP and TLS together."""

    write_s: float = 30.0

    pool_s: float = 30.0
    """Waiting for a free connection."""

    silence_s: float = 60.0
    """No byte at all for this long means a dead stream; servers send keep-alives about every 15 s."""

    idle_s: float = 5.0
    """A resumed stream without events for this long is opened again, twice as patiently each time: some
    servers replay what was stored and then deliver nothing live."""

    soft_s: float | None = None
    """A call without answer or progress for this long times out; each progress starts it again."""

    negotiation_s: float = 10.0
    """One request of the handshake, and each request beside a call (ping, cancel, answers to the server)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a server may make us hold or do."""

    max_body_bytes: int = 64 * 1024 * 1024
    """Bytes of one response, after decompression."""

    max_event_bytes: int = 48 * 1024 * 1024
    """Bytes of one server-sent event."""

    max_json_depth: int = 128
    max_pages: int = 200
    max_tools: int = 20_000
    max_listing_bytes: int = 64 * 1024 * 1024
    """Bytes of all tools of a listing together, as compact JSON."""

    max_input_rounds: int = 10
    """``input_required`` answers to one call."""

    max_inputs: int = 32
    """Requests for input in one such answer."""

    max_state_bytes: int = 256 * 1024
    """Bytes of ``requestState``, which goes back with each round."""

    max_resumes: int = 5
    """Reconnects of a stream in a row that bring no new event."""

    max_connections: int = 256
    """For calls and all else that is short."""

    max_streams: int = 1024
    """Connections for listening, beside those: each session in use may hold one."""


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """How this client names itself to servers."""

    name: str = "sluicegate"
    version: str = "0.1.0"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One MCP server as configured: where it is, how it is spoken to and what it may cost.

    `headers` may carry ``Authorization``; it may not name a header that the protocol or HTTP framing owns.
    `elicitation`: ``none`` declares nothing and refuses; ``decline`` declares it and declines each request;
    ``ask`` declares it and awaits `CallHooks.on_elicitation`.
    `refusal_statuses`: further HTTP statuses by which this server proves that it did not run a request.
    """

    url: str
    network: Network = "public"
    protocol_version: str = "auto"
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS, repr=False)
    transport: Literal["streamable_http", "http_sse"] = "streamable_http"
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    elicitation: Literal["none", "decline", "ask"] = "none"
    refusal_statuses: frozenset[int] = frozenset()
    client_info: ClientInfo = ClientInfo()


@dataclass(frozen=True, slots=True)
class OpenSession:
    """What a negotiation established; usable by any worker until the server says otherwise.

    `session_id` is a bearer secret: None for a stateless or modern server, never shown by repr.
    `url` is where the endpoint answers if it redirected within its origin; None means `Endpoint.url`.
    """

    session_id: str | None = field(repr=False)
    protocol_version: str
    era: Era
    server_info: dict[str, JSON] = field(default_factory=dict[str, JSON])
    capabilities: dict[str, JSON] = field(default_factory=dict[str, JSON])
    instructions: str | None = None
    url: str | None = None

    def to_json(self) -> dict[str, JSON]:
        """Return all fields as a JSON object, **with** the session id; store it sealed."""
        return {
            "session_id": self.session_id,
            "protocol_version": self.protocol_version,
            "era": self.era,
            "server_info": self.server_info,
            "capabilities": self.capabilities,
            "instructions": self.instructions,
            "url": self.url,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, JSON]) -> "OpenSession":
        """Rebuild a session from `to_json`; unknown keys are ignored.

        Raises:
            KeyError: A required key is missing.
        """
        return cls(
            session_id=value["session_id"],
            protocol_version=value["protocol_version"],
            era=value["era"],
            server_info=dict(value.get("server_info") or {}),
            capabilities=dict(value.get("capabilities") or {}),
            instructions=value.get("instructions"),
            url=value.get("url"),
        )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of one tool.

    `request_id` is UUID text, unique across all workers that share a session: a reused id loses an answer.
    `meta` goes into ``_meta`` beside what the protocol puts there.
    `input_schema` is needed for argument headers of modern servers, `output_schema` to check results.
    """

    name: str
    arguments: Mapping[str, JSON] = field(repr=False)
    request_id: str
    meta: Mapping[str, JSON] = field(default_factory=lambda: NO_JSON)
    input_schema: JSON | None = field(default=None, repr=False)
    output_schema: JSON | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a call's event stream stood; enough for another worker to fetch the answer by GET."""

    request_id: str
    last_event_id: str
    retry_s: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """One accepted progress notification; `progress` only ever rises within a call."""

    progress: float
    total: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of a tool call, kept whole.

    `raw` is the result object as received; `content` and `structured_content` are taken from it unchanged.
    `marks` names what was odd about it: ``no_content``, ``malformed_content``, ``unknown_content_type``,
    ``structured_content_not_object``, ``structured_content_missing``, ``output_schema_violation``,
    ``output_schema_unusable``, ``is_error_not_boolean``.
    """

    content: tuple[JSON, ...]
    structured_content: JSON | None
    is_error: bool
    raw: dict[str, JSON]
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One usable tool of a listing; `raw` is its entry as received.

    `marks`: ``output_schema_ignored`` if its output schema is unusable (`output_schema` is then None).
    """

    name: str
    title: str | None
    description: str | None
    input_schema: dict[str, JSON]
    output_schema: dict[str, JSON] | None
    annotations: dict[str, JSON]
    raw: dict[str, JSON]
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DroppedTool:
    """One entry of a listing that cannot be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ToolListing:
    """All pages of ``tools/list``.

    `stopped` says why it is not complete (``cursor_loop``, ``page_limit``, ``tool_limit``, ``byte_limit``);
    None if it is.
    """

    tools: tuple[ListedTool, ...]
    dropped: tuple[DroppedTool, ...]
    pages: int
    stopped: str | None = None


async def nothing_before_send() -> None:
    """Let every request go."""


async def _ignore_cursor(_cursor: Cursor) -> None:
    return None


async def _ignore_progress(_progress: Progress) -> None:
    return None


def _always() -> bool:
    return True


async def _ignore_notification(_method: str, _params: Mapping[str, JSON]) -> None:
    return None


async def _decline(_params: Mapping[str, JSON]) -> dict[str, JSON]:
    return {"action": "decline"}


@dataclass(frozen=True, slots=True)
class CallHooks:
    """What a caller wants to know of, or decide in, a running call.

    `before_send` is awaited once the connection stands and before the first byte of the request; raising
    vetoes the call and nothing is sent. An exception from any hook ends the call and reaches the caller.
    `on_cursor` and `on_progress` are rate limited: bursts of 20, then 10 a second; faster ones are skipped.
    `tell_upstream_on_cancel` decides, when the call is cancelled or times out, whether the server is told.
    `on_notification` receives the method and params of every other notification in the call's stream, such as
    ``notifications/tools/list_changed``, at the same rate.
    `on_elicitation` answers an elicitation request (``{"action": "accept", "content": {...}}``, ``decline``
    or ``cancel``); used only with ``Endpoint.elicitation == "ask"``.
    """

    before_send: Callable[[], Awaitable[None]] = nothing_before_send
    on_cursor: Callable[[Cursor], Awaitable[None]] = _ignore_cursor
    on_progress: Callable[[Progress], Awaitable[None]] = _ignore_progress
    on_notification: Callable[[str, Mapping[str, JSON]], Awaitable[None]] = _ignore_notification
    tell_upstream_on_cancel: Callable[[], bool] = _always
    on_elicitation: Callable[[Mapping[str, JSON]], Awaitable[Mapping[str, JSON]]] = _decline


OnMessage = Callable[[dict[str, JSON], str | None], Awaitable[None]]
"""Receives one notification of a listening stream and its event id, if it had one."""
