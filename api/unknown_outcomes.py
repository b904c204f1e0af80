"""Unknown outcomes: list them, show them, and write down what an operator says of one."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.errors import APIProblem, malformed, not_found
from api.identity import ADMIN_ACTOR
from api.pages import id_of, page_of
from api.schemas.unknown_outcomes import ResolveBody
from governance.canonical import JSON, NotCanonicalError, canonical_bytes
from governance.codes import ErrorCode, InvocationOutcome
from governance.failures import CallError
from governance.resolutions import ResolutionKind
from models.audit import AuditFact, AuditKind, append_audit
from models.binding import ToolBinding
from models.database import ReadSession, WriteSession
from models.invocation import ToolInvocation
from models.payload import store_payload
from models.resolution import NotUnknownError, Resolved, RoundStillRunsError, Verdict, resolve
from models.round import NewEvent, Round, RoundCall, append_events
from models.send import load_sends


def list_unknown(
    session: ReadSession, limit: int, cursor: str | None, *, resolved: bool | None
) -> dict[str, JSON]:
    """Return a page of unknown outcomes, newest first; only those with or without a resolution if asked."""
    query = (
        select(ToolInvocation)
        .where(ToolInvocation.outcome == InvocationOutcome.UNKNOWN)
        .order_by(ToolInvocation.id.desc())
        .limit(limit + 1)
    )
    if resolved is not None:
        kind = ToolInvocation.resolution_kind
        query = query.where(kind.is_not(None) if resolved else kind.is_(None))
    if cursor is not None:
        query = query.where(ToolInvocation.id < id_of(cursor))
    rows = session.scalars(query).all()
    return page_of(rows, limit, lambda row: _show(session, row), lambda row: row.id)


def show_unknown(session: Session, invocation_id: str) -> dict[str, JSON]:
    """Return one unknown outcome; not_found for any other invocation."""
    invocation = session.get(ToolInvocation, invocation_id)
    if invocation is None or invocation.outcome is not InvocationOutcome.UNKNOWN:
        raise not_found("unknown outcome", invocation_id)
    return _show(session, invocation)


def resolve_unknown(
    session: WriteSession, invocation_id: str, body: ResolveBody, request_id: str, result_max_bytes: int
) -> Resolved:
    """Write down what an operator says, with its audit row and event.

    Raises:
        APIProblem: not_found, conflict for a second resolution, invalid_request for one that cannot be.
    """
    invocation = session.get(ToolInvocation, invocation_id)
    if invocation is None:
        raise not_found("unknown outcome", invocation_id)
    digest = _store_result(session, body, result_max_bytes)
    verdict = Verdict(body.resolution, ADMIN_ACTOR, body.note, digest)
    try:
        resolved = resolve(session, invocation_id, verdict)
    except NotUnknownError as error:
        if error.resolved is not None:
            raise APIProblem(ErrorCode.CONFLICT, {"what": "resolution", "name": invocation_id}) from error
        raise malformed(str(error), status=422, invocation_status=error.status) from error
    except RoundStillRunsError as error:
        raise malformed(str(error), status=422, round_id=error.round_id) from error
    facts: dict[str, JSON] = {
        "position": resolved.position,
        "resolution": body.resolution.value,
        "note": body.note,
        "result_digest": digest,
    }
    append_audit(
        session,
        AuditFact(
            AuditKind.OUTCOME_RESOLVED,
            actor=ADMIN_ACTOR,
            request_id=request_id,
            round_id=resolved.round_id,
            invocation_id=invocation_id,
            data=facts,
        ),
    )
    event = {**facts, "invocation_id": invocation_id}
    append_events(session, resolved.round_id, [NewEvent("outcome_resolved", event)])
    return resolved


def _store_result(session: WriteSession, body: ResolveBody, max_bytes: int) -> str | None:
    given = "result" in body.model_fields_set
    if given != (body.resolution is ResolutionKind.SUCCEEDED):
        raise malformed("result: it is given with the resolution 'succeeded', and with no other", status=422)
    if not given:
        return None
    try:
        content = canonical_bytes(body.result)
    except NotCanonicalError as error:
        raise malformed("result: it cannot be written as JSON in UTF-8", status=422) from error
    if len(content) > max_bytes:
        raise APIProblem(ErrorCode.BODY_TOO_LARGE, {"limit_bytes": max_bytes})
    return store_payload(session, content)


def _show(session: Session, invocation: ToolInvocation) -> dict[str, JSON]:
    row = session.get_one(Round, invocation.round_id)
    call = session.scalar(select(RoundCall).where(RoundCall.invocation_id == invocation.id))
    tool = session.scalar(select(ToolBinding.tool_name).where(ToolBinding.id == invocation.tool_binding_id))
    error = None if invocation.error is None else CallError.from_json(invocation.error)
    return {
        "invocation_id": invocation.id,
        "round_id": invocation.round_id,
        "key_id": row.key_id,
        "position": None if call is None else call.position,
        "tool_call_id": None if call is None else call.call_id,
        "tool": tool or "",
        "status": invocation.status.value,
        "reason": None if error is None else error.details.get("reason"),
        "idempotency_key": invocation.idempotency_key,
        "attempt_no": invocation.attempt_no,
        "started_at": invocation.started_at.isoformat(),
        "finished_at": None if invocation.finished_at is None else invocation.finished_at.isoformat(),
        "sends": [
            {
                "number": send.number,
                "worker": send.worker,
                "sent_at": None if send.sent_at is None else send.sent_at.isoformat(),
                "answered_at": None if send.answered_at is None else send.answered_at.isoformat(),
                "outcome": None if send.outcome is None else send.outcome.value,
            }
            for send in load_sends(session, invocation.id)
        ],
        "resolution": invocation.resolution,
    }
