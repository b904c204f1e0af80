"""What the failure of a chat provider means: its kind, who can help, when to ask again. Pure: no I/O.

Source: the core document's failure classification for exceptions, its rows about providers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from governance.codes import ErrorCode


class ProviderFailureKind(StrEnum):
    """Why a provider gave no answer."""

    RATE_LIMITED = "provider_rate_limited"
    CREDITS_EXHAUSTED = "provider_credits_exhausted"
    AUTH_EXPIRED = "provider_auth_expired"
    OVERLOADED = "provider_overloaded"
    UNREACHABLE = "provider_unreachable"
    INVALID_RESPONSE = "invalid_provider_response_contract"
    PROMPT_TOO_LARGE = "context_window_exceeded"
    REJECTED = "internal_unexpected_error"


class FailureCategory(StrEnum):
    """Whose failure it is."""

    EXTERNAL = "external_dependency_blocked"
    CONTRACT = "contract_error"
    IMPLEMENTATION = "implementation_error"


@dataclass(frozen=True)
class FailurePlan:
    """What follows from a kind of failure.

    `auto_limit` is how often the same failure is retried without a person, `delay_s` the pause before the
    first retry; the n-th waits n times as long. `strategy` of a kind that no retry helps is ``none``.
    """

    code: ErrorCode
    category: FailureCategory
    strategy: Literal["automatic", "manual", "none"]
    auto_limit: int = 0
    delay_s: float = 0.0

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without anybody doing something about it."""
        return self.strategy == "automatic"


_EXTERNAL = FailureCategory.EXTERNAL

FAILURE_PLANS: Final[Mapping[ProviderFailureKind, FailurePlan]] = MappingProxyType(
    {
        ProviderFailureKind.RATE_LIMITED: FailurePlan(
            ErrorCode.PROVIDER_RATE_LIMITED, _EXTERNAL, "automatic", auto_limit=2, delay_s=15.0
        ),
        ProviderFailureKind.CREDITS_EXHAUSTED: FailurePlan(
            ErrorCode.PROVIDER_CREDITS_EXHAUSTED, _EXTERNAL, "manual"
        ),
        ProviderFailureKind.AUTH_EXPIRED: FailurePlan(ErrorCode.PROVIDER_AUTH_EXPIRED, _EXTERNAL, "manual"),
        ProviderFailureKind.OVERLOADED: FailurePlan(
            ErrorCode.PROVIDER_OVERLOADED, _EXTERNAL, "automatic", auto_limit=2, delay_s=30.0
        ),
        ProviderFailureKind.UNREACHABLE: FailurePlan(
            ErrorCode.PROVIDER_UNREACHABLE, _EXTERNAL, "automatic", auto_limit=2, delay_s=30.0
        ),
        ProviderFailureKind.INVALID_RESPONSE: FailurePlan(
            ErrorCode.INVALID_PROVIDER_RESPONSE,
            FailureCategory.CONTRACT,
            "automatic",
            auto_limit=1,
            delay_s=5.0,
        ),
        ProviderFailureKind.PROMPT_TOO_LARGE: FailurePlan(
            ErrorCode.PROMPT_TOO_LARGE, FailureCategory.CONTRACT, "manual"
        ),
        ProviderFailureKind.REJECTED: FailurePlan(
            ErrorCode.PROVIDER_REJECTED, FailureCategory.IMPLEMENTATION, "none"
        ),
    }
)
"""The row of the table for each kind."""

CALLERS_OWN_STATUSES: Final = frozenset({400, 409, 413, 422})
"""Statuses with which a provider says that what the caller wrote is at fault, and not how we are set up."""

_CREDITS = re.compile(
    r"insufficient[ _](?:quota|credits?|balance|funds)|billing|out of credits?|credit balance"
    r"|payment required|exceeded your current quota",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context[ _](?:length|window)|maximum context|(?:prompt|input) is too (?:long|large)|too many tokens",
    re.IGNORECASE,
)


def kind_of_refusal(status: int | None, code: str, error_type: str, message: str) -> ProviderFailureKind:
    """Return the kind of an error that a provider answered; one inside a stream or a 200 has no status.

    Wording about credits wins over 429, which providers use for both: waiting does not fill an account.
    """
    words = f"{code} {error_type} {message}"
    if status is None or status < 400:
        status = _implied_status(code, error_type)
    kind = _KINDS.get(status)
    if kind is None:
        kind = ProviderFailureKind.OVERLOADED if status >= 500 else ProviderFailureKind.REJECTED
    if status in (400, 403, 429) and _CREDITS.search(words):
        return ProviderFailureKind.CREDITS_EXHAUSTED
    if kind is ProviderFailureKind.REJECTED and _CONTEXT.search(words):
        return ProviderFailureKind.PROMPT_TOO_LARGE
    return kind


_KINDS: Final[Mapping[int, ProviderFailureKind]] = MappingProxyType(
    {
        401: ProviderFailureKind.AUTH_EXPIRED,
        402: ProviderFailureKind.CREDITS_EXHAUSTED,
        403: ProviderFailureKind.AUTH_EXPIRED,
        408: ProviderFailureKind.UNREACHABLE,
        429: ProviderFailureKind.RATE_LIMITED,
    }
)
"""Statuses with a kind of their own; beyond them, 500 and more is the provider's failure."""


def _implied_status(code: str, error_type: str) -> int:
    """Return the status that an error inside an answer would have had, which itself came with 200."""
    if code.isascii() and code.isdecimal() and len(code) == 3 and int(code) >= 400:
        return int(code)
    for word in (code, error_type):
        if word in _IMPLIED:
            return _IMPLIED[word]
    # The answer had begun, so the request was in order: what breaks it off now is the provider's.
    return 500


_IMPLIED: Final[Mapping[str, int]] = MappingProxyType(
    {
        "rate_limit_exceeded": 429,
        "rate_limit_error": 429,
        "insufficient_quota": 402,
        "invalid_api_key": 401,
        "authentication_error": 401,
        "permission_error": 403,
        "context_length_exceeded": 400,
        "invalid_request_error": 400,
    }
)
