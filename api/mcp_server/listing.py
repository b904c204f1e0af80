"""`tools/list`: the tools that a request may use, in pages."""

from sqlalchemy.orm import Session

from api.identity import DataCaller
from api.mcp_server.frames import INVALID_PARAMS, Request, RPCProblem
from api.mcp_server.results import listed_tool
from governance.canonical import JSON
from governance.names import EXPOSED_NAME
from models.catalog import load_world
from models.key import ApiKey
from models.tool import load_snapshots

PAGE = 250
"""Tools in a page."""


def list_tools(
    session: Session, key: ApiKey, caller: DataCaller, request: Request, version: str
) -> dict[str, JSON]:
    """Return a page of the visible tools by name; the cursor is the last name of the page before.

    Raises:
        RPCProblem: the cursor is none of ours.
    """
    cursor = request.params.get("cursor")
    if cursor is not None and not (isinstance(cursor, str) and EXPOSED_NAME.fullmatch(cursor)):
        raise RPCProblem(INVALID_PARAMS, "params.cursor is the nextCursor of an earlier page")
    visible = load_world(session, key, caller.request_filter).visible()
    rest = [tool for tool in visible if cursor is None or tool.exposed_name > cursor]
    page = rest[:PAGE]
    snapshots = load_snapshots(session, {tool.snapshot_digest for tool in page})
    result: dict[str, JSON] = {
        "tools": [listed_tool(snapshots[tool.snapshot_digest], version) for tool in page]
    }
    if len(rest) > PAGE:
        result["nextCursor"] = page[-1].exposed_name
    return result
