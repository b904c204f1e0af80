"""The core document's table of provider failures, row by row."""

import pytest

from governance.chat_failures import FAILURE_PLANS, ProviderFailureKind, kind_of_refusal

ROWS = {
    # kind: category, strategy, automatic retries, seconds before the first
    "provider_rate_limited": ("external_dependency_blocked", "automatic", 2, 15),
    "provider_credits_exhausted": ("external_dependency_blocked", "manual", 0, 0),
    "provider_auth_expired": ("external_dependency_blocked", "manual", 0, 0),
    "provider_overloaded": ("external_dependency_blocked", "automatic", 2, 30),
    "provider_unreachable": ("external_dependency_blocked", "automatic", 2, 30),
    "invalid_provider_response_contract": ("contract_error", "automatic", 1, 5),
    "context_window_exceeded": ("contract_error", "manual", 0, 0),
    "internal_unexpected_error": ("implementation_error", "none", 0, 0),
}


@pytest.mark.parametrize("kind", list(ProviderFailureKind))
def test_each_kind_has_the_row_of_the_table(kind: ProviderFailureKind) -> None:
    plan = FAILURE_PLANS[kind]

    assert (plan.category.value, plan.strategy, plan.auto_limit, plan.delay_s) == ROWS[kind.value]
    assert plan.retryable == (plan.strategy == "automatic")


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (401, "", "provider_auth_expired"),
        (403, "", "provider_auth_expired"),
        (403, "billing is not active", "provider_credits_exhausted"),
        (402, "", "provider_credits_exhausted"),
        (429, "", "provider_rate_limited"),
        (429, "insufficient_quota", "provider_credits_exhausted"),
        (500, "insufficient_quota", "provider_overloaded"),
        (503, "", "provider_overloaded"),
        (408, "", "provider_unreachable"),
        (400, "context_length_exceeded", "context_window_exceeded"),
        (429, "context window", "provider_rate_limited"),
        (400, "", "internal_unexpected_error"),
        (418, "", "internal_unexpected_error"),
        (None, "rate_limit_exceeded", "provider_rate_limited"),
        (None, "insufficient_quota", "provider_credits_exhausted"),
        (None, "429", "provider_rate_limited"),
        (None, "503", "provider_overloaded"),
        (None, "whatever", "provider_overloaded"),
        (None, "", "provider_overloaded"),
        (200, "", "provider_overloaded"),
        (200, "insufficient_quota", "provider_credits_exhausted"),
    ],
)
def test_a_refusal_is_of_the_kind_that_its_status_and_words_say(
    status: int | None, words: str, kind: str
) -> None:
    assert kind_of_refusal(status, words, "", "").value == kind
    if status is not None and status >= 400:
        assert kind_of_refusal(status, "", "", words).value == kind
