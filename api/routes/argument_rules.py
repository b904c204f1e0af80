"""Rules over the arguments of calls, set on keys, connections and tools."""

from collections.abc import Callable, Sequence

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from api.argument_rules import (
    Rules,
    put_connection_rules,
    put_key_rules,
    put_tool_rules,
    read_connection_rules,
    read_key_rules,
    read_tool_rules,
)
from api.bodies import read_model
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.errors import malformed
from api.etags import if_match_of
from api.identity import require_admin
from api.schemas.argument_rules import ArgumentRulesBody, PutArgumentRulesBody
from api.schemas.values import PublicId
from governance.argument_rules import RuleLevel, rules_problem
from governance.canonical import JSON
from governance.codes import ErrorCode
from models.database import WriteSession

router = APIRouter(prefix="/api/v1", tags=["argument rules"], dependencies=[Depends(require_admin)])

LOOK = refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)
EDIT = refusals(
    *CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED, alternatives=(422,)
)


@router.get(
    "/mcp/keys/{key_id}/argument-rules",
    operation_id="getKeyArgumentRules",
    responses={200: {"model": ArgumentRulesBody}, **LOOK},
    response_class=Response,
)
async def get_of_key(deps: Deps, key_id: PublicId) -> Response:
    """Look at the rules that every call of a key has to keep."""
    return _shown(await deps.database.read(read_key_rules, key_id))


@router.put(
    "/mcp/keys/{key_id}/argument-rules",
    operation_id="putKeyArgumentRules",
    openapi_extra=json_body(PutArgumentRulesBody),
    responses={200: {"model": ArgumentRulesBody}, **EDIT},
    response_class=Response,
)
async def put_of_key(request: Request, deps: Deps, key_id: PublicId) -> Response:
    """Set the whole list of rules of a key; rounds that run keep the rules they froze."""
    return await _put(request, deps, RuleLevel.KEY, put_key_rules, key_id)


@router.get(
    "/mcp/clients/{name}/argument-rules",
    operation_id="getConnectionArgumentRules",
    responses={200: {"model": ArgumentRulesBody}, **LOOK},
    response_class=Response,
)
async def get_of_connection(deps: Deps, name: str) -> Response:
    """Look at the rules that every call of a connection's tools has to keep."""
    return _shown(await deps.database.read(read_connection_rules, name))


@router.put(
    "/mcp/clients/{name}/argument-rules",
    operation_id="putConnectionArgumentRules",
    openapi_extra=json_body(PutArgumentRulesBody),
    responses={200: {"model": ArgumentRulesBody}, **EDIT},
    response_class=Response,
)
async def put_of_connection(request: Request, deps: Deps, name: str) -> Response:
    """Set the whole list of rules of a connection; rounds that run keep the rules they froze."""
    return await _put(request, deps, RuleLevel.CONNECTION, put_connection_rules, name)


@router.get(
    "/tools/{definition_id}/argument-rules",
    operation_id="getToolArgumentRules",
    responses={200: {"model": ArgumentRulesBody}, **LOOK},
    response_class=Response,
)
async def get_of_tool(deps: Deps, definition_id: PublicId) -> Response:
    """Look at the rules that every call of a tool has to keep, whoever makes it."""
    return _shown(await deps.database.read(read_tool_rules, definition_id))


@router.put(
    "/tools/{definition_id}/argument-rules",
    operation_id="putToolArgumentRules",
    openapi_extra=json_body(PutArgumentRulesBody),
    responses={200: {"model": ArgumentRulesBody}, **EDIT},
    response_class=Response,
)
async def put_of_tool(request: Request, deps: Deps, definition_id: PublicId) -> Response:
    """Set the whole list of rules of a tool; rounds that run keep the rules they froze."""
    return await _put(request, deps, RuleLevel.TOOL, put_tool_rules, definition_id)


async def _put(
    request: Request,
    deps: Deps,
    level: RuleLevel,
    put: Callable[[WriteSession, str, Sequence[JSON], str | None, str], Rules],
    owner: str,
) -> Response:
    """Read, check and set the rules of `owner`; a rule that cannot be used is 422 with its place."""
    body = await read_model(request, PutArgumentRulesBody, deps.settings.body_max_bytes)
    problem = rules_problem(level, body.rules)
    if problem is not None:
        found = {"path": problem.path, "problem": problem.problem}
        raise malformed(f"{problem.path} {problem.problem}", status=422, problems=[found])
    request_id: str = request.state.request_id
    return _shown(await deps.database.write(put, owner, body.rules, if_match_of(request), request_id))


def _shown(rules: Rules) -> Response:
    return JSONResponse(rules.to_json(), headers={"etag": rules.etag})
