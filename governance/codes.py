"""The stable codes that callers match on, and what an error means for a retry. Pure: no I/O."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """Why a request or a call was refused or failed; stable across releases."""

    INVALID_REQUEST = "invalid_request"
    INVALID_KEY = "invalid_key"
    KEY_DISABLED = "key_disabled"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    WRONG_STATE = "wrong_state"
    PRECONDITION_FAILED = "precondition_failed"
    INVALID_FILTER = "invalid_filter"
    INVALID_ARGUMENTS = "invalid_arguments"
    TOO_MANY_CALLS = "too_many_calls"
    BODY_TOO_LARGE = "body_too_large"
    DUPLICATE_CALL_ID = "duplicate_call_id"
    TOOL_NOT_FOUND = "tool_not_found"
    TOOL_NOT_ALLOWED = "tool_not_allowed"
    IMPLEMENTATION_NOT_ALLOWED = "implementation_not_allowed"
    SUBAGENT_REFUSED = "subagent_refused"
    NO_RUNNER = "no_runner"
    GUARDRAIL_BLOCKED = "guardrail_blocked"
    APPROVAL_UNAVAILABLE = "approval_unavailable"
    APPROVAL_DENIED = "approval_denied"
    CREDENTIAL_REQUIRED = "credential_required"
    QUOTA_EXCEEDED = "quota_exceeded"
    BUSY = "busy"
    TOO_MANY_FAILURES = "too_many_failures"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    TOOL_TIMEOUT = "tool_timeout"
    TOOL_ERROR = "tool_error"
    TOOL_RESULT_ERROR = "tool_result_error"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    UPSTREAM_REFUSED = "upstream_refused"
    UPSTREAM_PROTOCOL_ERROR = "upstream_protocol_error"
    SESSION_NOT_FOUND = "session_not_found"
    OUTCOME_UNKNOWN = "outcome_unknown"
    RESULT_TOO_LARGE = "result_too_large"
    MODEL_NOT_FOUND = "model_not_found"
    PROMPT_TOO_LARGE = "prompt_too_large"
    PROVIDER_RATE_LIMITED = "provider_rate_limited"
    PROVIDER_CREDITS_EXHAUSTED = "provider_credits_exhausted"
    PROVIDER_AUTH_EXPIRED = "provider_auth_expired"
    PROVIDER_OVERLOADED = "provider_overloaded"
    PROVIDER_UNREACHABLE = "provider_unreachable"
    PROVIDER_REJECTED = "provider_rejected"
    INVALID_PROVIDER_RESPONSE = "invalid_provider_response"
    NOT_SENT = "not_sent"
    CANCELED = "canceled"
    CANCEL_UNAVAILABLE = "cancel_unavailable"
    ROUND_ABANDONED = "round_abandoned"
    START_GRANT_REQUIRED = "start_grant_required"
    DATABASE_BUSY = "database_busy"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    INTERNAL_ERROR = "internal_error"


class Classification(StrEnum):
    """Which layer an error belongs to; the first three are the core document's."""

    TRANSPORT = "transport"
    PROTOCOL = "protocol"
    SEMANTIC = "semantic"
    AUTHORIZATION = "authorization"
    RUNTIME = "runtime"


class SendOutcome(StrEnum):
    """What is known of one physical send."""

    NOT_SENT = "not_sent"
    REFUSED = "refused"
    ANSWERED = "answered"
    UNKNOWN = "unknown"


class InvocationStatus(StrEnum):
    """Where an invocation stands; all but running are terminal."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class InvocationOutcome(StrEnum):
    """Whether the upstream's effect is known."""

    KNOWN = "known"
    UNKNOWN = "unknown"


class RoundState(StrEnum):
    """Where a round stands."""

    REQUESTED = "requested"
    RUNNING = "running"
    WAITING_APPROVAL = "waiting_approval"
    WAITING_CREDENTIAL = "waiting_credential"
    WAITING_UNKNOWN = "waiting_unknown"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"
    ABANDONED = "abandoned"


TERMINAL_ROUND_STATES = frozenset(
    {RoundState.COMPLETED, RoundState.CANCELED, RoundState.FAILED, RoundState.ABANDONED}
)
"""States that a round leaves only where its caller has it repeated, after a fault of the engine's."""


class IdempotencyClass(StrEnum):
    """What the operator declares of a tool's repeats; never taken from the server's annotations."""

    SAFE = "safe"
    KEYED = "keyed"
    UNSAFE = "unsafe"
