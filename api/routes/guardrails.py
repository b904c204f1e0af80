"""The guardrails of the installation: hooks before and after the calls that they are meant for."""

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from api.bodies import read_model
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.errors import malformed
from api.etags import if_match_of
from api.guardrails import Shown, put_guardrails, read_guardrails
from api.identity import require_admin
from api.schemas.guardrails import GuardrailsBody, PutGuardrailsBody
from governance.codes import ErrorCode
from governance.guardrail_settings import guardrails_problem

router = APIRouter(prefix="/api/v1/guardrails", tags=["guardrails"], dependencies=[Depends(require_admin)])


@router.get(
    "",
    operation_id="getGuardrails",
    responses={200: {"model": GuardrailsBody}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def get_guardrails(deps: Deps) -> Response:
    """Look at the guardrails, in the order in which they run."""
    return _shown(await deps.database.read(read_guardrails))


@router.put(
    "",
    operation_id="putGuardrails",
    openapi_extra=json_body(PutGuardrailsBody),
    responses={
        200: {"model": GuardrailsBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.PRECONDITION_FAILED, alternatives=(422,)),
    },
    response_class=Response,
)
async def put(request: Request, deps: Deps) -> Response:
    """Set the whole list of guardrails; rounds that were frozen before keep those they froze.

    A webhook that brings no secret keeps the one it had under its name and URL.
    """
    body = await read_model(request, PutGuardrailsBody, deps.settings.body_max_bytes)
    problem = guardrails_problem(body.guardrails)
    if problem is not None:
        found = {"path": problem.path, "problem": problem.problem}
        raise malformed(f"{problem.path} {problem.problem}", status=422, problems=[found])
    request_id: str = request.state.request_id
    return _shown(
        await deps.database.write(
            put_guardrails, deps.vault, body.guardrails, if_match_of(request), request_id
        )
    )


def _shown(shown: Shown) -> Response:
    return JSONResponse(shown.to_json(), headers={"etag": shown.etag})
