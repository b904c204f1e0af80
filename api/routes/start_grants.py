"""Start grants: the API's word for a round that its caller starts through Temporal itself."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import JSONResponse

from api.documented import BODY, DATA_PLANE, json_body, refusals
from api.engine import workflow_id_of
from api.identity import Caller, DataCaller
from api.routes.rounds import require_few_calls
from api.schemas.calls import AskedRoundBody, StartGrantBody
from api.schemas.values import IdempotencyKey
from governance.codes import ErrorCode
from governance.start_grants import GRANT_PURPOSE, mint_grant
from models.base import new_id, utc_now
from models.database import ReadSession
from models.key import ApiKey
from workflows.messages import PROVIDER_ROUND, InlineCall, RoundInput

router = APIRouter(tags=["data plane"])


@router.post(
    "/v1/rounds/grants",
    operation_id="grantRoundStart",
    openapi_extra=json_body(AskedRoundBody),
    responses={200: {"model": StartGrantBody}, **refusals(*DATA_PLANE, *BODY, ErrorCode.TOO_MANY_CALLS)},
    response_class=Response,
)
async def grant_round_start(
    caller: Caller, idempotency_key: Annotated[IdempotencyKey | None, Header()] = None
) -> Response:
    """Get what starts this round through Temporal, where the installation demands a start grant.

    Nothing is stored or started. Start the workflow exactly as answered, before `expires_at`; the grant holds
    for this key, round key (`Idempotency-Key`), calls, filter headers and place, and for one round.
    """
    body = await caller.body(AskedRoundBody)
    key_id = await caller.read(_key_id, len(body.tool_calls))
    settings = caller.deps.settings
    expires_at = int((utc_now() + timedelta(seconds=settings.start_grant_s)).timestamp())
    asked = _input(caller, key_id, idempotency_key or new_id(), body)
    grant = mint_grant(caller.deps.vault.derive(GRANT_PURPOSE), asdict(asked), expires_at)
    answer = StartGrantBody(
        workflow_type=PROVIDER_ROUND,
        workflow_id=workflow_id_of(key_id, asked.round_key),
        task_queue=settings.task_queue,
        input={**asdict(asked), "grant": grant},
        expires_at=datetime.fromtimestamp(expires_at, UTC),
    )
    return JSONResponse(answer.model_dump(mode="json"))


def _key_id(_session: ReadSession, key: ApiKey, count: int) -> str:
    require_few_calls(count)
    return key.id


def _input(caller: DataCaller, key_id: str, round_key: str, body: AskedRoundBody) -> RoundInput:
    return RoundInput(
        key_id=key_id,
        round_key=round_key,
        calls=[InlineCall(call.id, call.function.name, call.function.arguments) for call in body.tool_calls],
        include_clients=caller.include_clients,
        include_tools=caller.include_tools,
        search_attributes=caller.deps.search_attributes,
        heartbeat_timeout_s=caller.deps.settings.heartbeat_timeout_s,
        on_unknown=body.on_unknown.value,
        task_id=body.task_id,
        conversation_id=body.conversation_id,
        implementations=dict(body.implementations),
        profile_key=body.profile_key,
    )
