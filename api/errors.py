"""How every refusal looks over HTTP: one body, and one table from code to status."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.failures import CallError
from governance.filters import InvalidFilter
from governance.messages import Language, message_for

STATUSES: Mapping[ErrorCode, tuple[int, ...]] = {
    ErrorCode.INVALID_REQUEST: (400, 422),
    ErrorCode.INVALID_KEY: (401,),
    ErrorCode.KEY_DISABLED: (403,),
    ErrorCode.FORBIDDEN: (403,),
    ErrorCode.NOT_FOUND: (404,),
    ErrorCode.METHOD_NOT_ALLOWED: (405,),
    ErrorCode.CONFLICT: (409,),
    ErrorCode.WRONG_STATE: (409,),
    ErrorCode.PRECONDITION_FAILED: (412, 428),
    ErrorCode.INVALID_FILTER: (400, 422),
    ErrorCode.INVALID_ARGUMENTS: (400,),
    ErrorCode.TOO_MANY_CALLS: (400,),
    ErrorCode.BODY_TOO_LARGE: (413,),
    ErrorCode.DUPLICATE_CALL_ID: (400,),
    ErrorCode.TOOL_NOT_FOUND: (404,),
    ErrorCode.TOOL_NOT_ALLOWED: (403,),
    ErrorCode.IMPLEMENTATION_NOT_ALLOWED: (403,),
    ErrorCode.SUBAGENT_REFUSED: (409,),
    ErrorCode.NO_RUNNER: (409,),
    ErrorCode.GUARDRAIL_BLOCKED: (403,),
    ErrorCode.APPROVAL_UNAVAILABLE: (403,),
    ErrorCode.APPROVAL_DENIED: (403,),
    ErrorCode.CREDENTIAL_REQUIRED: (424,),
    ErrorCode.QUOTA_EXCEEDED: (429,),
    ErrorCode.BUSY: (503,),
    ErrorCode.TOO_MANY_FAILURES: (429,),
    ErrorCode.IDEMPOTENCY_CONFLICT: (409,),
    ErrorCode.TOOL_TIMEOUT: (504,),
    ErrorCode.TOOL_ERROR: (502,),
    ErrorCode.TOOL_RESULT_ERROR: (502,),
    ErrorCode.UPSTREAM_UNAVAILABLE: (502,),
    ErrorCode.UPSTREAM_REFUSED: (502,),
    ErrorCode.UPSTREAM_PROTOCOL_ERROR: (502,),
    ErrorCode.SESSION_NOT_FOUND: (502,),
    ErrorCode.OUTCOME_UNKNOWN: (502,),
    ErrorCode.RESULT_TOO_LARGE: (502,),
    ErrorCode.MODEL_NOT_FOUND: (404,),
    ErrorCode.PROMPT_TOO_LARGE: (400,),
    ErrorCode.PROVIDER_RATE_LIMITED: (429,),
    ErrorCode.PROVIDER_CREDITS_EXHAUSTED: (502,),
    ErrorCode.PROVIDER_AUTH_EXPIRED: (502,),
    ErrorCode.PROVIDER_OVERLOADED: (503,),
    ErrorCode.PROVIDER_UNREACHABLE: (502, 504),
    ErrorCode.PROVIDER_REJECTED: (400, 502),
    ErrorCode.INVALID_PROVIDER_RESPONSE: (502,),
    ErrorCode.NOT_SENT: (503,),
    ErrorCode.CANCELED: (409,),
    ErrorCode.CANCEL_UNAVAILABLE: (503,),
    ErrorCode.ROUND_ABANDONED: (503,),
    ErrorCode.START_GRANT_REQUIRED: (403,),
    ErrorCode.DATABASE_BUSY: (503,),
    ErrorCode.ENGINE_UNAVAILABLE: (503,),
    ErrorCode.INTERNAL_ERROR: (500,),
}
"""The status of each code; further ones are for the routes whose documentation names them."""

RETRYABLE = frozenset(
    {
        ErrorCode.QUOTA_EXCEEDED,
        ErrorCode.BUSY,
        ErrorCode.TOO_MANY_FAILURES,
        ErrorCode.CANCEL_UNAVAILABLE,
        ErrorCode.DATABASE_BUSY,
        ErrorCode.ENGINE_UNAVAILABLE,
        ErrorCode.PROVIDER_RATE_LIMITED,
        ErrorCode.PROVIDER_OVERLOADED,
        ErrorCode.PROVIDER_UNREACHABLE,
        ErrorCode.INVALID_PROVIDER_RESPONSE,
    }
)
"""Codes of refusals after which the same request may succeed; a call's own failure says so itself."""

RETRY_AFTER_S = 1
"""What `Retry-After` says on a 202 and where a refusal that may be tried again does not say when."""


def _no_values() -> dict[str, JSON]:
    return {}


@dataclass(frozen=True)
class Audited:
    """What the audit trail gets beside the code and callers never see: who, which tool, which level."""

    actor: str | None = None
    round_id: str | None = None
    tool_name: str | None = None
    data: Mapping[str, JSON] = field(default_factory=_no_values)
    denies_call: bool = False
    """A call was refused before it belonged to a round: it is metered together with its audit row."""


NOTHING_AUDITED = Audited()


class APIProblem(Exception):
    """A request is refused, or its one call failed; carries everything that the answer needs."""

    def __init__(
        self,
        code: ErrorCode,
        details: Mapping[str, JSON] | None = None,
        *,
        status: int | None = None,
        retryable: bool | None = None,
        headers: Mapping[str, str] | None = None,
        audited: Audited = NOTHING_AUDITED,
    ) -> None:
        """Refuse with a code; `status` chooses among the statuses of the code, the first by default."""
        super().__init__(code.value)
        self.code = code
        self.details = dict(details or {})
        self.status = STATUSES[code][0] if status is None else status
        if self.status not in STATUSES[code]:
            raise ValueError(f"{code.value} is never answered with {self.status}; add it to STATUSES.")
        self.retryable = code in RETRYABLE if retryable is None else retryable
        self.headers = dict(headers or {})
        self.audited = audited


def problem_of_call(error: CallError, audited: Audited, headers: Mapping[str, str]) -> APIProblem:
    """Turn the failure of a single call into the answer of its request."""
    return APIProblem(error.code, error.details, retryable=error.retryable, headers=headers, audited=audited)


def problem_of_filter(invalid: InvalidFilter, *, status: int = 400) -> APIProblem:
    """Refuse a filter that means nothing certain."""
    details = {"where": invalid.header, "entry": invalid.entry, "reason": invalid.reason}
    return APIProblem(ErrorCode.INVALID_FILTER, details, status=status)


def malformed(problem: str, *, status: int = 400, **details: JSON) -> APIProblem:
    """Refuse a request that cannot be read; `problem` is a clause that says what and where."""
    return APIProblem(ErrorCode.INVALID_REQUEST, {"problem": problem, **details}, status=status)


def invalid_field(path: str, problem: str, *, status: int = 422) -> APIProblem:
    """Refuse a body for one of its fields."""
    problems: list[JSON] = [{"path": path, "problem": problem}]
    return malformed(f"{path} {problem}", status=status, problems=problems)


def unknown_profile(profile_key: str, *, status: int = 422) -> APIProblem:
    """Refuse a profile that the program does not have; `details.profile` names it."""
    problem = invalid_field("profile_key", "is no profile of this program", status=status)
    problem.details["profile"] = profile_key[:255]
    return problem


def not_found(what: str, name: str) -> APIProblem:
    """Refuse a request for something that is not there, or not the caller's."""
    return APIProblem(ErrorCode.NOT_FOUND, {"what": what, "name": name})


def error_body(problem: APIProblem, request_id: str, language: Language) -> dict[str, JSON]:
    """Write the body of a refusal."""
    return {
        "error": {
            "code": problem.code.value,
            "message": message_for(problem.code, problem.details, language),
            "request_id": request_id,
            "retryable": problem.retryable,
            "details": problem.details,
        }
    }


def error_headers(problem: APIProblem) -> dict[str, str]:
    """Return the headers of a refusal: those it brings and those its status demands.

    Source: RFC 9110, sections 11.6.1 (WWW-Authenticate) and 10.2.3 (Retry-After).
    """
    headers = dict(problem.headers)
    if problem.status == 401:
        headers.setdefault("www-authenticate", "Bearer")
    if problem.status in (429, 503) and problem.retryable:
        headers.setdefault("retry-after", str(problem.details.get("retry_after", RETRY_AFTER_S)))
    return headers
