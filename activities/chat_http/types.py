"""The values that cross the boundary of the chat transport; all frozen, none does I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

JSON: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list of JSON or dict of str to JSON."""

Network = Literal["public", "private", "loopback"]
"""Which addresses an endpoint may resolve to."""


@dataclass(frozen=True, slots=True)
class ChatTimeouts:
    """Limits in seconds."""

    connect_s: float = 10.0
    """Name resolution, TCP and TLS together."""

    write_s: float = 30.0

    pool_s: float = 30.0
    """Waiting for a free connection."""

    answer_s: float = 600.0
    """A whole answer, streamed or not, from the first byte of the request to the last of the answer."""

    idle_s: float = 120.0
    """No byte of a stream at all for this long means a dead stream; comments of the provider count."""


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """Bounds on what a provider may make us hold."""

    max_answer_bytes: int = 32 * 1024 * 1024
    """Bytes of one whole answer, after decompression; a stream is held to the same."""

    max_event_bytes: int = 8 * 1024 * 1024
    """Bytes of one server-sent event."""

    max_json_depth: int = 128
    max_connections: int = 256


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    """One provider as configured.

    `base_url` is what ``/chat/completions`` is appended to, such as ``https://api.example.com/v1``. `headers`
    hold the credential, if any; HTTP framing's own may not be named.
    """

    base_url: str
    network: Network = "public"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeouts: ChatTimeouts = ChatTimeouts()
    limits: ChatLimits = ChatLimits()

    @property
    def completions_url(self) -> str:
        """Where chat completions are asked for; a query of the base URL is kept."""
        base, mark, query = self.base_url.partition("?")
        return f"{base.rstrip('/')}/chat/completions{mark}{query}"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a provider says that an answer cost, in tokens.

    `cached_tokens` are part of `prompt_tokens`, `reasoning_tokens` of `completion_tokens`. `raw` is the
    object as received.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    raw: Mapping[str, JSON] = field(default_factory=dict[str, JSON], compare=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer: the object as received, but for the tool calls, which are made regular."""

    body: dict[str, JSON]
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a stream, made regular. `is_usage_only` is the extra one that carries no choice."""

    body: dict[str, JSON]
    usage: Usage | None
    is_usage_only: bool
