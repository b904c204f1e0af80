"""Stop one call of a round; the others go on."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from sqlalchemy.orm import Session

from api.documented import DATA_PLANE, refusals
from api.errors import not_found
from api.identity import Caller
from api.results import PENDING, REFUSED
from api.rounds import owned_round
from api.routes.unknown_outcomes import engine_of
from api.schemas.unknown_outcomes import CanceledCallBody
from api.schemas.values import PublicId
from governance.canonical import JSON
from governance.codes import TERMINAL_ROUND_STATES, ErrorCode, InvocationStatus
from models.audit import AuditFact, AuditKind, append_audit
from models.base import utc_now
from models.database import WriteSession
from models.invocation import ToolInvocation
from models.key import ApiKey
from models.round import NewEvent, Round, RoundCall, append_events

router = APIRouter(tags=["data plane"])


@router.post(
    "/v1/rounds/{round_id}/calls/{position}/cancel",
    operation_id="cancelCall",
    responses={
        200: {"model": CanceledCallBody, "description": "The call has ended already; its status says how."},
        202: {"model": CanceledCallBody, "description": "The call was told to stop, or will be."},
        **refusals(*DATA_PLANE, ErrorCode.NOT_FOUND),
    },
    response_class=Response,
)
async def cancel_call(caller: Caller, round_id: PublicId, position: int) -> Response:
    """Ask one call of a round to stop, by its place in the round from 0; asking again changes nothing.

    A call that has not started then never does. One that was sent may have run: its server is told.
    """
    workflow_id = await caller.read(_owned_workflow, round_id)
    deps = caller.deps
    shown, is_told = await deps.database.write(_request_cancel, round_id, position, caller.request_id)
    if not is_told:
        return JSONResponse(shown)
    engine = engine_of(deps)
    if engine is not None:
        # The row is there: an engine that is away now is told by the reconciler.
        await engine.cancel_call(workflow_id, position)
    return JSONResponse(shown, 202)


def _owned_workflow(session: Session, key: ApiKey, round_id: str) -> str:
    return owned_round(session, key, round_id).workflow_id


def _request_cancel(
    session: WriteSession, round_id: str, position: int, request_id: str
) -> tuple[dict[str, JSON], bool]:
    """Write the wish down; return the call as shown, and whether there is anything to stop."""
    row = session.get_one(Round, round_id)
    call = session.get(RoundCall, (round_id, position)) if 0 <= position < row.call_count else None
    if call is None:
        raise not_found("call", f"{round_id}/{position}")
    status = _status_of(session, call)
    shown: dict[str, JSON] = {
        "round_id": round_id,
        "position": position,
        "tool_call_id": call.call_id,
        "status": status,
    }
    if status not in (PENDING, InvocationStatus.RUNNING.value) or row.state in TERMINAL_ROUND_STATES:
        return shown, False
    if call.cancel_requested_at is None:
        call.cancel_requested_at = utc_now()
        session.flush()
        facts: dict[str, JSON] = {"position": position, "tool_call_id": call.call_id}
        append_audit(
            session,
            AuditFact(
                AuditKind.CALL_CANCEL_REQUESTED,
                actor=row.key_id,
                request_id=request_id,
                round_id=round_id,
                invocation_id=call.invocation_id,
                tool_name=call.tool_name,
                data=facts,
            ),
        )
        append_events(session, round_id, [NewEvent("call_cancel_requested", facts)])
    return shown, True


def _status_of(session: Session, call: RoundCall) -> str:
    if call.refusal is not None:
        return REFUSED
    if call.invocation_id is None:
        return PENDING
    return session.get_one(ToolInvocation, call.invocation_id).status.value
