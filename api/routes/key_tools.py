"""What each key may use of each connection: the third level of the filter."""

from collections.abc import Sequence

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
from api.schemas.keys import PutToolConfigBody, ToolConfigBody, ToolConfigEntry
from api.schemas.values import PublicId
from api.tool_lists import checked_tool_list, invalid_list
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.filters import WILDCARD
from models.connection import load_connections
from models.database import ReadSession, WriteSession
from models.key import ApiKey, load_tool_grants, replace_tool_grants
from models.tool import load_catalog

router = APIRouter(prefix="/api/v1/mcp/keys", tags=["keys"], dependencies=[Depends(require_admin)])


@router.get(
    "/{key_id}/tools",
    operation_id="getKeyTools",
    responses={200: {"model": ToolConfigBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get_key_tools(deps: Deps, key_id: PublicId) -> Response:
    """Look at a key's tool configuration; `mcp_configs` is null where it has none."""
    return _shown(await deps.database.read(_get, key_id))


@router.put(
    "/{key_id}/tools",
    operation_id="putKeyTools",
    openapi_extra=json_body(PutToolConfigBody),
    responses={
        200: {"model": ToolConfigBody},
        **refusals(
            *CONTROL_PLANE,
            *BODY,
            ErrorCode.NOT_FOUND,
            ErrorCode.INVALID_FILTER,
            ErrorCode.PRECONDITION_FAILED,
            alternatives=(422,),
        ),
    },
    response_class=Response,
)
async def put_key_tools(request: Request, deps: Deps, key_id: PublicId) -> Response:
    """Set a key's whole tool configuration; from now on it decides, and not the request's headers.

    Connections that are left out are blocked, and `[]` grants nothing. A connection that does not exist or a
    pattern is refused; the name of a tool that does not exist yet is kept and reported as unmatched.
    """
    body = await read_model(request, PutToolConfigBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    return _shown(await deps.database.write(_put, key_id, body, if_match_of(request), request_id))


@router.delete(
    "/{key_id}/tools",
    operation_id="deleteKeyTools",
    responses={
        200: {"model": ToolConfigBody},
        **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED, alternatives=(428,)),
    },
    response_class=Response,
)
async def delete_key_tools(request: Request, deps: Deps, key_id: PublicId) -> Response:
    """Remove a key's tool configuration, which widens it to every connection's baseline; needs If-Match."""
    request_id: str = request.state.request_id
    return _shown(await deps.database.write(_delete, key_id, if_match_of(request), request_id))


def _shown(config: dict[str, JSON]) -> Response:
    return JSONResponse(config, headers={"etag": config["etag"]})


def _get(session: ReadSession, key_id: str) -> dict[str, JSON]:
    return _show(session, load_key(session, key_id))


def _put(
    session: WriteSession, key_id: str, body: PutToolConfigBody, if_match: str | None, request_id: str
) -> dict[str, JSON]:
    key = load_key(session, key_id, for_update=True)
    before = shown_configs(session, key)
    check_if_match(if_match, etag_of(before), "tool configuration")
    replace_tool_grants(session, key, checked_grants(session, body.mcp_configs))
    shown = _show(session, key)
    record_change(session, request_id, "put_key_tools", key=key.id, before=before, after=shown["mcp_configs"])
    return shown


def _delete(session: WriteSession, key_id: str, if_match: str | None, request_id: str) -> dict[str, JSON]:
    key = load_key(session, key_id, for_update=True)
    before = shown_configs(session, key)
    check_if_match(if_match, etag_of(before), "tool configuration", required=True)
    replace_tool_grants(session, key, None)
    record_change(session, request_id, "delete_key_tools", key=key.id, before=before)
    return _show(session, key)


def checked_grants(
    session: Session, entries: Sequence[ToolConfigEntry]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return an operator's entries as (connection id, tools); raises invalid_filter with 422."""
    ids = {connection.name: connection.id for connection in load_connections(session)}
    grants: dict[str, tuple[str, tuple[str, ...]]] = {}
    for number, entry in enumerate(entries):
        where = f"mcp_configs[{number}]"
        if entry.client not in ids:
            raise invalid_list(f"{where}.client", entry.client, "unknown_client")
        if entry.client in grants:
            raise invalid_list(f"{where}.client", entry.client, "duplicate_client")
        grants[entry.client] = (
            ids[entry.client],
            checked_tool_list(entry.tools_to_execute, f"{where}.tools_to_execute"),
        )
    return tuple(grants.values())


def shown_configs(session: Session, key: ApiKey) -> list[JSON] | None:
    """Return a key's tool configuration as shown, None where it has none."""
    if not key.has_tool_config:
        return None
    return [
        {"client": grant.client, "tools_to_execute": list(grant.tools_to_execute)}
        for grant in load_tool_grants(session, key.id)
    ]


def _show(session: Session, key: ApiKey) -> dict[str, JSON]:
    configs = shown_configs(session, key)
    live: set[tuple[str | None, str]] = set()
    if configs:
        live = {(tool.connection_name, tool.upstream_name) for tool in load_catalog(session)}
    return {
        "mcp_configs": configs,
        "unmatched": [
            {"client": entry["client"], "tool": tool}
            for entry in configs or ()
            for tool in entry["tools_to_execute"]
            if tool != WILDCARD and (entry["client"], tool) not in live
        ],
        "etag": etag_of(configs),
    }
