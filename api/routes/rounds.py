"""Rounds: start one, look at it, follow it, cancel it."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse, Response, StreamingResponse

from api.deps import APIDeps
from api.documented import BODY, DATA_PLANE, json_body, refusals
from api.errors import RETRY_AFTER_S, APIProblem
from api.events import EventFeed, parse_last_event_id
from api.identity import Caller, DataCaller
from api.results import RoundAnswer, load_answer
from api.rounds import (
    Accepted,
    AskedCall,
    AskedRound,
    find_repeat,
    join_round,
    owned_round,
    run_round,
    stop_round,
)
from api.schemas.calls import AcceptedBody, RoundBody, StartRoundBody, ToolCallBody
from api.schemas.values import IdempotencyKey, PublicId
from governance.codes import TERMINAL_ROUND_STATES, ErrorCode, RoundState
from models.database import ReadSession
from models.key import ApiKey
from models.round import Round
from models.round_place import RoundPlace
from workflows.messages import MAX_CALLS

ROUND_ID_HEADER = "x-sluicegate-round-id"
"""Names the round of an answer."""

DEFAULT_WAIT_S = 30.0
"""How long a round is waited for where the body does not say."""

router = APIRouter(tags=["data plane"])


@router.post(
    "/v1/rounds",
    operation_id="startRound",
    openapi_extra=json_body(StartRoundBody),
    responses={
        200: {"model": RoundBody},
        202: {"model": AcceptedBody},
        **refusals(
            *DATA_PLANE,
            *BODY,
            ErrorCode.NOT_FOUND,
            ErrorCode.WRONG_STATE,
            ErrorCode.TOO_MANY_CALLS,
            ErrorCode.IDEMPOTENCY_CONFLICT,
            ErrorCode.ROUND_ABANDONED,
            ErrorCode.ENGINE_UNAVAILABLE,
        ),
    },
    response_class=Response,
)
async def start_round(
    caller: Caller, idempotency_key: Annotated[IdempotencyKey | None, Header()] = None
) -> Response:
    """Run tool calls as one round, and wait for its end.

    A call that may not be made becomes an error result of its own and never stops the others. After `wait`
    seconds (30 by default) the answer is 202 and the round goes on. The same `Idempotency-Key` with the same
    calls, filter headers and place gives the same round, with others 409. A round of a task runs on what was
    frozen with the task; one of a conversation sees the tools of its program.
    """
    body = await caller.body(StartRoundBody)
    calls = [asked_call(call) for call in body.tool_calls]
    asked = replace(
        asked_round(caller, calls, idempotency_key),
        on_unknown=body.on_unknown,
        place=RoundPlace(body.task_id, body.conversation_id, body.profile_key, body.implementations),
    )
    key_id, repeat = await caller.read(_admit, caller.deps, asked)
    wait_s = min(DEFAULT_WAIT_S if body.wait is None else body.wait, caller.deps.settings.round_wait_max_s)
    answer = await (
        run_round(caller.deps, key_id, asked, wait_s)
        if repeat is None
        else join_round(caller.deps, key_id, asked, repeat, wait_s)
    )
    return round_response(caller, answer)


@router.get(
    "/v1/rounds/{round_id}",
    operation_id="getRound",
    responses={200: {"model": RoundBody}, **refusals(*DATA_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get_round(caller: Caller, round_id: PublicId) -> Response:
    """Look at a round of this key: its state, its results so far and, once it has ended, its messages."""
    answer = await caller.read(_load, round_id, caller.deps.settings.result_inline_max_bytes)
    return JSONResponse(answer.to_json(caller.language), headers={ROUND_ID_HEADER: round_id})


@router.get(
    "/v1/rounds/{round_id}/events",
    operation_id="followRound",
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Events, each with its number as id."},
        **refusals(*DATA_PLANE, ErrorCode.NOT_FOUND),
    },
    response_class=StreamingResponse,
)
async def follow_round(
    caller: Caller,
    round_id: PublicId,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Follow a round as server-sent events until it ends; `Last-Event-ID` resumes after that event."""
    after = parse_last_event_id(last_event_id)
    await caller.read(_load_row, round_id)
    feed = EventFeed(caller.deps.database, round_id, caller.deps.stopping)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no", ROUND_ID_HEADER: round_id}
    return StreamingResponse(feed.lines(after), media_type="text/event-stream", headers=headers)


@router.post(
    "/v1/rounds/{round_id}/cancel",
    operation_id="cancelRound",
    responses={
        200: {"model": AcceptedBody, "description": "The round has ended already; its state says how."},
        202: {"model": AcceptedBody, "description": "The round was told to stop."},
        **refusals(*DATA_PLANE, ErrorCode.NOT_FOUND, ErrorCode.CANCEL_UNAVAILABLE),
    },
    response_class=Response,
)
async def cancel_round(caller: Caller, round_id: PublicId) -> Response:
    """Ask a round to stop; asking again changes nothing.

    Running calls are told to stop, later ones never start. What was sent already may have run.
    """
    row = await caller.read(_load_row, round_id)
    state = row.state if row.state in TERMINAL_ROUND_STATES else await cancel_running(caller, row)
    status = 200 if state in TERMINAL_ROUND_STATES else 202
    return accepted_response(Accepted(round_id, state), status)


def require_few_calls(count: int) -> None:
    """Raise too_many_calls for more than one round takes."""
    if count > MAX_CALLS:
        raise APIProblem(ErrorCode.TOO_MANY_CALLS, {"limit": MAX_CALLS, "count": count})


def asked_call(body: ToolCallBody) -> AskedCall:
    """Take a call over from its body."""
    return AskedCall(body.id, body.function.name, body.function.arguments)


def asked_round(caller: DataCaller, calls: list[AskedCall], idempotency_key: str | None) -> AskedRound:
    """Compose what a request asks for; raises too_many_calls only once the caller is known."""
    return AskedRound(
        request_id=caller.request_id,
        calls=calls,
        include_clients=caller.include_clients,
        include_tools=caller.include_tools,
        idempotency_key=idempotency_key,
    )


def round_response(caller: DataCaller, answer: RoundAnswer | Accepted) -> Response:
    """Answer with a round that has ended, or 202 for one that goes on."""
    if isinstance(answer, Accepted):
        return accepted_response(answer)
    return JSONResponse(answer.to_json(caller.language), headers={ROUND_ID_HEADER: answer.round_id})


def accepted_response(accepted: Accepted, status: int = 202) -> Response:
    """Say where to look for a round that goes on."""
    headers = {"location": f"/v1/rounds/{accepted.round_id}", ROUND_ID_HEADER: accepted.round_id}
    if status == 202:
        headers["retry-after"] = str(RETRY_AFTER_S)
    body = {"round_id": accepted.round_id, "state": accepted.state.value}
    return JSONResponse(body, status, headers)


def _admit(
    session: ReadSession, key: ApiKey, deps: APIDeps, asked: AskedRound
) -> tuple[str, RoundAnswer | None]:
    require_few_calls(len(asked.calls))
    return key.id, find_repeat(session, key, asked, deps.settings.result_inline_max_bytes)


def _load(session: ReadSession, key: ApiKey, round_id: str, inline_max_bytes: int) -> RoundAnswer:
    return load_answer(session, owned_round(session, key, round_id), inline_max_bytes)


def _load_row(session: ReadSession, key: ApiKey, round_id: str) -> Round:
    return owned_round(session, key, round_id)


async def cancel_running(caller: DataCaller, row: Round) -> RoundState:
    """Tell the workflow of a round to stop, and write down that it was told.

    Raises:
        APIProblem: cancel_unavailable where the engine cannot be reached.
    """
    return await stop_round(caller.deps, row.id, row.workflow_id, (row.key_id, caller.request_id))
