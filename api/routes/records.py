"""What operators look up: rounds of every key, and why a key may or may not use a tool."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from api.catalog import explain, world_in
from api.deps import APIDeps, Deps
from api.documented import CONTROL_PLANE, refusals
from api.errors import not_found, problem_of_filter
from api.identity import language_of, require_admin
from api.pages import DEFAULT_PAGE, Cursor, Limit, id_of, page_of
from api.results import RoundAnswer, load_answer
from api.routes.keys import load_key
from api.schemas.records import ExplanationBody, OperatorRoundBody, RoundPage
from api.schemas.values import PublicId, Text
from api.tasks import show_binding
from governance.canonical import JSON
from governance.codes import ErrorCode, RoundState
from governance.filters import InvalidFilter, RequestFilter, parse_request_filter
from models.binding import load_bindings_by_id
from models.binding_payload import load_binding_payloads
from models.conversation import find_conversation
from models.database import ReadSession
from models.round import Round, find_round, load_round_calls

PublicIdQuery = Annotated[PublicId | None, Query()]
"""An id to look for."""

router = APIRouter(prefix="/api/v1", tags=["records"], dependencies=[Depends(require_admin)])


@router.get(
    "/rounds",
    operation_id="listAllRounds",
    responses={200: {"model": RoundPage}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def list_rounds(
    deps: Deps,
    key: PublicIdQuery = None,
    state: RoundState | None = None,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
) -> Response:
    """List rounds of every key, newest first."""
    query = select(Round).order_by(Round.id.desc()).limit(limit + 1)
    if key is not None:
        query = query.where(Round.key_id == key)
    if state is not None:
        query = query.where(Round.state == state)
    if cursor is not None:
        query = query.where(Round.id < id_of(cursor))
    return JSONResponse(await deps.database.read(_list_rounds, query, limit))


@router.get(
    "/rounds/{round_id}",
    operation_id="getAnyRound",
    responses={200: {"model": OperatorRoundBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get_round(request: Request, deps: Deps, round_id: PublicId) -> Response:
    """Look at a round of any key."""
    answer, facts = await deps.database.read(_get_round, round_id, deps.settings.result_inline_max_bytes)
    shown = {
        **answer.to_json(language_of(request)),
        "key_id": answer.key_id,
        "workflow_id": answer.workflow_id,
        "engine_url": _engine_url(deps, answer.workflow_id),
        **facts,
    }
    return JSONResponse(shown)


@router.get(
    "/explain",
    operation_id="explain",
    responses={
        200: {"model": ExplanationBody},
        **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.INVALID_FILTER),
    },
    response_class=Response,
)
async def explain_key(
    deps: Deps,
    key: Annotated[PublicId, Query(description="The key's id.")],
    include_clients: Annotated[
        list[str] | None, Query(description="As the header x-mcp-include-clients.")
    ] = None,
    include_tools: Annotated[
        list[str] | None, Query(description="As the header x-mcp-include-tools.")
    ] = None,
    conversation: Annotated[PublicId | None, Query(description="A conversation of the key.")] = None,
    profile: Annotated[
        Text | None, Query(max_length=255, description="The profile that a round there would ask for.")
    ] = None,
) -> Response:
    """Say of every live tool whether the key may use it in a request with these headers, and why not.

    In a conversation of the key the tools are those of its program, seen through the profile and the subagent
    policy that hold there.
    """
    request_filter = parse_request_filter(include_clients, include_tools)
    if isinstance(request_filter, InvalidFilter):
        raise problem_of_filter(request_filter)
    tools = await deps.database.read(_explain, key, request_filter, conversation, profile)
    return JSONResponse({"key": key, "tools": tools})


def _list_rounds(session: ReadSession, query: Select[Round], limit: int) -> dict[str, JSON]:
    return page_of(session.scalars(query).all(), limit, _show_round, lambda row: row.id)


def _show_round(row: Round) -> dict[str, JSON]:
    return {
        "round_id": row.id,
        "key_id": row.key_id,
        "workflow_id": row.workflow_id,
        "state": row.state.value,
        "state_reason": row.state_reason,
        "has_unknown": row.has_unknown,
        "call_count": row.call_count,
        "created_at": row.created_at.isoformat(),
        "started_at": None if row.started_at is None else row.started_at.isoformat(),
        "finished_at": None if row.finished_at is None else row.finished_at.isoformat(),
    }


def _get_round(
    session: ReadSession, round_id: str, inline_max_bytes: int
) -> tuple[RoundAnswer, dict[str, JSON]]:
    row = find_round(session, round_id)
    if row is None:
        raise not_found("round", round_id)
    answer = load_answer(session, row, inline_max_bytes)
    called = {call.binding_id for call in load_round_calls(session, row.id) if call.binding_id is not None}
    bindings = sorted(load_bindings_by_id(session, called).values(), key=lambda one: one.tool_name)
    payloads = load_binding_payloads(session, bindings, row.key_id, row.conversation_id)
    return answer, {
        "task_id": row.task_id,
        "conversation_id": row.conversation_id,
        "profile_key": row.profile_key,
        "bindings": [show_binding(binding, payloads[binding.id]) for binding in bindings],
    }


def _engine_url(deps: APIDeps, workflow_id: str) -> str | None:
    base = deps.settings.temporal_ui_url
    if base is None:
        return None
    namespace = quote(deps.settings.temporal_namespace, safe="")
    return f"{base.rstrip('/')}/namespaces/{namespace}/workflows/{quote(workflow_id, safe='')}"


def _explain(
    session: Session,
    key_id: str,
    request_filter: RequestFilter,
    conversation_id: str | None,
    profile: str | None,
) -> list[dict[str, JSON]]:
    key = load_key(session, key_id)
    conversation = None if conversation_id is None else find_conversation(session, conversation_id, key_id)
    if conversation is None and conversation_id is not None:
        raise not_found("conversation", conversation_id)
    return explain(world_in(session, key, request_filter, conversation, profile))
