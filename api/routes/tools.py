"""The tools that a request may use."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from api.catalog import HiddenTool, functions_of, hidden_tools, list_text
from api.documented import DATA_PLANE, refusals
from api.errors import APIProblem
from api.identity import Caller, DataCaller
from api.schemas.calls import ToolListBody
from governance.codes import ErrorCode
from models.catalog import load_world
from models.database import ReadSession
from models.key import ApiKey

router = APIRouter(tags=["data plane"])


@router.get(
    "/v1/mcp/tools",
    operation_id="listTools",
    responses={200: {"model": ToolListBody}, **refusals(*DATA_PLANE)},
    response_class=Response,
)
async def list_tools(
    caller: Caller,
    explain: Annotated[bool, Query(description="Also list what is hidden and why.")] = False,  # noqa: FBT002
) -> Response:
    """List the tools that this request may use, in function format.

    `explain=1` also lists the hidden ones with the level that removed each; the key must be allowed to.
    """
    texts, hidden = await caller.read(_list, caller, explain=explain)
    return Response(list_text(texts, hidden), media_type="application/json")


def _list(
    session: ReadSession, key: ApiKey, caller: DataCaller, *, explain: bool
) -> tuple[list[str], list[HiddenTool] | None]:
    if explain and not key.may_explain:
        raise APIProblem(ErrorCode.FORBIDDEN, {"reason": "key_may_not_explain"})
    world = load_world(session, key, caller.request_filter)
    texts = functions_of(session, world.visible(), caller.deps.functions)
    return texts, hidden_tools(world) if explain else None
