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
from api.schemas.programs import DefinitionBody, DefinitionPage, PutApprovedBody, PutPinBody
from api.schemas.values import PublicId
from api.tool_definitions import delete_pin, list_definitions, put_approved, put_pin, read_definition
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
