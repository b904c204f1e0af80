"""Answers refused requests, and writes each of them to the audit trail."""

import logging
import time

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.orm.exc import StaleDataError
from starlette.exceptions import HTTPException

from api.console.masking import without_secrets
from api.deps import APIDeps, deps_of
from api.errors import APIProblem, error_body, error_headers, malformed, not_found
from api.identity import DATA_PLANE_PATH, DataCaller, language_of
from api.metering import meter_denied_call
from api.program_identity import PlaneCaller, Principal
from api.schemas.values import UNKNOWN_ID
from governance.codes import ErrorCode
from models.audit import AuditFact, AuditKind, append_audit
from models.database import DatabaseBusyError, DatabaseError, ReadSession, WriteSession

PROGRAM_PLANE_PATH = "/program_api/"
"""What the path of every program-plane route begins with."""

UNKNOWN_ACTOR = "unknown"
"""How the audit trail names a caller that was not recognised."""

UNKNOWN_PER_SECOND = 10
"""Audit rows a second for callers that were not recognised; the next row tells how many were left out."""

# Nothing can be written down while the database is away, and the round's own rows tell of the engine.
_NOT_AUDITED = frozenset({ErrorCode.DATABASE_BUSY})

logger = logging.getLogger(__name__)


class UnknownCallerBudget:
    """Bounds what strangers can make us write: `UNKNOWN_PER_SECOND` rows in each second."""

    def __init__(self) -> None:
        self._second = 0
        self._used = 0
        self._left_out = 0

    def take(self) -> int | None:
        """Return how many rows were left out before this one, or None where this one is left out too."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._used = second, 0
        if self._used >= UNKNOWN_PER_SECOND:
            self._left_out += 1
            return None
        self._used += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def install_refusals(app: FastAPI) -> None:
    """Give every way in which a request can fail the one form of refusal."""
    app.state.unknown_callers = UnknownCallerBudget()

    @app.exception_handler(APIProblem)
    async def refused(request: Request, problem: APIProblem) -> Response:  # pyright: ignore[reportUnusedFunction]
        return await answer_refusal(request, problem)

    @app.exception_handler(DatabaseError)
    async def database_away(request: Request, error: DatabaseError) -> Response:  # pyright: ignore[reportUnusedFunction]
        return await answer_refusal(request, problem_of_database(error))

    @app.exception_handler(StaleDataError)
    async def overtaken(request: Request, _error: StaleDataError) -> Response:  # pyright: ignore[reportUnusedFunction]
        problem = APIProblem(ErrorCode.PRECONDITION_FAILED, {"what": request.url.path, "etag": None})
        return await answer_refusal(request, problem)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:  # pyright: ignore[reportUnusedFunction]
        return await answer_refusal(request, await _problem_of_parameters(request, error))

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, error: HTTPException) -> Response:  # pyright: ignore[reportUnusedFunction]
        return await answer_refusal(request, _problem_of_routing(request, error))


async def answer_refusal(request: Request, problem: APIProblem) -> Response:
    """Audit a refusal and answer it in the caller's language; what cannot be audited is not answered."""
    problem = await _audited(request, problem)
    language = language_of(request)
    headers = {"content-language": language.value, "vary": "accept-language", **error_headers(problem)}
    body = error_body(problem, request.state.request_id, language)
    return JSONResponse(body, problem.status, headers)


def problem_of_database(error: DatabaseError) -> APIProblem:
    """Say which way the database is away; both may be tried again."""
    reason = "locked" if isinstance(error, DatabaseBusyError) else "unreachable"
    return APIProblem(ErrorCode.DATABASE_BUSY, {"reason": reason})


async def _problem_of_parameters(request: Request, error: RequestValidationError) -> APIProblem:
    """Describe malformed parameters; a caller is authenticated before anything is told."""
    try:
        await _check_caller(request)
    except APIProblem as problem:
        return problem
    except DatabaseError as away:
        return problem_of_database(away)
    faults = error.errors()
    for fault in faults:
        if fault["type"] == UNKNOWN_ID:
            parameter = str(fault["loc"][-1])
            return not_found(parameter.removesuffix("_id"), str(fault["input"])[:200])
    problems = [
        {"path": ".".join(str(part) for part in fault["loc"]), "problem": fault["msg"]} for fault in faults
    ]
    return malformed(f"{problems[0]['path']}: {problems[0]['problem']}", problems=problems)


async def _check_caller(request: Request) -> None:
    """Authenticate where routes do so only as they run; the control plane has done it by now."""
    if request.url.path.startswith(DATA_PLANE_PATH):
        await DataCaller(request, deps_of(request)).check()
    elif request.url.path.startswith(PROGRAM_PLANE_PATH):
        await PlaneCaller(request, deps_of(request)).read(_nothing)


def _nothing(_session: ReadSession, _principal: Principal) -> None:
    """Do no work beyond the check."""


def _problem_of_routing(request: Request, error: HTTPException) -> APIProblem:
    if error.status_code == 405:
        details = {"path": request.url.path[:200], "method": request.method}
        return APIProblem(ErrorCode.METHOD_NOT_ALLOWED, details, headers=error.headers)
    if error.status_code == 404:
        return not_found("path", request.url.path[:200])
    return malformed(str(error.detail))


async def _audited(request: Request, problem: APIProblem) -> APIProblem:
    """Write a refusal down and return it; where that cannot be done, return that the database is away."""
    if problem.code in _NOT_AUDITED:
        return problem
    actor: str = problem.audited.actor or request.state.actor or UNKNOWN_ACTOR
    data = {**problem.audited.data, "status": problem.status, "method": request.method}
    data["path"] = without_secrets(request.url.path[:200].replace("\x00", ""))
    if actor == UNKNOWN_ACTOR:
        budget: UnknownCallerBudget = request.app.state.unknown_callers
        left_out = budget.take()
        if left_out is None:
            return problem
        if left_out:
            data["left_out"] = left_out
    fact = AuditFact(
        AuditKind.REQUEST_REFUSED,
        actor=actor,
        request_id=request.state.request_id,
        round_id=problem.audited.round_id,
        tool_name=problem.audited.tool_name,
        code=problem.code.value,
        data=data,
    )
    deps: APIDeps = deps_of(request)
    try:
        await deps.database.write(_append, fact, meter=problem.audited.denies_call)
    except DatabaseError as error:
        # The caller is told to come again, and is refused on the record then; nothing was done for it.
        logger.exception("a refused request could not be audited")
        return problem_of_database(error)
    return problem


def _append(session: WriteSession, fact: AuditFact, *, meter: bool) -> None:
    append_audit(session, fact)
    if meter:
        meter_denied_call(session, fact)
