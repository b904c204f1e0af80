"""What a key may spend: requests and tool calls in a window, calls at once, money. Pure: no I/O, no clock.

A window begins at a whole minute, day or month of UTC and ends where the next one begins. A chat request and
a tool call are one request each; a call that may be made is one tool call besides. What is refused counts as
a request all the same. Money is in billionths of the installation's currency.
"""

import math
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import Classification, ErrorCode
from governance.failures import CallError

MONEY_UNITS: Final = 1_000_000_000
"""Billionths in one of the currency."""

CONCURRENCY_RETRY_S: Final = 1
"""When to ask again after too many calls at once: nobody knows when one of them ends."""


class QuotaLimit(StrEnum):
    """What a key may run into; the value is the field that sets it."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    REQUESTS_PER_DAY = "requests_per_day"
    TOOL_CALLS_PER_MINUTE = "tool_calls_per_minute"
    TOOL_CALLS_PER_DAY = "tool_calls_per_day"
    CONCURRENT_CALLS = "concurrent_calls"
    BUDGET_PER_DAY = "budget_per_day"
    BUDGET_PER_MONTH = "budget_per_month"


BUDGETS: Final = frozenset({QuotaLimit.BUDGET_PER_DAY, QuotaLimit.BUDGET_PER_MONTH})
"""Limits that are amounts of money."""


@dataclass(frozen=True)
class Limits:
    """What a key may spend; None sets no limit."""

    requests_per_minute: int | None = None
    requests_per_day: int | None = None
    tool_calls_per_minute: int | None = None
    tool_calls_per_day: int | None = None
    concurrent_calls: int | None = None
    budget_per_day: int | None = None
    budget_per_month: int | None = None


@dataclass(frozen=True)
class Spent:
    """What a key has spent in the windows that begin at `minute`, `day` and `month`."""

    minute: datetime
    day: datetime
    month: datetime
    minute_requests: int = 0
    minute_calls: int = 0
    day_requests: int = 0
    day_calls: int = 0
    day_cost: int = 0
    month_cost: int = 0


@dataclass(frozen=True)
class Demand:
    """What is asked for at once; `cost` is None where only the answer tells it."""

    requests: int = 1
    calls: int = 0
    cost: int | None = 0


ONE_CHAT: Final = Demand(cost=None)
"""A chat request, whose cost its answer tells."""


@dataclass(frozen=True)
class Exceeded:
    """The limit that was run into; `resets_at` is None where no time resets it."""

    limit: QuotaLimit
    limit_value: int
    used: int
    resets_at: datetime | None
    retry_after_s: int

    @property
    def details(self) -> dict[str, JSON]:
        """The refusal's details as callers get them; money as decimal text."""
        shown = money_text if self.limit in BUDGETS else int
        return {
            "limit": self.limit.value,
            "limit_value": shown(self.limit_value),
            "used": shown(self.used),
            "resets_at": None if self.resets_at is None else self.resets_at.isoformat(),
            "retry_after": self.retry_after_s,
        }

    def error_of(self, tool: str) -> CallError:
        """Return the refusal of a call of a tool; nothing was sent."""
        details: dict[str, JSON] = {**self.details, "tool": tool, "outcome": "not_sent"}
        return call_error(ErrorCode.QUOTA_EXCEEDED, details, Classification.AUTHORIZATION, retryable=True)


def nothing_spent(now: datetime) -> Spent:
    """Return the windows of a time, with nothing spent in them."""
    minute = now.replace(second=0, microsecond=0)
    day = minute.replace(hour=0, minute=0)
    return Spent(minute, day, day.replace(day=1))


def spent_at(spent: Spent, now: datetime) -> Spent:
    """Return what counts at a time: a window that has ended counts no more.

    Processes' clocks differ a little; a window that another process has begun already is not taken back.
    """
    fresh = nothing_spent(now)
    if fresh.minute > spent.minute:
        spent = replace(spent, minute=fresh.minute, minute_requests=0, minute_calls=0)
    if fresh.day > spent.day:
        spent = replace(spent, day=fresh.day, day_requests=0, day_calls=0, day_cost=0)
    if fresh.month > spent.month:
        spent = replace(spent, month=fresh.month, month_cost=0)
    return spent


def charged(spent: Spent, demand: Demand) -> Spent:
    """Return what is spent once a demand is met."""
    cost = demand.cost or 0
    return replace(
        spent,
        minute_requests=spent.minute_requests + demand.requests,
        minute_calls=spent.minute_calls + demand.calls,
        day_requests=spent.day_requests + demand.requests,
        day_calls=spent.day_calls + demand.calls,
        day_cost=spent.day_cost + cost,
        month_cost=spent.month_cost + cost,
    )


def denied(spent: Spent, demand: Demand) -> Spent:
    """Return what is spent by a demand that is refused: its requests and nothing else."""
    return charged(spent, Demand(demand.requests))


def judge(limits: Limits, spent: Spent, demand: Demand, now: datetime) -> Exceeded | None:
    """Say which limit a demand would break, None for none; of several, the one that lasts longest.

    `spent` is of the windows of `now`. How many calls run at once is judged apart, since only rows tell.
    """
    minute, day = spent.minute + timedelta(minutes=1), spent.day + timedelta(days=1)
    month = (spent.month + timedelta(days=32)).replace(day=1)
    counted = (
        (QuotaLimit.BUDGET_PER_MONTH, limits.budget_per_month, spent.month_cost, month),
        (QuotaLimit.BUDGET_PER_DAY, limits.budget_per_day, spent.day_cost, day),
        (QuotaLimit.REQUESTS_PER_DAY, limits.requests_per_day, spent.day_requests, day),
        (QuotaLimit.TOOL_CALLS_PER_DAY, limits.tool_calls_per_day, spent.day_calls, day),
        (QuotaLimit.REQUESTS_PER_MINUTE, limits.requests_per_minute, spent.minute_requests, minute),
        (QuotaLimit.TOOL_CALLS_PER_MINUTE, limits.tool_calls_per_minute, spent.minute_calls, minute),
    )
    for limit, most, used, resets_at in counted:
        if most is not None and _breaks(limit, most, used, demand):
            wait_s = max(1, math.ceil((resets_at - now).total_seconds()))
            return Exceeded(limit, most, used, resets_at, wait_s)
    return None


def judge_concurrency(limits: Limits, running: int) -> Exceeded | None:
    """Say whether one call more than those that run already is too many."""
    most = limits.concurrent_calls
    if most is None or running < most:
        return None
    return Exceeded(QuotaLimit.CONCURRENT_CALLS, most, running, None, CONCURRENCY_RETRY_S)


def _breaks(limit: QuotaLimit, most: int, used: int, demand: Demand) -> bool:
    if limit in BUDGETS:
        # A cost that is not known yet is taken where anything is left; one that is known must fit.
        return used >= most if demand.cost is None else demand.cost > 0 and used + demand.cost > most
    asked = demand.requests if limit.value.startswith("requests") else demand.calls
    return asked > 0 and used + asked > most


def money_text(units: int) -> str:
    """Write an amount as operators write it, without zeros that say nothing."""
    sign = "-" if units < 0 else ""
    whole, part = divmod(abs(units), MONEY_UNITS)
    return f"{sign}{whole}.{part:09}".rstrip("0").rstrip(".")


def money_units(text: str) -> int:
    """Read an amount written as decimal text with at most nine decimals."""
    whole, _, part = text.partition(".")
    return int(whole) * MONEY_UNITS + int(part.ljust(9, "0"))


def price_of(prices: dict[str, str] | None, tool: str) -> int:
    """Return what one call of a tool costs by a connection's prices: its own, else that of `*`, else nothing.

    `tool` is the upstream name.
    """
    if not prices:
        return 0
    text = prices.get(tool, prices.get("*"))
    return 0 if text is None else money_units(text)


LIMIT_FIELDS: Final = tuple(field.name for field in fields(Limits))
"""The names of all limits, in the order in which they are shown."""
