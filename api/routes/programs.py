"""Agent programs and their versions, registered by an operator."""

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import RootModel

from api.bodies import check_model, read_json, read_model
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.etags import if_match_of
from api.identity import require_admin
from api.pages import DEFAULT_PAGE, Cursor, Limit
from api.programs import (
    add_version_secret,
    create_program,
    edit_program,
    list_programs,
    list_versions,
    read_program,
    register_version,
)
from api.schemas.programs import (
    CreateProgramBody,
    EditProgramBody,
    NewCredentialBody,
    ProgramBody,
    ProgramPage,
    RegisterVersionBody,
    VersionBody,
    VersionList,
)
from api.schemas.values import AnyJSON, PublicId
from governance.codes import ErrorCode

router = APIRouter(prefix="/api/v1/programs", tags=["programs"], dependencies=[Depends(require_admin)])


class _AnyObject(RootModel[dict[str, AnyJSON]]):
    """A body of which every fault is told by the declaration's own reader."""


@router.post(
    "",
    operation_id="createProgram",
    status_code=201,
    openapi_extra=json_body(CreateProgramBody),
    responses={
        201: {"model": ProgramBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.CONFLICT, ErrorCode.NOT_FOUND),
    },
    response_class=Response,
)
async def create(request: Request, deps: Deps) -> Response:
    """Register a program.

    It acts as a key: the one named, or a new one that may use no connection until an operator grants some.
    """
    body = await read_model(request, CreateProgramBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    shown = await deps.database.write(create_program, body, request_id)
    headers = {"location": f"/api/v1/programs/{shown['name']}", "etag": shown["etag"]}
    return JSONResponse(shown, 201, headers)


@router.get(
    "",
    operation_id="listPrograms",
    responses={200: {"model": ProgramPage}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def list_all(deps: Deps, limit: Limit = DEFAULT_PAGE, cursor: Cursor = None) -> Response:
    """List programs by name."""
    return JSONResponse(await deps.database.read(list_programs, limit, cursor))


@router.get(
    "/{name}",
    operation_id="getProgram",
    responses={200: {"model": ProgramBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def look(deps: Deps, name: str) -> Response:
    """Look at a program."""
    shown = await deps.database.read(read_program, name)
    return JSONResponse(shown, headers={"etag": shown["etag"]})


@router.patch(
    "/{name}",
    operation_id="editProgram",
    openapi_extra=json_body(EditProgramBody),
    responses={
        200: {"model": ProgramBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED),
    },
    response_class=Response,
)
async def edit(request: Request, deps: Deps, name: str) -> Response:
    """Change settings; fields that are absent stay as they are. `execution_runtime: null` removes it."""
    body = await read_model(request, EditProgramBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    shown = await deps.database.write(edit_program, name, body, if_match_of(request), request_id)
    return JSONResponse(shown, headers={"etag": shown["etag"]})


@router.post(
    "/{name}/versions",
    operation_id="registerProgramVersion",
    status_code=201,
    openapi_extra=json_body(RegisterVersionBody),
    responses={
        200: {"model": VersionBody, "description": "It was registered before, exactly so."},
        201: {"model": VersionBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, alternatives=(422,)),
    },
    response_class=Response,
)
async def register(request: Request, deps: Deps, name: str) -> Response:
    """Register a version: everything that the program declares under one fingerprint, never to change.

    The answer has the version's credential, which is shown once. Other content under a fingerprint that is
    taken is 409 with the differences; malformed parts are 422 with every fault.
    """
    value = await read_json(request, deps.settings.body_max_bytes)
    body = check_model(_AnyObject, value).root
    request_id: str = request.state.request_id
    shown, is_new = await deps.database.write(register_version, name, body, request_id)
    return JSONResponse(shown, 201 if is_new else 200)


@router.get(
    "/{name}/versions",
    operation_id="listProgramVersions",
    responses={200: {"model": VersionList}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def versions(deps: Deps, name: str) -> Response:
    """List the versions of a program, oldest first."""
    return JSONResponse(await deps.database.read(list_versions, name))


@router.post(
    "/{name}/versions/{version_id}/credentials",
    operation_id="addProgramCredential",
    status_code=201,
    responses={201: {"model": NewCredentialBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def add_credential(request: Request, deps: Deps, name: str, version_id: PublicId) -> Response:
    """Make a further secret of a version; it is in this answer and nowhere else."""
    request_id: str = request.state.request_id
    return JSONResponse(await deps.database.write(add_version_secret, name, version_id, request_id), 201)
