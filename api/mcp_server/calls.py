"""Runs `tools/call` as a governed round of one call, by the same path as execute."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from api.deps import APIDeps
from api.errors import APIProblem, error_headers, not_found
from api.identity import DataCaller
from api.mcp_server.frames import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    Request,
    RPCProblem,
)
from api.mcp_server.results import INVOCATION_META, ROUND_META, call_result, text_result
from api.refusals import answer_refusal, problem_of_database
from api.results import CallResult, RoundAnswer, load_answer
from api.rounds import Accepted, AskedCall, AskedRound, join_round, run_round
from api.routes.execute import admit_call
from api.routes.invocations import stored_result
from api.routes.rounds import cancel_running
from governance.canonical import JSON, canonical_bytes, is_object
from governance.codes import TERMINAL_ROUND_STATES, ErrorCode, InvocationStatus, RoundState
from governance.failures import CallError
from models.base import new_id
from models.database import DatabaseError, ReadSession
from models.key import ApiKey
from models.round import Round, find_round, find_round_by_key

IDEMPOTENCY_META = "dev.sluicegate/idempotency-key"
"""The field of `_meta` that names a call for its repeats; the header `Idempotency-Key` says the same."""

LONGEST_KEY = 255
"""Characters of an idempotency key."""

LONGEST_NAME = 512
"""Characters of a tool name that is looked for."""

SLICE_S = 20.0
"""How long a wait for a round lasts before the database is asked, whatever the engine says."""

LOOK_S = 0.05
"""Pause between looks for a round that is just being stored."""

CANCEL_LOOKS = 10
"""How often a round that is to be canceled is looked for."""

UNREADABLE = frozenset({ErrorCode.TOOL_NOT_FOUND, ErrorCode.TOOL_NOT_ALLOWED})
"""Refusals that are errors of the protocol: the request names no tool that this client has.

Source: MCP 2025-11-25, Server Features, Tools, Error Handling.
"""

PLAIN = frozenset(
    {ErrorCode.INVALID_KEY, ErrorCode.KEY_DISABLED, ErrorCode.FORBIDDEN, ErrorCode.BODY_TOO_LARGE}
)
"""Refusals of the HTTP request itself, which are answered as on every other route."""

STATUSES: Mapping[ErrorCode, tuple[int, int]] = {
    ErrorCode.INVALID_FILTER: (INVALID_PARAMS, 400),
    ErrorCode.IDEMPOTENCY_CONFLICT: (INVALID_REQUEST, 200),
    ErrorCode.ROUND_ABANDONED: (INVALID_REQUEST, 200),
    ErrorCode.NOT_FOUND: (INVALID_PARAMS, 200),
    ErrorCode.INVALID_REQUEST: (INVALID_PARAMS, 200),
    ErrorCode.DATABASE_BUSY: (INTERNAL_ERROR, 503),
    ErrorCode.ENGINE_UNAVAILABLE: (INTERNAL_ERROR, 503),
    ErrorCode.CANCEL_UNAVAILABLE: (INTERNAL_ERROR, 503),
}
"""JSON-RPC code and HTTP status of refusals; any other is a result that the model may read."""


@dataclass(frozen=True)
class ToolsCall:
    """A `tools/call` request, read; `round_key` is what its repeats have in common."""

    request: Request
    asked: AskedRound
    round_key: str
    version: str
    is_named: bool
    """Whether the client itself named the call, and so means to come back for its result."""


def read_call(caller: DataCaller, request: Request, version: str, round_key: str | None) -> ToolsCall:
    """Read a request; `round_key` is what its session calls it, None where it has no session.

    A key that the client gives wins: it says what a repeat is, also over sessions.

    Raises:
        RPCProblem: the parameters name no tool, or the idempotency key is not one.
    """
    name = request.params.get("name")
    if not isinstance(name, str) or not name or "\x00" in name or len(name) > LONGEST_NAME:
        raise RPCProblem(INVALID_PARAMS, "params.name must be the name of a tool")
    given = _given_key(caller, request)
    key = given or round_key or f"mcp:{new_id()}"
    asked = AskedRound(
        request_id=caller.request_id,
        calls=[AskedCall("call", name, request.params.get("arguments"))],
        include_clients=caller.include_clients,
        include_tools=caller.include_tools,
        idempotency_key=key,
    )
    return ToolsCall(request, asked, key, version, given is not None)


def _given_key(caller: DataCaller, request: Request) -> str | None:
    meta = request.params.get("_meta")
    given: JSON = caller.request.headers.get("idempotency-key")
    if given is None and is_object(meta):
        given = meta.get(IDEMPOTENCY_META)
    if given is None:
        return None
    if not isinstance(given, str) or not given.strip() or "\x00" in given or len(given) > LONGEST_KEY:
        raise RPCProblem(INVALID_PARAMS, f"an idempotency key is text of 1 to {LONGEST_KEY} characters")
    return given


async def answer_call(caller: DataCaller, call: ToolsCall) -> dict[str, JSON]:
    """Run a call to its end, however long that takes, and return its result.

    Raises:
        RPCProblem: it may not be made, or whether it can be made is not known now.
        APIProblem: the HTTP request itself is refused.
    """
    try:
        admitted = await caller.read(admit_call, caller, call.asked)
        answer = await (
            run_round(caller.deps, admitted.key_id, call.asked, SLICE_S)
            if admitted.repeat is None
            else join_round(caller.deps, admitted.key_id, call.asked, admitted.repeat, SLICE_S)
        )
        return await _result_of(caller, call.asked, answer, call.version)
    except (APIProblem, DatabaseError) as error:
        problem = error if isinstance(error, APIProblem) else problem_of_database(error)
        return await _refused(caller, problem)


async def answer_round(caller: DataCaller, answer: RoundAnswer, version: str) -> dict[str, JSON]:
    """Wait for a round that an earlier request of this key started, and return its call's result."""
    # A round found like this has been started, so what it asked for is not needed again.
    return await _result_of(caller, AskedRound(caller.request_id, [], None, None, None), answer, version)


async def _result_of(
    caller: DataCaller, asked: AskedRound, answer: RoundAnswer | Accepted, version: str
) -> dict[str, JSON]:
    ended = await _to_its_end(caller.deps, asked, answer)
    return await caller.deps.database.read(_result, ended, version)


def find_call(session: ReadSession, key: ApiKey, round_id: str, round_key: str) -> RoundAnswer | None:
    """Return what became of a round of this key and of this round key, so far; None for any other."""
    row = find_round(session, round_id, key.id)
    if row is None or row.round_key != round_key:
        return None
    return load_answer(session, row, inline_max_bytes=0)


def find_round_id(session: ReadSession, key_id: str, round_key: str) -> str | None:
    """Return the id of the round of a key and a round key, None where it is not stored (yet)."""
    row = find_round_by_key(session, key_id, round_key)
    return None if row is None else row.id


async def _to_its_end(deps: APIDeps, asked: AskedRound, answer: RoundAnswer | Accepted) -> RoundAnswer:
    """Wait in slices: between them the database is asked, so that no lost message of the engine matters."""
    while not (isinstance(answer, RoundAnswer) and answer.has_ended):
        now = await deps.database.read(_load, answer.round_id)
        if now.has_ended:
            return now
        answer = await join_round(deps, now.key_id, asked, now, SLICE_S)
        if isinstance(answer, Accepted):
            # The engine may be away, and then a wait returns at once.
            await asyncio.sleep(LOOK_S)
    return answer


def _load(session: ReadSession, round_id: str) -> RoundAnswer:
    row = find_round(session, round_id)
    if row is None:
        raise not_found("round", round_id)
    return load_answer(session, row, inline_max_bytes=0)


def _result(session: Session, answer: RoundAnswer, version: str) -> dict[str, JSON]:
    call = answer.results[0]
    meta: dict[str, JSON] = {ROUND_META: answer.round_id}
    if call.invocation_id is not None:
        meta[INVOCATION_META] = call.invocation_id
    if call.invocation_id is not None and (call.status == InvocationStatus.SUCCEEDED.value or call.is_error):
        stored = stored_result(session, call.invocation_id)
        return call_result(stored, version, is_error=call.is_error, meta=meta)
    return _failed(call, meta)


def _failed(call: CallResult, meta: Mapping[str, JSON]) -> dict[str, JSON]:
    """Show a call without a result; one that named no tool of this client is an error of the protocol."""
    if call.error is not None and call.error.code in UNREADABLE:
        raise _unreadable(call.error)
    return text_result(call.content or "", is_error=True, meta=meta)


def _unreadable(error: CallError) -> RPCProblem:
    return RPCProblem(INVALID_PARAMS, error.message, error.to_json())


async def _refused(caller: DataCaller, problem: APIProblem) -> dict[str, JSON]:
    """Audit a refusal, and say it in the way that the protocol has for it."""
    if problem.code in PLAIN:
        raise problem
    refusal = await answer_refusal(caller.request, problem)
    error: dict[str, JSON] = json.loads(bytes(refusal.body))["error"]
    if problem.code in UNREADABLE:
        raise RPCProblem(INVALID_PARAMS, error["message"], error)
    if problem.code in STATUSES:
        code, status = STATUSES[problem.code]
        raise RPCProblem(code, error["message"], error, status=status, headers=error_headers(problem))
    return text_result(canonical_bytes({"error": error}).decode(), is_error=True, meta={})


async def refusal_of(caller: DataCaller, problem: APIProblem) -> RPCProblem:
    """Return a refusal of a request other than a call as an error of the protocol, audited.

    Raises:
        APIProblem: it is one of the HTTP request itself.
    """
    try:
        await _refused(caller, problem)
    except RPCProblem as refused:
        return refused
    return RPCProblem(INTERNAL_ERROR, problem.code.value, status=problem.status)


async def cancel_call(caller: DataCaller, round_key: str, making: "asyncio.Task[Any]") -> None:
    """Cancel the round of a call whose client has given it up; what was sent may have run.

    The round may not be stored yet: then it is looked for until it is, or until `making`, the answer that is
    being made, has ended without it.
    """
    row = await _find_stored(caller, round_key, making)
    if row is not None and row.state not in TERMINAL_ROUND_STATES:
        await cancel_running(caller, row)


async def await_start(caller: DataCaller, round_key: str, making: "asyncio.Task[Any]") -> None:
    """Return once the round of a call has been started, so that its answer need not be waited for."""
    while not making.done():
        row = await _find_stored(caller, round_key, making)
        if row is None or row.state is not RoundState.REQUESTED:
            return
        await asyncio.wait({making}, timeout=LOOK_S)


async def cancel_now(caller: DataCaller, key_id: str, round_key: str) -> None:
    """Cancel the round of a call, if there is one that has not ended.

    The request to cancel may overtake the call on its way to the database, so it looks more than once.
    """
    for _ in range(CANCEL_LOOKS):
        row = await caller.deps.database.read(find_round_by_key, key_id, round_key)
        if row is not None:
            if row.state not in TERMINAL_ROUND_STATES:
                await cancel_running(caller, row)
            return
        await asyncio.sleep(LOOK_S)


async def _find_stored(caller: DataCaller, round_key: str, making: "asyncio.Task[Any]") -> Round | None:
    while True:
        ended = making.done()
        key_id: str | None = caller.request.state.actor
        row = None
        if key_id is not None:
            row = await caller.deps.database.read(find_round_by_key, key_id, round_key)
        if row is not None or ended:
            return row
        await asyncio.wait({making}, timeout=LOOK_S)
