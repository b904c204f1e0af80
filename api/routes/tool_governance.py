"""Tool definitions on the control plane: what may be bound, and what was accepted."""

from typing import Annotated

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
from governance.codes import ErrorCode

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
    shown = await deps.database.read(read_definition, definition_id)
    return JSONResponse(shown, headers={"etag": shown["etag"]})


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
    request_id: str = request.state.request_id
    shown = await deps.database.write(
        put_approved, definition_id, body.implementations, if_match_of(request), request_id
    )
    return JSONResponse(shown, headers={"etag": shown["etag"]})


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
    request_id: str = request.state.request_id
    shown = await deps.database.write(
        put_idempotency, definition_id, body.idempotency, if_match_of(request), request_id
    )
    return JSONResponse(shown, headers={"etag": shown["etag"]})


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
    request_id: str = request.state.request_id
    shown = await deps.database.write(
        put_timeout, definition_id, body.timeout_s, if_match_of(request), request_id
    )
    return JSONResponse(shown, headers={"etag": shown["etag"]})


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
    request_id: str = request.state.request_id
    shown = await deps.database.write(
        put_pin, definition_id, body.content_digest, if_match_of(request), request_id
    )
    return JSONResponse(shown, headers={"etag": shown["etag"]})


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
    request_id: str = request.state.request_id
    shown = await deps.database.write(delete_pin, definition_id, if_match_of(request), request_id)
    return JSONResponse(shown, headers={"etag": shown["etag"]})


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
    request_id: str = request.state.request_id
    shown = await deps.database.write(
        put_approval, definition_id, if_match_of(request), request_id, required=body.required
    )
    return JSONResponse(shown, headers={"etag": shown["etag"]})


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
    request_id: str = request.state.request_id
    shown = await deps.database.write(add_candidate, definition_id, body, if_match_of(request), request_id)
    return JSONResponse(shown, 201, headers={"etag": shown["etag"]})


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
    request_id: str = request.state.request_id
    shown = await deps.database.write(
        remove_candidate, definition_id, implementation_id, if_match_of(request), request_id
    )
    return JSONResponse(shown, headers={"etag": shown["etag"]})
