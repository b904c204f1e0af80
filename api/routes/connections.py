"""Connections: registered MCP servers, what may be executed of them, and what the last contact showed."""

from dataclasses import dataclass

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from api.bodies import read_model
from api.connections import (
    create_connection,
    delete_connection,
    edit_connection,
    list_connections,
    list_tools,
    read_connection,
)
from api.deps import APIDeps, Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.engine import Start
from api.errors import APIProblem
from api.etags import if_match_of
from api.identity import require_admin
from api.pages import DEFAULT_PAGE, Cursor, Limit
from api.schemas.connections import (
    ConnectionBody,
    ConnectionPage,
    ConnectionSettings,
    ConnectionToolsBody,
    CreateConnectionBody,
    DeletedConnectionBody,
)
from governance.canonical import JSON
from governance.codes import ErrorCode
from workflows.messages import ConnectionSyncResult

SYNC_WAIT_S = 20.0
"""How long a request waits for the verification it started."""

EDIT_CODES = (
    *CONTROL_PLANE,
    *BODY,
    ErrorCode.NOT_FOUND,
    ErrorCode.INVALID_FILTER,
    ErrorCode.PRECONDITION_FAILED,
)

router = APIRouter(prefix="/api/v1/mcp/clients", tags=["connections"], dependencies=[Depends(require_admin)])


@router.post(
    "",
    operation_id="createConnection",
    status_code=201,
    openapi_extra=json_body(CreateConnectionBody),
    responses={
        201: {"model": ConnectionBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.CONFLICT, ErrorCode.INVALID_FILTER, alternatives=(422,)),
    },
    response_class=Response,
)
async def create(request: Request, deps: Deps) -> Response:
    """Register a server, contact it and list its tools.

    A server that cannot be reached stays registered: the answer is 201 all the same, with `health: failing`
    and the stage at which it failed. `sync.state` says whether the contact has ended, still runs, or could
    not be started.
    """
    body = await read_model(request, CreateConnectionBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    connection_id, name = await deps.database.write(create_connection, deps.vault, body, request_id)
    sync = await _sync(deps, connection_id)
    shown = await deps.database.read(read_connection, name)
    headers = {"location": f"/api/v1/mcp/clients/{name}", "etag": shown["etag"]}
    return JSONResponse({**shown, "sync": sync.to_json()}, 201, headers)


@router.get(
    "",
    operation_id="listConnections",
    responses={200: {"model": ConnectionPage}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def list_all(deps: Deps, limit: Limit = DEFAULT_PAGE, cursor: Cursor = None) -> Response:
    """List connections by name."""
    return JSONResponse(await deps.database.read(list_connections, limit, cursor))


@router.get(
    "/{name}",
    operation_id="getConnection",
    responses={200: {"model": ConnectionBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get(deps: Deps, name: str) -> Response:
    """Look at a connection: settings, health, last failure with its stage, dropped tools."""
    shown = await deps.database.read(read_connection, name)
    return JSONResponse(shown, headers={"etag": shown["etag"]})


@router.patch(
    "/{name}",
    operation_id="editConnection",
    openapi_extra=json_body(ConnectionSettings),
    responses={200: {"model": ConnectionBody}, **refusals(*EDIT_CODES, alternatives=(422,))},
    response_class=Response,
)
async def edit(request: Request, deps: Deps, name: str) -> Response:
    """Change settings; fields that are absent stay as they are. A new address is contacted at once."""
    body = await read_model(request, ConnectionSettings, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    edited = await deps.database.write(
        edit_connection, deps.vault, name, body, if_match_of(request), request_id
    )
    if not edited.needs_sync:
        return JSONResponse(edited.shown, headers={"etag": edited.shown["etag"]})
    sync = await _sync(deps, edited.connection_id)
    shown = await deps.database.read(read_connection, name)
    return JSONResponse({**shown, "sync": sync.to_json()}, headers={"etag": shown["etag"]})


@router.post(
    "/{name}/disable",
    operation_id="disableConnection",
    responses={200: {"model": ConnectionBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def disable(request: Request, deps: Deps, name: str) -> Response:
    """Take a connection out of use; its tools are hidden and its settings kept. PATCH enables it again."""
    request_id: str = request.state.request_id
    body = ConnectionSettings(enabled=False)
    edited = await deps.database.write(
        edit_connection, deps.vault, name, body, if_match_of(request), request_id
    )
    return JSONResponse(edited.shown, headers={"etag": edited.shown["etag"]})


@router.post(
    "/{name}/refresh",
    operation_id="refreshConnection",
    responses={
        200: {"model": ConnectionBody},
        **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.ENGINE_UNAVAILABLE),
    },
    response_class=Response,
)
async def refresh(deps: Deps, name: str) -> Response:
    """Contact the server again and list its tools; a failure keeps the last good list."""
    connection = await deps.database.read(read_connection, name)
    sync = await _sync(deps, connection["id"])
    if sync.started is Start.REFUSED:
        raise APIProblem(ErrorCode.ENGINE_UNAVAILABLE)
    shown = await deps.database.read(read_connection, name)
    return JSONResponse({**shown, "sync": sync.to_json()}, headers={"etag": shown["etag"]})


@router.delete(
    "/{name}",
    operation_id="deleteConnection",
    responses={
        200: {"model": DeletedConnectionBody},
        **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED),
    },
    response_class=Response,
)
async def delete(request: Request, deps: Deps, name: str) -> Response:
    """Delete a connection: its tools are retired and every key's grants on it removed.

    A new connection of the same name begins with nothing.
    """
    request_id: str = request.state.request_id
    return JSONResponse(await deps.database.write(delete_connection, name, if_match_of(request), request_id))


@router.get(
    "/{name}/tools",
    operation_id="listConnectionTools",
    responses={200: {"model": ConnectionToolsBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def tools(deps: Deps, name: str) -> Response:
    """List the live tools of a connection with their policies, and the dropped ones with the reason."""
    return JSONResponse(await deps.database.read(list_tools, name))


@dataclass(frozen=True)
class _Sync:
    """What a request saw of the contact it started."""

    started: Start
    result: ConnectionSyncResult | None

    def to_json(self) -> dict[str, JSON]:
        """Return the contact as shown."""
        if self.result is None:
            return {"state": "not_started" if self.started is Start.REFUSED else "running"}
        return {
            "state": "finished",
            "ok": self.result.ok,
            "tools": self.result.tools,
            "added": self.result.added,
            "changed": self.result.changed,
            "retired": self.result.retired,
            "failure": self.result.failure,
        }


async def _sync(deps: APIDeps, connection_id: str) -> _Sync:
    started, result = await deps.engine.sync_connection(connection_id, SYNC_WAIT_S)
    return _Sync(started, result)
