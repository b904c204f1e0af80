"""What each key may spend: requests, tool calls, calls at once, money."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.bodies import read_model
from api.changes import record_change
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.etags import check_if_match, etag_of, if_match_of
from api.identity import require_admin
from api.routes.keys import load_key
from api.schemas.quotas import PutQuotaBody, QuotaBody
from api.schemas.values import PublicId
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.quotas import BUDGETS, LIMIT_FIELDS, Limits, money_text, money_units
from models.base import utc_now
from models.database import ReadSession, WriteSession
from models.quota import (
    KeyQuota,
    count_running,
    find_quota,
    limits_of,
    remove_quota,
    set_quota,
    spent_of,
)

WHAT = "quota"

router = APIRouter(prefix="/api/v1/mcp/keys", tags=["keys"], dependencies=[Depends(require_admin)])


@router.get(
    "/{key_id}/quota",
    operation_id="getKeyQuota",
    responses={200: {"model": QuotaBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get_key_quota(deps: Deps, key_id: PublicId) -> Response:
    """Look at a key's quota and what it has spent; `limits` is null where it has none."""
    return _shown(await deps.database.read(_get, key_id))


@router.put(
    "/{key_id}/quota",
    operation_id="putKeyQuota",
    openapi_extra=json_body(PutQuotaBody),
    responses={
        200: {"model": QuotaBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED),
    },
    response_class=Response,
)
async def put_key_quota(request: Request, deps: Deps, key_id: PublicId) -> Response:
    """Set everything that limits a key; what it has spent already counts on.

    Chat, execute, rounds, rounds started through Temporal, operators' retries and subagents move one account.
    Windows are whole minutes, days and months of UTC.
    """
    body = await read_model(request, PutQuotaBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    return _shown(await deps.database.write(_put, key_id, body, if_match_of(request), request_id))


@router.delete(
    "/{key_id}/quota",
    operation_id="deleteKeyQuota",
    responses={
        200: {"model": QuotaBody},
        **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED, alternatives=(428,)),
    },
    response_class=Response,
)
async def delete_key_quota(request: Request, deps: Deps, key_id: PublicId) -> Response:
    """Take every limit of a key away, and forget what it has spent of them; needs If-Match."""
    request_id: str = request.state.request_id
    return _shown(await deps.database.write(_delete, key_id, if_match_of(request), request_id))


def show_limits(quota: KeyQuota) -> dict[str, JSON]:
    """Return the limits of a key as shown; money as decimal text."""
    limits = limits_of(quota)
    shown: dict[str, JSON] = {}
    for name in LIMIT_FIELDS:
        value: int | None = getattr(limits, name)
        shown[name] = money_text(value) if value is not None and name in BUDGETS else value
    return shown


def show_spent(session: Session, quota: KeyQuota, now: datetime) -> dict[str, JSON]:
    """Return what counts of a key's account now, and when it counts no more."""
    spent = spent_of(quota, now)
    return {
        "requests_this_minute": spent.minute_requests,
        "requests_today": spent.day_requests,
        "tool_calls_this_minute": spent.minute_calls,
        "tool_calls_today": spent.day_calls,
        "concurrent_calls": count_running(session, quota.key_id, now),
        "cost_today": money_text(spent.day_cost),
        "cost_this_month": money_text(spent.month_cost),
        "minute_resets_at": (spent.minute + timedelta(minutes=1)).isoformat(),
        "day_resets_at": (spent.day + timedelta(days=1)).isoformat(),
        "month_resets_at": (spent.month + timedelta(days=32)).replace(day=1).isoformat(),
    }


def _shown(quota: dict[str, JSON]) -> Response:
    return JSONResponse(quota, headers={"etag": quota["etag"]})


def _show(session: Session, key_id: str) -> dict[str, JSON]:
    quota = find_quota(session, key_id)
    limits = None if quota is None else show_limits(quota)
    spent = None if quota is None else show_spent(session, quota, utc_now())
    return {"limits": limits, "spent": spent, "etag": etag_of(limits)}


def _get(session: ReadSession, key_id: str) -> dict[str, JSON]:
    return _show(session, load_key(session, key_id).id)


def _put(
    session: WriteSession, key_id: str, body: PutQuotaBody, if_match: str | None, request_id: str
) -> dict[str, JSON]:
    key = load_key(session, key_id, for_update=True)
    before = _show(session, key.id)
    check_if_match(if_match, before["etag"], WHAT)
    set_quota(session, key, _limits(body))
    shown = _show(session, key.id)
    record_change(
        session, request_id, "put_key_quota", key=key.id, before=before["limits"], after=shown["limits"]
    )
    return shown


def _delete(session: WriteSession, key_id: str, if_match: str | None, request_id: str) -> dict[str, JSON]:
    key = load_key(session, key_id, for_update=True)
    before = _show(session, key.id)
    check_if_match(if_match, before["etag"], WHAT, required=True)
    remove_quota(session, key)
    record_change(session, request_id, "delete_key_quota", key=key.id, before=before["limits"])
    return _show(session, key.id)


def _limits(body: PutQuotaBody) -> Limits:
    values: dict[str, int | None] = {}
    for name in LIMIT_FIELDS:
        value: int | str | None = getattr(body, name)
        values[name] = money_units(value) if isinstance(value, str) else value
    return Limits(**values)
