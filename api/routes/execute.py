"""Executes one tool call, as the model gave it."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse, Response

from api.deps import APIDeps
from api.documented import BODY, DATA_PLANE, json_body, refusals
from api.errors import APIProblem, Audited, problem_of_call
from api.identity import Caller, DataCaller
from api.metering import refuse_when_spent
from api.results import CallResult, RoundAnswer
from api.rounds import Accepted, AskedCall, AskedRound, find_repeat, join_round, run_round
from api.routes.rounds import ROUND_ID_HEADER, accepted_response, asked_call, asked_round
from api.schemas.calls import AcceptedBody, ToolCallBody, ToolMessageBody
from api.schemas.values import IdempotencyKey
from governance.admission import Refused, judge_arguments, judge_name
from governance.canonical import JSON, digest_of
from governance.codes import ErrorCode, InvocationStatus
from governance.decision import revisions_of
from governance.tool_cache import KnownTool
from models.argument_rule import key_rules
from models.catalog import World, load_world
from models.database import ReadSession
from models.key import ApiKey
from models.tool import load_snapshots

INVOCATION_ID_HEADER = "x-sluicegate-invocation-id"
"""Names the invocation of an answer."""

IS_ERROR_HEADER = "x-sluicegate-is-error"
"""`true` where the tool answered and said that it failed."""

WAIT_SLACK_S = 5.0
"""Waited beyond the tool's own limit, for what the engine and the upstream's session need."""

router = APIRouter(tags=["data plane"])


@dataclass(frozen=True)
class AdmittedCall:
    """A call that may be made, or the answer to a repeat; `wait_s` covers the tool's own limit."""

    key_id: str
    wait_s: float
    repeat: RoundAnswer | None


@router.post(
    "/v1/mcp/tool/execute",
    operation_id="executeTool",
    openapi_extra=json_body(ToolCallBody),
    responses={
        200: {"model": ToolMessageBody},
        202: {"model": AcceptedBody},
        **refusals(
            *DATA_PLANE,
            *BODY,
            ErrorCode.INVALID_ARGUMENTS,
            ErrorCode.TOOL_NOT_FOUND,
            ErrorCode.TOOL_NOT_ALLOWED,
            ErrorCode.GUARDRAIL_BLOCKED,
            ErrorCode.APPROVAL_UNAVAILABLE,
            ErrorCode.APPROVAL_DENIED,
            ErrorCode.CREDENTIAL_REQUIRED,
            ErrorCode.QUOTA_EXCEEDED,
            ErrorCode.BUSY,
            ErrorCode.IDEMPOTENCY_CONFLICT,
            ErrorCode.CANCELED,
            ErrorCode.TOOL_ERROR,
            ErrorCode.UPSTREAM_UNAVAILABLE,
            ErrorCode.UPSTREAM_REFUSED,
            ErrorCode.UPSTREAM_PROTOCOL_ERROR,
            ErrorCode.SESSION_NOT_FOUND,
            ErrorCode.OUTCOME_UNKNOWN,
            ErrorCode.RESULT_TOO_LARGE,
            ErrorCode.NOT_SENT,
            ErrorCode.ROUND_ABANDONED,
            ErrorCode.ENGINE_UNAVAILABLE,
            ErrorCode.TOOL_TIMEOUT,
        ),
    },
    response_class=Response,
)
async def execute_tool(
    caller: Caller, idempotency_key: Annotated[IdempotencyKey | None, Header()] = None
) -> Response:
    """Execute one tool call, given as the model gave it; the answer is the tool message to append.

    A call that may not be made is refused before anything is started. A tool that reports a failure of its
    own is 200 with `x-sluicegate-is-error: true`. A tool that takes longer than the request may wait is 202.
    """
    body = await caller.body(ToolCallBody)
    asked = asked_round(caller, [asked_call(body)], idempotency_key)
    admitted = await caller.read(admit_call, caller, asked)
    answer = await (
        run_round(caller.deps, admitted.key_id, asked, admitted.wait_s)
        if admitted.repeat is None
        else join_round(caller.deps, admitted.key_id, asked, admitted.repeat, admitted.wait_s)
    )
    return accepted_response(answer) if isinstance(answer, Accepted) else _answer(answer)


def admit_call(session: ReadSession, key: ApiKey, caller: DataCaller, asked: AskedRound) -> AdmittedCall:
    """Answer a repeat from what is stored, else judge the call; a refusal starts nothing.

    Raises:
        APIProblem: the key, its quota, the name or the arguments do not allow the call, or its idempotency
            key was used otherwise.
    """
    deps = caller.deps
    longest = deps.settings.round_wait_max_s
    repeat = find_repeat(session, key, asked, deps.settings.result_inline_max_bytes)
    if repeat is not None:
        return AdmittedCall(key.id, longest, repeat)
    call = asked.calls[0]
    refuse_when_spent(session, key, call.name)
    world = load_world(session, key, caller.request_filter)
    found = judge_name(world.context, world.governed, call.name)
    if isinstance(found, Refused):
        raise _refusal(found, call, world)
    tool = _known_tool(session, deps, world.catalog[found.exposed_name].snapshot_digest)
    of_key = deps.tools.rules(key_rules(key, found.exposed_name, found.connection))
    verdict = judge_arguments(call.name, call.arguments, lambda: tool.schema, (tool.rules, of_key))
    if isinstance(verdict, Refused):
        raise _refusal(verdict, call, world)
    return AdmittedCall(key.id, min(tool.snapshot.timeout_s + WAIT_SLACK_S, longest), None)


def _known_tool(session: ReadSession, deps: APIDeps, digest: str) -> KnownTool:
    return deps.tools.get(digest, lambda: load_snapshots(session, {digest})[digest])


def _refusal(refused: Refused, call: AskedCall, world: World) -> APIProblem:
    tool = world.governed.get(call.name)
    data: dict[str, JSON] = {
        "level": refused.level,
        "reason": refused.reason,
        "arguments_digest": digest_of({"arguments": call.arguments}),
        **refused.audited,
        **revisions_of(world.context, None if tool is None else tool.connection),
    }
    audited = Audited(tool_name=call.name, data=data, denies_call=True)
    return problem_of_call(refused.error, audited, {})


def _answer(answer: RoundAnswer) -> Response:
    result = answer.results[0]
    headers = {ROUND_ID_HEADER: answer.round_id}
    if result.invocation_id is not None:
        headers[INVOCATION_ID_HEADER] = result.invocation_id
    headers[IS_ERROR_HEADER] = "true" if result.is_error else "false"
    if result.status == InvocationStatus.SUCCEEDED.value or result.is_error:
        return JSONResponse(result.message(), headers=headers)
    raise _failure(answer, result, headers)


def _failure(answer: RoundAnswer, result: CallResult, headers: dict[str, str]) -> APIProblem:
    audited = Audited(round_id=answer.round_id, tool_name=result.tool)
    if result.error is None:
        return APIProblem(ErrorCode.INTERNAL_ERROR, headers=headers, audited=audited)
    return problem_of_call(result.error, audited, headers)
