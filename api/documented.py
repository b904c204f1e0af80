"""What the OpenAPI document says of bodies that routes read by themselves, and of refusals."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.errors import STATUSES
from api.schemas.argument_rules import PutArgumentRulesBody
from api.schemas.audit import PruneAuditBody, VerifyAuditBody
from api.schemas.calls import AskedRoundBody, StartRoundBody, ToolCallBody
from api.schemas.chat import ChatBody
from api.schemas.connections import ConnectionSettings, CreateConnectionBody, PutOverlaysBody
from api.schemas.errors import ErrorBody
from api.schemas.guardrails import PutGuardrailsBody
from api.schemas.keys import CreateKeyBody, EditKeyBody, PutToolConfigBody, RotateSecretBody
from api.schemas.programs import (
    AddImplementationBody,
    CreateConversationBody,
    CreateProgramBody,
    CreateRuntimeBody,
    CreateTaskBody,
    EditProgramBody,
    EditRuntimeBody,
    HandshakeBody,
    PutApprovalBody,
    PutApprovedBody,
    PutIdempotencyBody,
    PutPinBody,
    PutTimeoutBody,
    RegisterVersionBody,
)
from api.schemas.providers import CreateProviderBody, ProviderSettings
from api.schemas.quotas import PutQuotaBody
from api.schemas.unknown_outcomes import ResolveBody
from governance.codes import ErrorCode

REF_TEMPLATE = "#/components/schemas/{model}"

ALWAYS = (ErrorCode.INVALID_REQUEST, ErrorCode.DATABASE_BUSY, ErrorCode.INTERNAL_ERROR)
"""Codes that any route can answer with."""

DATA_PLANE = (
    *ALWAYS,
    ErrorCode.TOO_MANY_FAILURES,
    ErrorCode.INVALID_KEY,
    ErrorCode.KEY_DISABLED,
    ErrorCode.FORBIDDEN,
    ErrorCode.INVALID_FILTER,
)
"""Codes of every data-plane route."""

CONTROL_PLANE = (*ALWAYS, ErrorCode.TOO_MANY_FAILURES, ErrorCode.INVALID_KEY, ErrorCode.FORBIDDEN)
"""Codes of every control-plane route."""

PROGRAM_PLANE = (
    *ALWAYS,
    ErrorCode.TOO_MANY_FAILURES,
    ErrorCode.INVALID_KEY,
    ErrorCode.KEY_DISABLED,
    ErrorCode.FORBIDDEN,
)
"""Codes of every program-plane route."""

BODY = (ErrorCode.BODY_TOO_LARGE,)
"""Codes of every route with a body."""

REQUEST_MODELS: tuple[type[BaseModel], ...] = (
    ToolCallBody,
    AskedRoundBody,
    StartRoundBody,
    CreateKeyBody,
    EditKeyBody,
    RotateSecretBody,
    PutToolConfigBody,
    PutQuotaBody,
    CreateConnectionBody,
    ConnectionSettings,
    PutOverlaysBody,
    ChatBody,
    CreateProviderBody,
    ProviderSettings,
    CreateProgramBody,
    EditProgramBody,
    RegisterVersionBody,
    HandshakeBody,
    CreateRuntimeBody,
    EditRuntimeBody,
    CreateConversationBody,
    CreateTaskBody,
    PutApprovedBody,
    PutApprovalBody,
    AddImplementationBody,
    PutIdempotencyBody,
    PutPinBody,
    PutTimeoutBody,
    ResolveBody,
    VerifyAuditBody,
    PruneAuditBody,
    PutArgumentRulesBody,
    PutGuardrailsBody,
)
"""Every body that a route reads by itself."""

Responses = dict[int | str, dict[str, Any]]


def refusals(*codes: ErrorCode, alternatives: tuple[int, ...] = ()) -> Responses:
    """Document the refusals of a route by their statuses.

    `alternatives` are further statuses of these codes that the route uses.
    """
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        first, *others = STATUSES[code]
        for status in (first, *(other for other in others if other in alternatives)):
            by_status.setdefault(status, []).append(f"`{code.value}`")
    return {
        status: {"model": ErrorBody, "description": " · ".join(names)}
        for status, names in sorted(by_status.items())
    }


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Document the JSON body of a route that reads it by itself."""
    schema = {"$ref": REF_TEMPLATE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install_openapi(app: FastAPI) -> None:
    """Make the app's OpenAPI document whole; it is made once, when first asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )
    for operations in document["paths"].values():
        for operation in operations.values():
            # The framework adds its own validation error everywhere; ours is ErrorBody.
            if operation["responses"].get("422", {}).get("description") == "Validation Error":
                del operation["responses"]["422"]
    _, definitions = models_json_schema(
        [(model, "validation") for model in REQUEST_MODELS], ref_template=REF_TEMPLATE
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.update(definitions.get("$defs", {}))
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document
