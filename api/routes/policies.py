"""Execution policies: which tools may run beside others."""

from collections.abc import Sequence

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import delete

from api.bodies import read_model
from api.changes import record_change
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.errors import APIProblem, malformed
from api.etags import check_if_match, etag_of, if_match_of
from api.identity import require_admin
from api.schemas.connections import OverlaysBody, PutOverlaysBody
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.execution_policy import overlay_problem
from models.connection import load_connections
from models.database import ReadSession, WriteSession
from models.projection import load_overlays, reproject_connection
from models.tool import PolicyOverlayRow
from models.version_projection import project_core, reproject_all_versions

router = APIRouter(prefix="/api/v1/policies", tags=["policies"], dependencies=[Depends(require_admin)])


@router.get(
    "/tool-overlays",
    operation_id="getToolOverlays",
    responses={200: {"model": OverlaysBody}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def get_overlays(deps: Deps) -> Response:
    """Look at the overlays, in order."""
    return _shown(await deps.database.read(_show), [])


@router.put(
    "/tool-overlays",
    operation_id="putToolOverlays",
    openapi_extra=json_body(PutOverlaysBody),
    responses={
        200: {"model": OverlaysBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.PRECONDITION_FAILED, alternatives=(422,)),
    },
    response_class=Response,
)
async def put_overlays(request: Request, deps: Deps) -> Response:
    """Set the whole list of overlays; later ones win. Every tool is resolved again in the same step.

    Tools of MCP servers are serial unless an overlay with `{"parallel_safe": true}` matches them. Rounds that
    run keep the policies they froze.
    """
    body = await read_model(request, PutOverlaysBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    overlays, changed = await deps.database.write(_put, body.overlays, if_match_of(request), request_id)
    return _shown(overlays, changed)


def _shown(overlays: list[JSON], changed: list[str]) -> Response:
    etag = etag_of(overlays)
    return JSONResponse(
        {"overlays": overlays, "changed_tools": changed, "etag": etag}, headers={"etag": etag}
    )


def _show(session: ReadSession | WriteSession) -> list[JSON]:
    return [
        {"match": dict(overlay.match), "execution_policy": dict(overlay.execution_policy)}
        for overlay in load_overlays(session)
    ]


def _put(
    session: WriteSession, overlays: Sequence[JSON], if_match: str | None, request_id: str
) -> tuple[list[JSON], list[str]]:
    _check(overlays)
    # Edits of overlays take turns on the connections, which every one of them projects again.
    connections = load_connections(session)
    for connection in connections:
        session.refresh(connection, with_for_update=True)
    before = _show(session)
    check_if_match(if_match, etag_of(before), "tool overlays")
    session.execute(delete(PolicyOverlayRow))
    session.add_all(
        PolicyOverlayRow(
            position=position, match=overlay["match"], execution_policy=overlay["execution_policy"]
        )
        for position, overlay in enumerate(overlays)
    )
    session.flush()
    changed = {
        name for connection in connections for name in reproject_connection(session, connection).changed
    }
    changed.update(project_core(session).changed, reproject_all_versions(session))
    after = _show(session)
    record_change(session, request_id, "put_tool_overlays", before=before, after=after)
    return after, sorted(changed)


def _check(overlays: Sequence[JSON]) -> None:
    for number, overlay in enumerate(overlays):
        place = f"overlays[{number}]"
        if problem := overlay_problem(overlay) or _nul_problem(overlay):
            raise _invalid(place, problem)


def _nul_problem(overlay: JSON) -> str | None:
    holds_nul = any("\x00" in wanted for wanted in overlay["match"].values())
    return "The character NUL is not allowed." if holds_nul else None


def _invalid(place: str, problem: str) -> APIProblem:
    clause = f"{place}: {problem.rstrip('.')}"
    return malformed(clause, status=422, problems=[{"path": place, "problem": problem}])
