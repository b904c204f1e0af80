"""The audit trail: its facts, and the chain that seals them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import Select, select

from api.audit_trail import prune_trail, seal_all, show_head, verify_trail
from api.bodies import read_model
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.errors import malformed
from api.identity import ADMIN_ACTOR, require_admin
from api.pages import DEFAULT_PAGE, Cursor, Limit, number_of, page_of
from api.schemas.audit import (
    AuditHeadBody,
    AuditPage,
    AuditVerificationBody,
    PruneAuditBody,
    PrunedAuditBody,
    VerifyAuditBody,
)
from api.schemas.values import PublicId
from governance.audit_chain import ChainHead
from governance.canonical import JSON
from governance.codes import ErrorCode
from models.audit import AuditEvent, AuditKind
from models.audit_chain import event_facts, hashes_at, links_of, load_head
from models.base import utc_now
from models.database import ReadSession

router = APIRouter(prefix="/api/v1/audit", tags=["records"], dependencies=[Depends(require_admin)])


@router.get(
    "",
    operation_id="listAudit",
    responses={200: {"model": AuditPage}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def list_audit(
    deps: Deps,
    round_id: Annotated[PublicId | None, Query()] = None,
    kind: AuditKind | None = None,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
) -> Response:
    """List the audit trail, newest first: decisions, sends, refusals and changes."""
    query = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit + 1)
    if round_id is not None:
        query = query.where(AuditEvent.round_id == round_id)
    if kind is not None:
        query = query.where(AuditEvent.kind == kind)
    before = number_of(cursor)
    if before is not None:
        query = query.where(AuditEvent.id < before)
    return JSONResponse(await deps.database.read(_list_audit, query, limit))


@router.get(
    "/head",
    operation_id="getAuditHead",
    responses={200: {"model": AuditHeadBody}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def get_head(deps: Deps) -> Response:
    """Look at the head of the chain as it is: events of the last seconds may not be sealed yet."""
    return JSONResponse(show_head(await deps.database.read(load_head)))


@router.post(
    "/seal",
    operation_id="sealAudit",
    responses={200: {"model": AuditHeadBody}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def seal(deps: Deps) -> Response:
    """Seal everything that is there now and return the head; keep it where this installation cannot write."""
    return JSONResponse(show_head(await seal_all(deps.database)))


@router.post(
    "/verify",
    operation_id="verifyAudit",
    openapi_extra=json_body(VerifyAuditBody),
    responses={200: {"model": AuditVerificationBody}, **refusals(*CONTROL_PLANE, *BODY)},
    response_class=Response,
)
async def verify(request: Request, deps: Deps) -> Response:
    """Seal everything and walk along the chain: what was changed, removed, moved or cut off is named.

    That the trail and its head were cut off together shows only against a head that was kept elsewhere.
    """
    body = await read_model(request, VerifyAuditBody, deps.settings.body_max_bytes)
    heads = [ChainHead(head.length, head.hash) for head in body.heads]
    return JSONResponse((await verify_trail(deps.database, heads, body.last)).to_json())


@router.post(
    "/prune",
    operation_id="pruneAudit",
    openapi_extra=json_body(PruneAuditBody),
    responses={200: {"model": PrunedAuditBody}, **refusals(*CONTROL_PLANE, *BODY)},
    response_class=Response,
)
async def prune(request: Request, deps: Deps) -> Response:
    """Seal everything and remove the events older than a time; the head keeps where the rest begins.

    The removal is itself a fact of the trail. It is the only way in which events are ever removed.
    """
    body = await read_model(request, PruneAuditBody, deps.settings.body_max_bytes)
    if body.before.tzinfo is None:
        raise malformed("before: a time with its zone, such as 2026-01-31T00:00:00Z")
    if body.before > utc_now():
        raise malformed("before: a time that has passed")
    request_id: str = request.state.request_id
    pruned = await prune_trail(deps.database, body.before, ADMIN_ACTOR, request_id)
    shown = {
        "removed": pruned.removed,
        "pruned_length": pruned.start.length,
        "pruned_hash": pruned.start.hash,
    }
    return JSONResponse(shown)


def _list_audit(session: ReadSession, query: Select[AuditEvent], limit: int) -> dict[str, JSON]:
    rows = session.scalars(query).all()
    links = links_of(session, [row.id for row in rows[:limit]])
    before = hashes_at(session, [link.number - 1 for link in links.values()]) if links else {}

    def show(row: AuditEvent) -> dict[str, JSON]:
        link = links.get(row.id)
        shown: dict[str, JSON] = {"number": None, "previous_hash": None, "hash": None}
        if link is not None:
            shown = {
                "number": link.number,
                "previous_hash": before.get(link.number - 1),
                "hash": link.hash,
            }
        return {**event_facts(row), **shown}

    return page_of(rows, limit, show, lambda row: str(row.id))
