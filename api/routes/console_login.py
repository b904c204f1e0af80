"""Logging in to the console with the admin token, for a cookie that the control plane takes instead."""

import hmac
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import delete

from api.bodies import read_model
from api.changes import record_change
from api.console.sessions import COOKIE, check_page, clear_cookie, set_cookie
from api.deps import APIDeps, Deps
from api.documented import BODY, CONTROL_PLANE, refusals
from api.errors import APIProblem
from api.identity import require_admin
from governance.codes import ErrorCode
from models.base import utc_now
from models.console_session import ConsoleSession, find_console_session, open_console_session
from models.database import ReadSession, WriteSession
from models.key import hash_secret

router = APIRouter(prefix="/api/v1/console", tags=["console"])


class LoginBody(BaseModel):
    """What a login is made with."""

    model_config = ConfigDict(extra="forbid")

    admin_token: Annotated[str, Field(min_length=1, max_length=512)]


LOGIN_SCHEMA = {"required": True, "content": {"application/json": {"schema": LoginBody.model_json_schema()}}}


class ConsoleSessionBody(BaseModel):
    """The session of a cookie, and until when it holds."""

    expires_at: datetime


@router.post(
    "/session",
    operation_id="logIn",
    status_code=201,
    openapi_extra={"requestBody": LOGIN_SCHEMA},
    responses={201: {"model": ConsoleSessionBody}, **refusals(*CONTROL_PLANE, *BODY)},
    response_class=Response,
)
async def log_in(request: Request, deps: Deps) -> Response:
    """Open a console session with the admin token; its cookie is good for the control plane alone."""
    check_page(request)
    body = await read_model(request, LoginBody, deps.settings.body_max_bytes)
    if not hmac.compare_digest(hash_secret(body.admin_token), deps.admin_token_hash):
        raise APIProblem(ErrorCode.INVALID_KEY)
    expires_at = utc_now() + timedelta(seconds=deps.settings.console_session_s)
    secret = await deps.database.write(_open, deps, expires_at, request.state.request_id)
    response = JSONResponse({"expires_at": expires_at.isoformat()}, 201)
    set_cookie(response, request, secret, deps.settings.console_session_s)
    return response


@router.get(
    "/session",
    operation_id="getSession",
    dependencies=[Depends(require_admin)],
    responses={200: {"model": ConsoleSessionBody}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def get_session(request: Request, deps: Deps) -> Response:
    """Look at the session of the cookie."""
    expires_at = await deps.database.read(_expiry, request.cookies.get(COOKIE, ""), deps)
    if expires_at is None:
        raise APIProblem(ErrorCode.INVALID_KEY)
    return JSONResponse({"expires_at": expires_at.isoformat()})


@router.delete(
    "/session",
    operation_id="logOut",
    status_code=204,
    dependencies=[Depends(require_admin)],
    responses=refusals(*CONTROL_PLANE),
    response_class=Response,
)
async def log_out(request: Request, deps: Deps) -> Response:
    """End the session of the cookie, for whoever else holds it too."""
    secret = request.cookies.get(COOKIE, "")
    await deps.database.write(_end, secret, request.state.request_id)
    response = Response(status_code=204)
    clear_cookie(response, request)
    return response


def _open(session: WriteSession, deps: APIDeps, expires_at: datetime, request_id: str) -> str:
    row, secret = open_console_session(session, deps.admin_token_hash, expires_at)
    record_change(
        session, request_id, "console_login", console_session=row.id, expires_at=expires_at.isoformat()
    )
    return secret


def _expiry(session: ReadSession, secret: str, deps: APIDeps) -> datetime | None:
    row = find_console_session(session, secret, deps.admin_token_hash, utc_now())
    return None if row is None else row.expires_at


def _end(session: WriteSession, secret: str, request_id: str) -> None:
    ended = session.scalar(
        delete(ConsoleSession)
        .where(ConsoleSession.secret_hash == hash_secret(secret))
        .returning(ConsoleSession.id)
    )
    if ended is not None:
        record_change(session, request_id, "console_logout", console_session=ended)
