"""Tool definitions on the control plane: what may be bound, and what was accepted."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVarTuple

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from api.bodies import read_model
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.etags import if_match_of
from api.identity import require_admin
from api.pages import DEFAULT_PAGE, Cursor, Limit
from api.schemas.programs import (
    AddImplementationBody,
    DefinitionBody,
    DefinitionPage,
    PutApprovalBody,
    PutApprovedBody,
    PutIdempotencyBody,
    PutPinBody,
    PutTimeoutBody,
)
from api.schemas.values import PublicId
from api.tool_definitions import (
    add_candidate,
    delete_pin,
    list_definitions,
    put_approval,
    put_approved,
    put_idempotency,
    put_pin,
    put_timeout,
    read_definition,
    remove_candidate,
)
from governance.canonical import JSON
from governance.codes import ErrorCode
from models.database import WriteSession

Ts = TypeVarTuple("Ts")

router = APIRouter(prefix="/api/v1/tools", tags=["tools"], dependencies=[Depends(require_admin)])

EDIT = refusals(
    *CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED, alternatives=(422,)
)


@router.get(
    "",
    operation_id="listToolDefinitions",
    responses={200: {"model": DefinitionPage}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def list_all(
    deps: Deps,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
    scope: Annotated[
        str | None, Query(max_length=64, description="`gateway` or `program_version:<id>`.")
    ] = None,
    tool_name: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """List tool definitions, newest first, the retired ones too."""
    return JSONResponse(await deps.database.read(list_definitions, limit, cursor, scope, tool_name))


@router.get(
    "/{definition_id}",
    operation_id="getToolDefinition",
    responses={200: {"model": DefinitionBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def look(deps: Deps, definition_id: PublicId) -> Response:
    """Look at a definition: its mode, its implementations with their policies, approved list and pin."""
    return _answer(await deps.database.read(read_definition, definition_id))


@router.put(
    "/{definition_id}/approved",
    operation_id="putApprovedImplementations",
    openapi_extra=json_body(PutApprovedBody),
    responses={200: {"model": DefinitionBody}, **EDIT},
    response_class=Response,
)
async def approve(request: Request, deps: Deps, definition_id: PublicId) -> Response:
    """Set the whole approved list. A `whitelist_only` tool may be bound to what is on it and nothing else."""
    body = await read_model(request, PutApprovedBody, deps.settings.body_max_bytes)
    return _answer(await _edited(request, deps, put_approved, definition_id, body.implementations))


@router.put(
    "/{definition_id}/idempotency",
    operation_id="putToolIdempotency",
    openapi_extra=json_body(PutIdempotencyBody),
    responses={200: {"model": DefinitionBody}, **EDIT},
    response_class=Response,
)
async def repeat(request: Request, deps: Deps, definition_id: PublicId) -> Response:
    """Say how calls of a tool may be repeated when their outcome is unknown; frozen rounds keep theirs."""
    body = await read_model(request, PutIdempotencyBody, deps.settings.body_max_bytes)
    return _answer(await _edited(request, deps, put_idempotency, definition_id, body.idempotency))


@router.put(
    "/{definition_id}/timeout",
    operation_id="putToolTimeout",
    openapi_extra=json_body(PutTimeoutBody),
    responses={200: {"model": DefinitionBody}, **EDIT},
    response_class=Response,
)
async def limit_time(request: Request, deps: Deps, definition_id: PublicId) -> Response:
    """Say how long a call of a tool may take, before its connection's limit; frozen rounds keep theirs."""
    body = await read_model(request, PutTimeoutBody, deps.settings.body_max_bytes)
    return _answer(await _edited(request, deps, put_timeout, definition_id, body.timeout_s))


@router.put(
    "/{definition_id}/pin",
    operation_id="putToolPin",
    openapi_extra=json_body(PutPinBody),
    responses={200: {"model": DefinitionBody}, **EDIT},
    response_class=Response,
)
async def pin(request: Request, deps: Deps, definition_id: PublicId) -> Response:
    """Accept a tool as it is declared now; when its source changes it, it is refused until accepted again."""
    body = await read_model(request, PutPinBody, deps.settings.body_max_bytes)
    return _answer(await _edited(request, deps, put_pin, definition_id, body.content_digest))


@router.delete(
    "/{definition_id}/pin",
    operation_id="deleteToolPin",
    responses={
        200: {"model": DefinitionBody},
        **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED),
    },
    response_class=Response,
)
async def unpin(request: Request, deps: Deps, definition_id: PublicId) -> Response:
    """Accept whatever the tool's source declares, now and later."""
    return _answer(await _edited(request, deps, delete_pin, definition_id))


@router.put(
    "/{definition_id}/approval",
    operation_id="putToolApproval",
    openapi_extra=json_body(PutApprovalBody),
    responses={200: {"model": DefinitionBody}, **EDIT},
    response_class=Response,
)
async def require_approval(request: Request, deps: Deps, definition_id: PublicId) -> Response:
    """Say whether a person has to approve each call of a tool. It counts at once, for running rounds too.

    Nothing takes approvals yet: a call that needs one is refused with `approval_unavailable`.
    """
    body = await read_model(request, PutApprovalBody, deps.settings.body_max_bytes)
    return _answer(await _edited(request, deps, partial(put_approval, required=body.required), definition_id))


@router.post(
    "/{definition_id}/implementations",
    operation_id="addImplementation",
    status_code=201,
    openapi_extra=json_body(AddImplementationBody),
    responses={
        201: {"model": DefinitionBody},
        **refusals(
            *CONTROL_PLANE,
            *BODY,
            ErrorCode.NOT_FOUND,
            ErrorCode.IMPLEMENTATION_NOT_ALLOWED,
            ErrorCode.WRONG_STATE,
            ErrorCode.PRECONDITION_FAILED,
            alternatives=(422,),
        ),
    },
    response_class=Response,
)
async def add(request: Request, deps: Deps, definition_id: PublicId) -> Response:
    """Let a tool of a connection stand in for a tool: rounds and tasks may ask for it by its reference.

    It follows the listing of its own connection. A `whitelist_only` tool needs it on the approved list too.
    """
    body = await read_model(request, AddImplementationBody, deps.settings.body_max_bytes)
    shown = await _edited(request, deps, add_candidate, definition_id, body)
    return _answer(shown, 201)


@router.delete(
    "/{definition_id}/implementations/{implementation_id}",
    operation_id="removeImplementation",
    responses={
        200: {"model": DefinitionBody},
        **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.WRONG_STATE, ErrorCode.PRECONDITION_FAILED),
    },
    response_class=Response,
)
async def remove(
    request: Request, deps: Deps, definition_id: PublicId, implementation_id: PublicId
) -> Response:
    """Take an implementation away that an operator added; tasks that were frozen with it keep it."""
    return _answer(await _edited(request, deps, remove_candidate, definition_id, implementation_id))


async def _edited(
    request: Request,
    deps: Deps,
    edit: Callable[[WriteSession, *Ts, str | None, str], dict[str, JSON]],
    *arguments: *Ts,
) -> dict[str, JSON]:
    """Make an edit in one transaction, on the version that the request names, and return what it shows."""
    request_id: str = request.state.request_id
    return await deps.database.write(edit, *arguments, if_match_of(request), request_id)


def _answer(shown: dict[str, JSON], status: int = 200) -> Response:
    return JSONResponse(shown, status, headers={"etag": shown["etag"]})
