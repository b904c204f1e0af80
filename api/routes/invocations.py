"""Whole results, for messages that were cut."""

from fastapi import APIRouter
from fastapi.responses import Response
from sqlalchemy.orm import Session

from api.documented import DATA_PLANE, refusals
from api.errors import APIProblem, not_found
from api.identity import Caller
from api.schemas.values import AnyJSON, PublicId
from governance.codes import ErrorCode
from models.invocation import ToolInvocation
from models.key import ApiKey
from models.payload import load_payload
from models.round import find_round

router = APIRouter(tags=["data plane"])


@router.get(
    "/v1/invocations/{invocation_id}/result",
    operation_id="getResult",
    responses={
        200: {
            "content": {"application/json": {"schema": {}}},
            "description": "The result as the upstream gave it.",
        },
        **refusals(*DATA_PLANE, ErrorCode.NOT_FOUND),
    },
    response_class=Response,
)
async def get_result(caller: Caller, invocation_id: PublicId) -> Response:
    """Return the whole stored result of an invocation of this key, as canonical JSON."""
    content = await caller.read(_load, invocation_id)
    return Response(content, media_type="application/json")


def _load(session: Session, key: ApiKey, invocation_id: str) -> bytes:
    return stored_result(session, invocation_id, key.id)


def stored_result(session: Session, invocation_id: str, key_id: str | None = None) -> bytes:
    """Return the stored result of an invocation; with `key_id`, only if that key's round made it.

    Raises:
        APIProblem: not_found, with the invocation's status where it has no result.
    """
    invocation = session.get(ToolInvocation, invocation_id)
    if invocation is None or find_round(session, invocation.round_id, key_id) is None:
        raise not_found("invocation", invocation_id)
    content = load_payload(session, invocation.response_digest) if invocation.response_digest else None
    if content is None:
        details: dict[str, AnyJSON] = {
            "what": "result",
            "name": invocation_id,
            "status": invocation.status.value,
        }
        raise APIProblem(ErrorCode.NOT_FOUND, details)
    return content
