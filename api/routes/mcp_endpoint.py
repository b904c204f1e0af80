"""The inbound MCP endpoint: any MCP client uses the gateway's tools with an API key as bearer token."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from api.console.origins import may_speak_mcp
from api.deps import Deps
from api.errors import APIProblem
from api.identity import DataCaller
from api.mcp_server.endpoint import Exchange
from governance.codes import ErrorCode

router = APIRouter(tags=["mcp"], include_in_schema=False)


def mcp_caller(request: Request, deps: Deps) -> DataCaller:
    """Make the caller, once its origin may be served; raises forbidden."""
    if not may_speak_mcp(request.headers, deps.settings.mcp_allowed_origins):
        raise APIProblem(ErrorCode.FORBIDDEN, {"reason": "foreign_origin"})
    return DataCaller(request, deps)


MCPCaller = Annotated[DataCaller, Depends(mcp_caller)]


@router.post("/mcp", response_class=Response)
async def post_message(caller: MCPCaller) -> Response:
    """Take a JSON-RPC message of either era, and answer it as JSON or as an event stream."""
    return await Exchange(caller).post()


@router.get("/mcp", response_class=Response)
async def get_stream(caller: MCPCaller) -> Response:
    """Carry an answer once more whose stream broke; there is no stream for messages of our own."""
    last_event_id = caller.request.headers.get("last-event-id")
    if last_event_id is None:
        await caller.check()
        details = {"path": "/mcp", "method": "GET"}
        raise APIProblem(ErrorCode.METHOD_NOT_ALLOWED, details, headers={"allow": "POST"})
    return await Exchange(caller).resume(last_event_id)
