"""What operators do about calls of which nobody knows whether they ran, and about traces of crashes."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from api.bodies import read_model
from api.deps import APIDeps, Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.errors import APIProblem
from api.identity import require_admin
from api.pages import DEFAULT_PAGE, Cursor, Limit
from api.schemas.unknown_outcomes import (
    ReconcileBody,
    ResolveBody,
    ResolvedBody,
    UnknownOutcomeBody,
    UnknownOutcomePage,
)
from api.schemas.values import PublicId
from api.unknown_outcomes import list_unknown, resolve_unknown, show_unknown
from governance.codes import ErrorCode
from models.resolution import Resolved
from workflows.engine import TemporalEngine

RECONCILE_WAIT_S = 20.0
"""How long a request waits for the reconciliation it started."""

router = APIRouter(prefix="/api/v1", tags=["unknown outcomes"], dependencies=[Depends(require_admin)])


@router.get(
    "/unknown-outcomes",
    operation_id="listUnknownOutcomes",
    responses={200: {"model": UnknownOutcomePage}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def list_all(
    deps: Deps,
    resolved: Annotated[
        bool | None, Query(description="Only those that were resolved, or only those that were not.")
    ] = None,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
) -> Response:
    """List calls that were sent and whose effect nobody knows, newest first."""
    return JSONResponse(await deps.database.read(list_unknown, limit, cursor, resolved=resolved))


@router.get(
    "/unknown-outcomes/{invocation_id}",
    operation_id="getUnknownOutcome",
    responses={200: {"model": UnknownOutcomeBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get(deps: Deps, invocation_id: PublicId) -> Response:
    """Look at one: when it was sent, by which worker, and what was said of it since."""
    return JSONResponse(await deps.database.read(show_unknown, invocation_id))


@router.post(
    "/unknown-outcomes/{invocation_id}/resolve",
    operation_id="resolveUnknownOutcome",
    openapi_extra=json_body(ResolveBody),
    responses={
        200: {"model": ResolvedBody},
        202: {"model": ResolvedBody, "description": "Written down; the round or retry follows later."},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, alternatives=(422,)),
    },
    response_class=Response,
)
async def resolve(request: Request, deps: Deps, invocation_id: PublicId) -> Response:
    """Say what became of the call, once. Its status stays; a round that waits for this goes on.

    `retry` makes the call again as a new invocation under a key of its own; the first one may have run.
    """
    body = await read_model(request, ResolveBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    resolved = await deps.database.write(
        resolve_unknown, invocation_id, body, request_id, deps.settings.result_hard_max_bytes
    )
    told = await _tell(deps, resolved)
    shown = await deps.database.read(show_unknown, invocation_id)
    return JSONResponse({**shown, "told": told}, 200 if told else 202)


@router.post(
    "/reconcile",
    operation_id="reconcile",
    responses={
        200: {"model": ReconcileBody},
        202: {"model": ReconcileBody, "description": "It goes on."},
        **refusals(*CONTROL_PLANE, ErrorCode.ENGINE_UNAVAILABLE),
    },
    response_class=Response,
)
async def reconcile(
    deps: Deps,
    grace_s: Annotated[
        float, Query(ge=0, le=3600, description="Seconds that something may take before it is looked into.")
    ] = 10.0,
) -> Response:
    """Repair what crashes left behind, now, and say what was repaired. A schedule does so twice a minute."""
    engine = engine_of(deps)
    if engine is None or not await engine.start_reconcile(grace_s):
        raise APIProblem(ErrorCode.ENGINE_UNAVAILABLE)
    report = await engine.reconcile_report(RECONCILE_WAIT_S)
    if report is None:
        return JSONResponse({"state": "running"}, 202)
    return JSONResponse({"state": "finished", **asdict(report)})


def engine_of(deps: APIDeps) -> TemporalEngine | None:
    """Return the engine, None in a process that has none."""
    if deps.temporal is None:
        return None
    settings = deps.settings
    return TemporalEngine(
        deps.temporal, settings.task_queue, settings.heartbeat_timeout_s, settings.task_timeout_s
    )


async def _tell(deps: APIDeps, resolved: Resolved) -> bool:
    """Tell whoever goes on from here; False where nobody could be told, which the reconciler then does."""
    if not resolved.round_waits and resolved.retry is None:
        return True
    engine = engine_of(deps)
    if engine is None:
        return False
    if resolved.round_waits:
        return await engine.wake_round(resolved.workflow_id, resolved.invocation_id)
    return resolved.retry is not None and await engine.retry_call(resolved.retry)
