"""Chat completions: the key's tools are added, the model's suggestions returned, and nothing is executed."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from activities.chat_http.errors import ChatError
from activities.chat_http.types import Completion
from api.chat import PreparedChat, prepare_chat, problem_of_chat, shown_answer
from api.chat_feed import ChatFeed
from api.chat_ledger import CANCELED, ChatOutcome, meter_chat, open_chat
from api.chat_stream import ChatStream
from api.deps import APIDeps
from api.disconnects import CallerGone, unless_gone
from api.documented import BODY, DATA_PLANE, json_body, refusals
from api.identity import Caller, DataCaller
from api.schemas.chat import ChatBody, ChatCompletionBody
from api.schemas.providers import ModelListBody
from governance.canonical import JSON
from governance.codes import ErrorCode
from models.database import ReadSession
from models.key import ApiKey
from models.provider import load_model_names

CLIENT_CLOSED_REQUEST = 499
"""The status, which nobody reads, of a request whose caller went away; the number is nginx's."""

router = APIRouter(tags=["data plane"])


@router.post(
    "/v1/chat/completions",
    operation_id="createChatCompletion",
    openapi_extra=json_body(ChatBody),
    responses={
        200: {
            "model": ChatCompletionBody,
            "content": {"text/event-stream": {}},
            "description": "The answer; with `stream`, its chunks as server-sent events.",
        },
        **refusals(
            *DATA_PLANE,
            *BODY,
            ErrorCode.MODEL_NOT_FOUND,
            ErrorCode.PROMPT_TOO_LARGE,
            ErrorCode.QUOTA_EXCEEDED,
            ErrorCode.PROVIDER_RATE_LIMITED,
            ErrorCode.PROVIDER_CREDITS_EXHAUSTED,
            ErrorCode.PROVIDER_AUTH_EXPIRED,
            ErrorCode.PROVIDER_OVERLOADED,
            ErrorCode.PROVIDER_UNREACHABLE,
            ErrorCode.PROVIDER_REJECTED,
            ErrorCode.INVALID_PROVIDER_RESPONSE,
            alternatives=(502, 504),
        ),
    },
    response_class=Response,
)
async def create_chat_completion(caller: Caller) -> Response:
    """Ask a model, in OpenAI's form, streamed or not; the tools that this request may use are added.

    The caller's own tools and its `tool_choice` are kept, and a tool that it brought is not added again. The
    answer's tool calls are suggestions: send one to `/v1/mcp/tool/execute` to have it executed. The header
    `x-sluicegate-tools` tells how many tools were added, `x-sluicegate-no-tools` why none was.

    A stream that breaks off ends with an event `{"error": {...}}` and without `[DONE]`.
    """
    body = await caller.body(ChatBody)
    chat = await caller.read(prepare_chat, caller, body)
    await open_chat(caller.deps, chat)
    if chat.wants_stream:
        return await _streamed(caller, chat)
    return await _whole(caller, chat)


@router.get(
    "/v1/models",
    operation_id="listModels",
    responses={200: {"model": ModelListBody}, **refusals(*DATA_PLANE)},
    response_class=Response,
)
async def list_models(caller: Caller) -> Response:
    """List the models that may be asked for, by their neutral names."""
    return JSONResponse({"object": "list", "data": await caller.read(_models)})


async def _whole(caller: DataCaller, chat: PreparedChat) -> Response:
    outcome = ChatOutcome(None, CANCELED)
    try:
        completion = await unless_gone(caller.request.receive, _complete(caller.deps, chat))
        outcome = ChatOutcome(completion.usage)
    except CallerGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except ChatError as error:
        problem = problem_of_chat(error, chat)
        outcome = ChatOutcome(None, problem.code.value)
        raise problem from error
    finally:
        await meter_chat(caller.deps, chat, outcome)
    body = shown_answer(completion.body, chat)
    return Response(body, media_type="application/json", headers=chat.headers)


async def _complete(deps: APIDeps, chat: PreparedChat) -> Completion:
    async with deps.chat.client(chat.model.provider) as client:
        return await client.complete(chat.body)


async def _streamed(caller: DataCaller, chat: PreparedChat) -> Response:
    """Wait for the provider to begin, so that a refusal has a status; after a while begin without it."""
    deps = caller.deps
    feed = ChatFeed(deps, chat)
    feed.start()
    outcome: ChatOutcome | None = ChatOutcome(None, CANCELED)
    try:
        first = await unless_gone(caller.request.receive, feed.next(deps.chat_keep_alive_s))
        if isinstance(first, ChatError):
            problem = problem_of_chat(first, chat)
            outcome = ChatOutcome(None, problem.code.value)
            raise problem from first
        outcome = None
    except CallerGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        if outcome is not None:
            await feed.aclose()
            await meter_chat(deps, chat, outcome)

    async def settle(ended: ChatOutcome) -> None:
        await meter_chat(deps, chat, ended)

    return ChatStream(
        feed,
        chat,
        settle,
        first=first,
        keep_alive_s=deps.chat_keep_alive_s,
        language=caller.language,
    )


def _models(session: ReadSession, _key: ApiKey) -> list[dict[str, JSON]]:
    return [
        {"id": name, "object": "model", "created": int(made_at.timestamp()), "owned_by": provider}
        for name, provider, made_at in load_model_names(session)
    ]
