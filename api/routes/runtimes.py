"""Execution runtimes, registered by an operator."""

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from api.bodies import read_model
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.etags import if_match_of
from api.identity import require_admin
from api.pages import DEFAULT_PAGE, Cursor, Limit
from api.programs import add_secret_of_runtime, create_runtime, edit_runtime, list_runtimes, read_runtime
from api.schemas.programs import (
    CreateRuntimeBody,
    EditRuntimeBody,
    NewCredentialBody,
    RuntimeBody,
    RuntimePage,
)
from governance.codes import ErrorCode

router = APIRouter(prefix="/api/v1/runtimes", tags=["programs"], dependencies=[Depends(require_admin)])


@router.post(
    "",
    operation_id="createRuntime",
    status_code=201,
    openapi_extra=json_body(CreateRuntimeBody),
    responses={201: {"model": RuntimeBody}, **refusals(*CONTROL_PLANE, *BODY, ErrorCode.CONFLICT)},
    response_class=Response,
)
async def create(request: Request, deps: Deps) -> Response:
    """Register a runtime; its secret is in this answer and nowhere else. It declares its tools itself."""
    body = await read_model(request, CreateRuntimeBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    shown = await deps.database.write(create_runtime, body, request_id)
    headers = {"location": f"/api/v1/runtimes/{shown['name']}", "etag": shown["etag"]}
    return JSONResponse(shown, 201, headers)


@router.get(
    "",
    operation_id="listRuntimes",
    responses={200: {"model": RuntimePage}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def list_all(deps: Deps, limit: Limit = DEFAULT_PAGE, cursor: Cursor = None) -> Response:
    """List runtimes by name."""
    return JSONResponse(await deps.database.read(list_runtimes, limit, cursor))


@router.get(
    "/{name}",
    operation_id="getRuntime",
    responses={200: {"model": RuntimeBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def look(deps: Deps, name: str) -> Response:
    """Look at a runtime and what it last declared."""
    shown = await deps.database.read(read_runtime, name)
    return JSONResponse(shown, headers={"etag": shown["etag"]})


@router.patch(
    "/{name}",
    operation_id="editRuntime",
    openapi_extra=json_body(EditRuntimeBody),
    responses={
        200: {"model": RuntimeBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED),
    },
    response_class=Response,
)
async def edit(request: Request, deps: Deps, name: str) -> Response:
    """Take a runtime out of use, or back; a disabled one brings no tools and may not call."""
    body = await read_model(request, EditRuntimeBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    shown = await deps.database.write(
        edit_runtime, name, enabled=body.enabled, if_match=if_match_of(request), request_id=request_id
    )
    return JSONResponse(shown, headers={"etag": shown["etag"]})


@router.post(
    "/{name}/credentials",
    operation_id="addRuntimeCredential",
    status_code=201,
    responses={201: {"model": NewCredentialBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def add_credential(request: Request, deps: Deps, name: str) -> Response:
    """Make a further secret of a runtime; it is in this answer and nowhere else."""
    request_id: str = request.state.request_id
    return JSONResponse(await deps.database.write(add_secret_of_runtime, name, request_id), 201)
