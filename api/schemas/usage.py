"""Usage: sums of what keys asked for, on both planes."""

from datetime import date
from typing import Annotated

from pydantic import BaseModel, Field

from api.pages import DEFAULT_PAGE, LARGEST_PAGE
from api.schemas.quotas import PutQuotaBody, QuotaSpentBody
from api.schemas.values import PublicId, Text
from models.usage import UsageGroup


class OwnUsageQuery(BaseModel):
    """What of a key's usage is asked for."""

    group_by: Annotated[
        list[UsageGroup],
        Field(max_length=4, description="What to sum by, repeated for several; without it, one sum of all."),
    ] = []
    tool: Annotated[Text | None, Field(max_length=512, description="The exposed name of a tool.")] = None
    model: Annotated[Text | None, Field(max_length=128, description="The neutral name of a model.")] = None
    round_id: PublicId | None = None
    first_day: Annotated[date | None, Field(description="The first day that counts, in UTC.")] = None
    last_day: Annotated[date | None, Field(description="The last day that counts, in UTC.")] = None
    limit: Annotated[int, Field(ge=1, le=LARGEST_PAGE, description="Rows in a page.")] = DEFAULT_PAGE
    cursor: Annotated[
        str | None, Field(max_length=4096, description="The `next_cursor` of the page before.")
    ] = None


class UsageQuery(OwnUsageQuery):
    """What of all keys' usage is asked for."""

    key: Annotated[PublicId | None, Field(description="The key's id.")] = None


class UsageSumBody(BaseModel):
    """A sum of requests. `cost` is in the currency of the installation, as decimal text."""

    requests: int
    tool_calls: int
    chat_requests: int
    succeeded: int
    failed: int
    canceled: int
    unknown: int
    denied: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: str


class UsageRowBody(UsageSumBody):
    """A sum by what was asked to group by; the other names are null, as is a tool of chat requests."""

    key_id: str | None
    tool: str | None
    model: str | None
    day: date | None


class UsagePage(BaseModel):
    """Sums in the order of what they are grouped by, and the sum of all that the filters let through."""

    items: list[UsageRowBody]
    total: UsageSumBody
    next_cursor: str | None


class OwnQuotaBody(BaseModel):
    """What limits the caller's key, and what it has spent of that."""

    limits: PutQuotaBody
    spent: QuotaSpentBody


class OwnUsagePage(UsagePage):
    """The caller's own usage, and its quota where it has one."""

    quota: OwnQuotaBody | None
