"""What keys asked for and what it cost, summed as the reader likes."""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.deps import Deps
from api.documented import CONTROL_PLANE, DATA_PLANE, refusals
from api.errors import malformed
from api.identity import Caller, require_admin
from api.pages import id_of
from api.routes.quotas import show_limits, show_spent
from api.schemas.usage import OwnUsagePage, OwnUsageQuery, UsagePage, UsageQuery
from governance.canonical import JSON, is_array
from governance.codes import ErrorCode
from governance.quotas import money_text
from models.base import utc_now
from models.database import ReadSession
from models.key import ApiKey
from models.quota import find_quota
from models.usage import UsageFilter, UsageGroup, UsageStatus, UsageSum, sum_usage

router = APIRouter(prefix="/api/v1", tags=["records"], dependencies=[Depends(require_admin)])
own_router = APIRouter(tags=["data plane"])


@router.get(
    "/usage",
    operation_id="sumUsage",
    responses={200: {"model": UsagePage}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get_usage(deps: Deps, asked: Annotated[UsageQuery, Query()]) -> Response:
    """Sum what keys asked for and what it cost, by key, tool, model and day.

    Every tool call and chat request counts once, when it ended or was refused.
    """
    return JSONResponse(await deps.database.read(_page, asked, asked.key))


@own_router.get(
    "/v1/usage",
    operation_id="sumOwnUsage",
    responses={200: {"model": OwnUsagePage}, **refusals(*DATA_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get_own_usage(caller: Caller, asked: Annotated[OwnUsageQuery, Query()]) -> Response:
    """Sum what this key asked for and what it cost, and show what is left of its quota."""
    return JSONResponse(await caller.read(_own_page, asked))


def _own_page(session: ReadSession, key: ApiKey, asked: OwnUsageQuery) -> dict[str, JSON]:
    quota = find_quota(session, key.id) if key.has_quota else None
    shown = None
    if quota is not None:
        shown = {"limits": show_limits(quota), "spent": show_spent(session, quota, utc_now())}
    return {**_page(session, asked, key.id), "quota": shown}


def _page(session: Session, asked: OwnUsageQuery, key_id: str | None) -> dict[str, JSON]:
    wanted = UsageFilter(key_id, asked.tool, asked.model, asked.round_id, asked.first_day, asked.last_day)
    groups = tuple(dict.fromkeys(asked.group_by))
    after = None if asked.cursor is None else _read_cursor(asked.cursor, groups)
    found = sum_usage(session, wanted, groups, after=after, limit=asked.limit + 1)
    shown = found[: asked.limit]
    return {
        "items": [_show_row(groups, row) for row in shown],
        "total": _show(sum_usage(session, wanted, ())[0]),
        "next_cursor": _write_cursor(shown[-1].group) if len(found) > asked.limit else None,
    }


def _show_row(groups: Sequence[UsageGroup], row: UsageSum) -> dict[str, JSON]:
    by = dict(zip(groups, row.group, strict=True))
    day = by.get(UsageGroup.DAY)
    return {
        "key_id": by.get(UsageGroup.KEY),
        "tool": by.get(UsageGroup.TOOL) or None,
        "model": by.get(UsageGroup.MODEL) or None,
        "day": None if day is None else day.isoformat(),
        **_show(row),
    }


def _show(row: UsageSum) -> dict[str, JSON]:
    return {
        "requests": row.requests,
        "tool_calls": row.tool_calls,
        "chat_requests": row.chats,
        **{status.value: row.by_status[status] for status in UsageStatus},
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "completion_tokens": row.completion_tokens,
        "cost": money_text(row.cost),
    }


def _write_cursor(group: Sequence[Any]) -> str:
    text = json.dumps([value.isoformat() if isinstance(value, date) else value for value in group])
    return base64.urlsafe_b64encode(text.encode()).decode()


def _read_cursor(cursor: str, groups: Sequence[UsageGroup]) -> list[Any]:
    """Read where the page before ended; raises invalid_request."""
    try:
        values: JSON = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
    except (ValueError, UnicodeError, binascii.Error, RecursionError):
        values = None
    # A cursor belongs to the groups that it was made for.
    if not is_array(values) or len(values) != len(groups) or not all(isinstance(one, str) for one in values):
        raise _not_a_cursor()
    return [_value_of(group, value) for group, value in zip(groups, values, strict=True)]


def _value_of(group: UsageGroup, text: str) -> str | date:
    if group is UsageGroup.KEY:
        return id_of(text)
    if group is not UsageGroup.DAY:
        if "\x00" in text:
            raise _not_a_cursor()
        return text
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise _not_a_cursor() from error


def _not_a_cursor() -> Exception:
    return malformed("cursor is the next_cursor of an earlier page with the same groups")
