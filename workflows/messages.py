"""The public contract with those who start rounds through Temporal: names, input and result."""

from dataclasses import dataclass, field
from typing import Any

from temporalio.common import SearchAttributeKey

PROVIDER_ROUND = "ProviderRound"
"""The workflow type of a round."""

CALL_RETRY = "CallRetry"
"""The workflow type that makes one call of an ended round again, because an operator said so."""

RECONCILE = "Reconcile"
"""The workflow type that repairs what crashes left behind."""

RESOLVE_UPDATE = "resolve_unknown"
"""The update that wakes a round which waits for a resolution; it carries the invocation's id only."""

CANCEL_CALL_SIGNAL = "cancel_call"
"""The signal that tells a round to stop one of its calls; it carries the call's position only."""

CONNECTION_SYNC = "ConnectionSync"
"""The workflow type that verifies a connection and discovers its tools."""

SESSION_SWEEP = "SessionSweep"
"""The workflow type that ends sessions which nobody uses."""

TASK_QUEUE = "sluicegate"
"""The task queue that workers poll unless they are told otherwise."""

KEY_ATTRIBUTE = SearchAttributeKey.for_keyword("SluicegateKey")
STATE_ATTRIBUTE = SearchAttributeKey.for_keyword("RoundState")
TOOLS_ATTRIBUTE = SearchAttributeKey.for_keyword_list("ToolNames")
UNKNOWN_ATTRIBUTE = SearchAttributeKey.for_bool("HasUnknown")

INLINE_ARGUMENTS_MAX_BYTES = 16 * 1024
"""Arguments that a direct starter may put into the input, as JSON, for each call."""

MAX_CALLS = 256
"""Calls in one round; Temporal's history and mutable state stay far below their limits."""


def _no_calls() -> list["InlineCall"]:
    return []


@dataclass(frozen=True)
class InlineCall:
    """A call whose arguments travel in the input, as the model gave them: JSON text or an object."""

    id: str
    name: str
    arguments: Any = "{}"


@dataclass(frozen=True)
class RoundInput:
    """What a round needs to start. Fields are only ever added, with defaults.

    The API stores the round first and gives `round_id`; the calls are then read from the database.
    Whoever starts a round through Temporal leaves `round_id` empty and gives `calls`.
    """

    key_id: str
    round_key: str
    round_id: str = ""
    body_digest: str = ""
    calls: list[InlineCall] = field(default_factory=_no_calls)
    include_clients: list[str] | None = None
    include_tools: list[str] | None = None
    search_attributes: bool = True
    """False where the cluster does not know our search attributes."""
    heartbeat_timeout_s: float = 8.0
    on_unknown: str = "fail"
    """`fail` goes on after an unknown outcome; `wait` waits for an operator's resolution first."""
    task_id: str | None = None
    """The task on whose frozen bindings a round runs that is started through Temporal."""
    conversation_id: str | None = None
    """The conversation that such a round is part of; a task's round is part of the task's."""
    implementations: dict[str, str] = field(default_factory=dict[str, str])
    """The implementations that such a round wants, by tool name, where they are not the default."""
    profile_key: str | None = None
    """The profile that such a round wants; one that its program does not have is refused."""
    grant: str = ""
    """The API's word that such a round may start, where the installation wants one; good for nothing else."""


@dataclass(frozen=True)
class RoundResult:
    """How a round ended; results are read from the API, never from here."""

    round_id: str
    state: str
    succeeded: int
    failed: int
    refused: int
    canceled: int
    unknown: int


def round_workflow_id(key_id: str, round_key_digest: str) -> str:
    """Name the workflow of a round: the caller and the SHA-256 of its round key."""
    return f"round:{key_id}:{round_key_digest}"


@dataclass(frozen=True)
class CallRetryInput:
    """Which call to make again, under which activity id: the id names the retry that was asked for."""

    round_id: str
    position: int
    stage: int
    activity_id: str
    timeout_s: float
    """The tool's own limit."""
    heartbeat_timeout_s: float = 8.0


@dataclass(frozen=True)
class CallRetryResult:
    """How the retry ended; the result is read from the API."""

    status: str
    outcome: str


@dataclass(frozen=True)
class ConnectionSyncInput:
    """Which connection to verify and list."""

    connection_id: str


def _no_names() -> list[str]:
    return []


def _no_pairs() -> list[list[str]]:
    return []


@dataclass(frozen=True)
class ConnectionSyncResult:
    """What contact with a connection showed; `failure` has stage, code, message and at when it failed."""

    ok: bool
    tools: int = 0
    added: list[str] = field(default_factory=_no_names)
    changed: list[str] = field(default_factory=_no_names)
    retired: list[str] = field(default_factory=_no_names)
    dropped: list[list[str]] = field(default_factory=_no_pairs)
    failure: dict[str, str] | None = None
