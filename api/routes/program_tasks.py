"""The program plane's conversations and tasks."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from api.bodies import check_model
from api.catalog import list_text
from api.documented import BODY, PROGRAM_PLANE, json_body, refusals
from api.errors import problem_of_filter
from api.program_identity import OnProgramPlane
from api.rounds import stop_round
from api.schemas.calls import ToolListBody
from api.schemas.programs import ConversationBody, CreateConversationBody, CreateTaskBody, TaskBody
from api.schemas.values import PublicId, Text
from api.tasks import (
    AskedTools,
    begin_conversation,
    finish_task,
    read_task,
    start_task,
    tools_in_conversation,
)
from governance.codes import ErrorCode
from governance.filters import CLIENTS_HEADER, TOOLS_HEADER, InvalidFilter, parse_request_filter
from models.task import TaskState

router = APIRouter(prefix="/program_api", tags=["program plane"])

ENDING = refusals(*PROGRAM_PLANE, ErrorCode.NOT_FOUND, ErrorCode.WRONG_STATE)


@router.post(
    "/conversations",
    operation_id="beginConversation",
    status_code=201,
    openapi_extra=json_body(CreateConversationBody),
    responses={201: {"model": ConversationBody}, **refusals(*PROGRAM_PLANE, *BODY, alternatives=(422,))},
    response_class=Response,
)
async def begin(caller: OnProgramPlane) -> Response:
    """Begin a conversation of this program version."""
    body = check_model(CreateConversationBody, await caller.body())
    return JSONResponse(await caller.write(begin_conversation, body), 201)


@router.get(
    "/conversations/{conversation_id}/tools",
    operation_id="listConversationTools",
    responses={
        200: {"model": ToolListBody},
        **refusals(*PROGRAM_PLANE, ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND, ErrorCode.INVALID_FILTER),
    },
    response_class=Response,
)
async def list_tools(
    request: Request,
    caller: OnProgramPlane,
    conversation_id: PublicId,
    profile: Annotated[
        Text | None, Query(max_length=255, description="The profile that a round would ask for.")
    ] = None,
    explain: Annotated[bool, Query(description="Also list what is hidden and why.")] = False,  # noqa: FBT002
) -> Response:
    """List the tools that a round in this conversation may use now, in function format.

    The headers `x-mcp-include-clients` and `x-mcp-include-tools` narrow it as they do a round. `explain=1`
    also lists the hidden tools with the level that removed each; the program's key must be allowed to.
    """
    wanted = parse_request_filter(
        request.headers.getlist(CLIENTS_HEADER) or None, request.headers.getlist(TOOLS_HEADER) or None
    )
    if isinstance(wanted, InvalidFilter):
        raise problem_of_filter(wanted)
    asked = AskedTools(conversation_id, profile, wanted, explain)
    texts, hidden = await caller.read(tools_in_conversation, asked, caller.deps.functions)
    return Response(list_text(texts, hidden), media_type="application/json")


@router.post(
    "/tasks",
    operation_id="createTask",
    status_code=201,
    openapi_extra=json_body(CreateTaskBody),
    responses={
        201: {"model": TaskBody},
        **refusals(
            *PROGRAM_PLANE,
            *BODY,
            ErrorCode.NOT_FOUND,
            ErrorCode.WRONG_STATE,
            ErrorCode.IMPLEMENTATION_NOT_ALLOWED,
            ErrorCode.TOOL_NOT_FOUND,
            alternatives=(422,),
        ),
    },
    response_class=Response,
)
async def create(caller: OnProgramPlane) -> Response:
    """Create a task: every tool that it may use is bound now, and never again.

    A further task of the same `logical_work_id` is the next attempt, with bindings of its own.
    """
    body = check_model(CreateTaskBody, await caller.body())
    return JSONResponse(await caller.write(start_task, body), 201)


@router.get(
    "/tasks/{task_id}",
    operation_id="getTask",
    responses={200: {"model": TaskBody}, **refusals(*PROGRAM_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def look(caller: OnProgramPlane, task_id: PublicId) -> Response:
    """Look at a task of this program version and its bindings."""
    return JSONResponse(await caller.read(read_task, task_id))


@router.post(
    "/tasks/{task_id}/complete",
    operation_id="completeTask",
    responses={200: {"model": TaskBody}, **ENDING},
    response_class=Response,
)
async def complete(caller: OnProgramPlane, task_id: PublicId) -> Response:
    """End a task whose work is done; while a round of it runs it does not end. Again changes nothing."""
    return JSONResponse((await caller.write(finish_task, task_id, TaskState.COMPLETED)).shown)


@router.post(
    "/tasks/{task_id}/fail",
    operation_id="failTask",
    responses={200: {"model": TaskBody}, **ENDING},
    response_class=Response,
)
async def fail(caller: OnProgramPlane, task_id: PublicId) -> Response:
    """End a task whose work could not be done; while a round of it runs it does not end."""
    return JSONResponse((await caller.write(finish_task, task_id, TaskState.FAILED)).shown)


@router.post(
    "/tasks/{task_id}/cancel",
    operation_id="cancelTask",
    responses={200: {"model": TaskBody}, **ENDING, **refusals(ErrorCode.CANCEL_UNAVAILABLE)},
    response_class=Response,
)
async def cancel(caller: OnProgramPlane, task_id: PublicId) -> Response:
    """End a task now: it takes no more rounds, and those that run are told to stop.

    Where the engine could not be told, the answer is 503; the task has ended, and asking again tells it.
    """
    ended = await caller.write(finish_task, task_id, TaskState.CANCELED)
    for running in ended.running:
        await stop_round(caller.deps, running.id, running.workflow_id, (ended.key_id, caller.request_id))
    return JSONResponse(ended.shown)
