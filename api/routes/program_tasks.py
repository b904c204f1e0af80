"""The program plane's conversations and tasks."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from api.bodies import check_model
from api.documented import BODY, PROGRAM_PLANE, json_body, refusals
from api.program_identity import OnProgramPlane
from api.schemas.programs import ConversationBody, CreateConversationBody, CreateTaskBody, TaskBody
from api.schemas.values import PublicId
from api.tasks import begin_conversation, read_task, start_task
from governance.codes import ErrorCode

router = APIRouter(prefix="/program_api", tags=["program plane"])


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
