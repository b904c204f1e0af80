"""What a key may spend: windows, limits, and money without rounding."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.quotas import (
    ONE_CHAT,
    Demand,
    Exceeded,
    Limits,
    QuotaLimit,
    charged,
    denied,
    judge,
    judge_concurrency,
    money_text,
    money_units,
    nothing_spent,
    price_of,
    spent_at,
)

NOW = datetime(2026, 12, 31, 23, 59, 30, 5, tzinfo=UTC)
CALL = Demand(1, 1)


def exceeded(found: Exceeded | None) -> Exceeded:
    assert found is not None
    return found


def test_windows_begin_at_whole_minutes_days_and_months() -> None:
    spent = nothing_spent(NOW)

    assert (spent.minute, spent.day, spent.month) == (
        datetime(2026, 12, 31, 23, 59, tzinfo=UTC),
        datetime(2026, 12, 31, tzinfo=UTC),
        datetime(2026, 12, 1, tzinfo=UTC),
    )


def test_a_window_that_has_ended_counts_no_more() -> None:
    spent = charged(nothing_spent(NOW), Demand(2, 1, 7))
    next_minute = spent_at(spent, NOW + timedelta(minutes=1))

    assert next_minute == nothing_spent(datetime(2027, 1, 1, tzinfo=UTC))
    assert spent_at(spent, NOW + timedelta(seconds=29)) == spent


def test_a_clock_that_is_behind_takes_no_window_back() -> None:
    spent = charged(nothing_spent(NOW), CALL)

    assert spent_at(spent, NOW - timedelta(days=40)) == spent


@pytest.mark.parametrize(
    ("limits", "used", "limit"),
    [
        (Limits(requests_per_minute=2), Demand(2), QuotaLimit.REQUESTS_PER_MINUTE),
        (Limits(requests_per_day=2), Demand(2), QuotaLimit.REQUESTS_PER_DAY),
        (Limits(tool_calls_per_minute=2), Demand(2, 2), QuotaLimit.TOOL_CALLS_PER_MINUTE),
        (Limits(tool_calls_per_day=2), Demand(2, 2), QuotaLimit.TOOL_CALLS_PER_DAY),
        (Limits(tool_calls_per_day=0), Demand(0), QuotaLimit.TOOL_CALLS_PER_DAY),
        (
            Limits(requests_per_minute=2, requests_per_day=2),
            Demand(2),
            QuotaLimit.REQUESTS_PER_DAY,
        ),
    ],
    ids=["minute", "day", "calls-minute", "calls-day", "nothing", "the-longest"],
)
def test_a_limit_lets_exactly_as_many_through(limits: Limits, used: Demand, limit: QuotaLimit) -> None:
    spent = charged(nothing_spent(NOW), used)
    found = exceeded(judge(limits, spent, CALL, NOW))

    assert found.limit is limit
    assert found.limit_value == found.used
    one_less = charged(nothing_spent(NOW), Demand(used.requests - 1, used.calls - 1))
    assert judge(limits, one_less, CALL, NOW) is None


def test_a_refusal_says_when_it_ends() -> None:
    found = exceeded(judge(Limits(requests_per_minute=0), nothing_spent(NOW), CALL, NOW))

    assert found.details == {
        "limit": "requests_per_minute",
        "limit_value": 0,
        "used": 0,
        "resets_at": "2027-01-01T00:00:00+00:00",
        "retry_after": 30,
    }


def test_what_is_refused_counts_as_a_request_and_as_nothing_else() -> None:
    before = nothing_spent(NOW)

    assert denied(before, Demand(1, 1, 9)) == replace(before, minute_requests=1, day_requests=1)


def test_a_known_price_must_fit_and_an_unknown_one_needs_anything_left() -> None:
    limits = Limits(budget_per_day=10)
    almost = charged(nothing_spent(NOW), Demand(0, 0, 9))
    full = charged(nothing_spent(NOW), Demand(0, 0, 10))

    assert judge(limits, almost, Demand(1, 1, 1), NOW) is None
    assert exceeded(judge(limits, almost, Demand(1, 1, 2), NOW)).limit is QuotaLimit.BUDGET_PER_DAY
    assert judge(limits, almost, ONE_CHAT, NOW) is None
    assert exceeded(judge(limits, full, ONE_CHAT, NOW)).limit is QuotaLimit.BUDGET_PER_DAY
    # What costs nothing is not refused for want of money.
    assert judge(limits, full, CALL, NOW) is None


def test_a_budget_is_shown_as_money() -> None:
    limits = Limits(budget_per_month=money_units("2.5"))
    spent = charged(nothing_spent(NOW), Demand(0, 0, money_units("2.4")))
    found = exceeded(judge(limits, spent, Demand(1, 1, money_units("0.2")), NOW))

    assert (found.details["limit_value"], found.details["used"]) == ("2.5", "2.4")
    assert found.details["resets_at"] == "2027-01-01T00:00:00+00:00"


def test_calls_at_once_are_limited_by_those_that_run() -> None:
    limits = Limits(concurrent_calls=2)

    assert judge_concurrency(limits, 1) is None
    assert exceeded(judge_concurrency(limits, 2)).details["resets_at"] is None
    assert judge_concurrency(Limits(), 1_000) is None


@given(st.integers(0, 10**18 - 1))
def test_money_is_written_and_read_without_loss(units: int) -> None:
    assert money_units(money_text(units)) == units


@pytest.mark.parametrize(
    ("prices", "price"),
    [(None, 0), ({}, 0), ({"*": "1"}, 10**9), ({"*": "1", "read": "0.000000001"}, 1), ({"write": "1"}, 0)],
)
def test_a_tool_costs_its_own_price_or_that_of_all_others(prices: dict[str, str] | None, price: int) -> None:
    assert price_of(prices, "read") == price
