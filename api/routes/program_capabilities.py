"""The program plane's handshake: what a caller declares, and what is made of it."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from api.documented import BODY, PROGRAM_PLANE, json_body, refusals
from api.handshakes import handshake, refresh
from api.program_identity import OnProgramPlane
from api.schemas.programs import CapabilitiesBody, HandshakeBody
from governance.codes import ErrorCode

router = APIRouter(prefix="/program_api/capabilities", tags=["program plane"])


@router.post(
    "",
    operation_id="declareCapabilities",
    openapi_extra=json_body(HandshakeBody),
    responses={
        200: {"model": CapabilitiesBody},
        **refusals(*PROGRAM_PLANE, *BODY, ErrorCode.CONFLICT, alternatives=(422,)),
    },
    response_class=Response,
)
async def declare(caller: OnProgramPlane) -> Response:
    """Declare capabilities.

    A program declares the version that its credential belongs to: a version never changes, so other content
    under its fingerprint is 409 with the differences. A runtime declares its own tools. Malformed parts are
    422 with every fault, and nothing changes.
    """
    body = await caller.body()
    return JSONResponse(await caller.write(handshake, body))


@router.get(
    "",
    operation_id="refreshCapabilities",
    responses={200: {"model": CapabilitiesBody}, **refusals(*PROGRAM_PLANE)},
    response_class=Response,
)
async def look(caller: OnProgramPlane) -> Response:
    """Look at the capabilities as they are registered now."""
    return JSONResponse(await caller.write(refresh))
