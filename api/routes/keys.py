"""Keys: the sub-accounts that call tools, and their secrets."""

from datetime import timedelta

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.bodies import read_model
from api.changes import record_change
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.errors import APIProblem, not_found
from api.etags import check_if_match, etag_of, if_match_of
from api.identity import require_admin
from api.pages import DEFAULT_PAGE, Cursor, Limit, id_of, page_of
from api.schemas.keys import CreateKeyBody, EditKeyBody, KeyBody, KeyPage, NewSecretBody, RotateSecretBody
from api.schemas.values import PublicId
from governance.canonical import JSON
from governance.codes import ErrorCode
from models.base import new_id, utc_now
from models.database import ReadSession, WriteSession
from models.key import ApiKey, KeySecret, add_secret, expire_secrets

router = APIRouter(prefix="/api/v1/keys", tags=["keys"], dependencies=[Depends(require_admin)])


@router.post(
    "",
    operation_id="createKey",
    status_code=201,
    openapi_extra=json_body(CreateKeyBody),
    responses={201: {"model": NewSecretBody}, **refusals(*CONTROL_PLANE, *BODY, ErrorCode.CONFLICT)},
    response_class=Response,
)
async def create_key(request: Request, deps: Deps) -> Response:
    """Make a key; its secret is in this answer and nowhere else."""
    body = await read_model(request, CreateKeyBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    shown = await deps.database.write(_create, body, deps.settings.key_prefix, request_id)
    return JSONResponse(shown, 201, {"location": f"/api/v1/keys/{shown['id']}", "etag": shown["etag"]})


@router.get(
    "",
    operation_id="listKeys",
    responses={200: {"model": KeyPage}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def list_keys(deps: Deps, limit: Limit = DEFAULT_PAGE, cursor: Cursor = None) -> Response:
    """List keys, newest first."""
    return JSONResponse(await deps.database.read(_list, limit, cursor))


@router.get(
    "/{key_id}",
    operation_id="getKey",
    responses={200: {"model": KeyBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get_key(deps: Deps, key_id: PublicId) -> Response:
    """Look at a key."""
    shown = await deps.database.read(_get, key_id)
    return JSONResponse(shown, headers={"etag": shown["etag"]})


@router.patch(
    "/{key_id}",
    operation_id="editKey",
    openapi_extra=json_body(EditKeyBody),
    responses={
        200: {"model": KeyBody},
        **refusals(
            *CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.PRECONDITION_FAILED
        ),
    },
    response_class=Response,
)
async def edit_key(request: Request, deps: Deps, key_id: PublicId) -> Response:
    """Change a key; fields that are absent stay as they are."""
    body = await read_model(request, EditKeyBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    shown = await deps.database.write(_edit, key_id, body, if_match_of(request), request_id)
    return JSONResponse(shown, headers={"etag": shown["etag"]})


@router.post(
    "/{key_id}/secrets",
    operation_id="rotateSecret",
    status_code=201,
    openapi_extra=json_body(RotateSecretBody),
    responses={201: {"model": NewSecretBody}, **refusals(*CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def rotate_secret(request: Request, deps: Deps, key_id: PublicId) -> Response:
    """Give a key a new secret; the ones before it end after `overlap_s` seconds."""
    body = await read_model(request, RotateSecretBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    prefix = deps.settings.key_prefix
    return JSONResponse(await deps.database.write(_rotate, key_id, body.overlap_s, prefix, request_id), 201)


@router.delete(
    "/{key_id}",
    operation_id="deleteKey",
    status_code=204,
    responses=refusals(
        *CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.PRECONDITION_FAILED
    ),
    response_class=Response,
)
async def delete_key(request: Request, deps: Deps, key_id: PublicId) -> Response:
    """Delete a key with its secrets and tool configuration; its rounds stay on record."""
    request_id: str = request.state.request_id
    await deps.database.write(_delete, key_id, if_match_of(request), request_id)
    return Response(status_code=204)


def load_key(session: Session, key_id: str, *, for_update: bool = False) -> ApiKey:
    """Return a key, locked against other edits if asked; raises not_found."""
    key = session.get(ApiKey, key_id, with_for_update=for_update)
    if key is None:
        raise not_found("key", key_id)
    return key


def show_key(session: Session, key: ApiKey) -> dict[str, JSON]:
    """Return a key as the control plane shows it."""
    secrets = session.scalars(select(KeySecret).where(KeySecret.key_id == key.id).order_by(KeySecret.id))
    return {
        "id": key.id,
        **_settings(key),
        "has_tool_config": key.has_tool_config,
        "secrets": [
            {
                "id": secret.id,
                "hint": secret.hint,
                "created_at": secret.created_at.isoformat(),
                "expires_at": None if secret.expires_at is None else secret.expires_at.isoformat(),
            }
            for secret in secrets
        ],
        "created_at": key.created_at.isoformat(),
        "updated_at": key.updated_at.isoformat(),
        "etag": etag_of(_settings(key)),
    }


def _settings(key: ApiKey) -> dict[str, JSON]:
    return {
        "name": key.name,
        "enabled": key.enabled,
        "request_filter": key.request_filter.value,
        "may_explain": key.may_explain,
        "core_tools": key.core_tools,
    }


def _create(session: WriteSession, body: CreateKeyBody, prefix: str, request_id: str) -> dict[str, JSON]:
    key = ApiKey(
        id=new_id(),
        name=body.name,
        enabled=True,
        request_filter=body.request_filter,
        has_tool_config=False,
        may_explain=body.may_explain,
        core_tools=body.core_tools,
    )
    session.add(key)
    _flush_named(session, body.name)
    secret = add_secret(session, key.id, prefix)
    record_change(session, request_id, "create_key", key=key.id, settings=_settings(key))
    return {**show_key(session, key), "secret": secret.text}


def _flush_named(session: WriteSession, name: str) -> None:
    try:
        session.flush()
    except IntegrityError as error:
        raise APIProblem(ErrorCode.CONFLICT, {"what": "key", "name": name}) from error


def _list(session: ReadSession, limit: int, cursor: str | None) -> dict[str, JSON]:
    query = select(ApiKey).order_by(ApiKey.id.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(ApiKey.id < id_of(cursor))
    rows = session.scalars(query).all()
    return page_of(rows, limit, lambda key: show_key(session, key), lambda key: key.id)


def _get(session: ReadSession, key_id: str) -> dict[str, JSON]:
    return show_key(session, load_key(session, key_id))


def _edit(
    session: WriteSession, key_id: str, body: EditKeyBody, if_match: str | None, request_id: str
) -> dict[str, JSON]:
    key = load_key(session, key_id, for_update=True)
    check_if_match(if_match, etag_of(_settings(key)), "key")
    changes = body.model_dump(exclude_unset=True, exclude_none=True)
    for field, value in changes.items():
        setattr(key, field, value)
    key.updated_at = utc_now()
    _flush_named(session, key.name)
    record_change(session, request_id, "edit_key", key=key.id, settings=_settings(key))
    return show_key(session, key)


def _rotate(
    session: WriteSession, key_id: str, overlap_s: int, prefix: str, request_id: str
) -> dict[str, JSON]:
    key = load_key(session, key_id, for_update=True)
    secret = add_secret(session, key.id, prefix)
    ended = expire_secrets(session, key.id, secret.secret_id, utc_now() + timedelta(seconds=overlap_s))
    record_change(
        session,
        request_id,
        "rotate_secret",
        key=key.id,
        secret=secret.secret_id,
        overlap_s=overlap_s,
        ended_secrets=ended,
    )
    return {**show_key(session, key), "secret": secret.text}


def _delete(session: WriteSession, key_id: str, if_match: str | None, request_id: str) -> None:
    key = load_key(session, key_id, for_update=True)
    check_if_match(if_match, etag_of(_settings(key)), "key")
    # Read before the flush: afterwards, where it fails, there is no transaction to read in.
    settings, name = _settings(key), key.name
    session.delete(key)
    try:
        session.flush()
    except IntegrityError as error:
        # A program acts as this key; it would be left without a sub-account.
        raise APIProblem(ErrorCode.CONFLICT, {"what": "program acting as key", "name": name}) from error
    record_change(session, request_id, "delete_key", key=key_id, settings=settings)
