"""Quotas of keys on the control plane."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Count = Annotated[int, Field(ge=0, le=1_000_000_000_000)]
"""A number of requests or calls; 0 lets none through."""

Money = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?$"),
    Field(description="In the currency of the installation, as decimal text."),
]
"""An exact amount of money."""


class PutQuotaBody(BaseModel):
    """Everything that limits a key; what is absent or null sets no limit."""

    model_config = ConfigDict(extra="forbid")

    requests_per_minute: Annotated[Count | None, Field(description="Chat requests and tool calls.")] = None
    requests_per_day: Count | None = None
    tool_calls_per_minute: Count | None = None
    tool_calls_per_day: Count | None = None
    concurrent_calls: Annotated[
        Count | None, Field(description="Tool calls and chat requests under way at once.")
    ] = None
    budget_per_day: Money | None = None
    budget_per_month: Money | None = None


class QuotaSpentBody(BaseModel):
    """What a key has spent in the windows of now, which begin at whole minutes, days and months of UTC."""

    requests_this_minute: int
    requests_today: int
    tool_calls_this_minute: int
    tool_calls_today: int
    concurrent_calls: int
    cost_today: str
    cost_this_month: str
    minute_resets_at: datetime
    day_resets_at: datetime
    month_resets_at: datetime


class QuotaBody(BaseModel):
    """A key's quota; `limits` and `spent` are null where it has none, and then nothing is counted."""

    limits: PutQuotaBody | None
    spent: QuotaSpentBody | None
    etag: str
