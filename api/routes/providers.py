"""Providers of chat completions: where they are, with which credential, and the models they serve."""

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from api.bodies import read_model
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, json_body, refusals
from api.etags import if_match_of
from api.identity import require_admin
from api.pages import DEFAULT_PAGE, Cursor, Limit
from api.providers import (
    create_provider,
    delete_provider,
    edit_provider,
    list_providers,
    read_provider,
)
from api.schemas.providers import (
    CreateProviderBody,
    DeletedProviderBody,
    ProviderBody,
    ProviderPage,
    ProviderSettings,
)
from governance.canonical import JSON
from governance.codes import ErrorCode

router = APIRouter(prefix="/api/v1/providers", tags=["providers"], dependencies=[Depends(require_admin)])


@router.post(
    "",
    operation_id="createProvider",
    status_code=201,
    openapi_extra=json_body(CreateProviderBody),
    responses={
        201: {"model": ProviderBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.CONFLICT, alternatives=(422,)),
    },
    response_class=Response,
)
async def create(request: Request, deps: Deps) -> Response:
    """Register a provider with its credential and its models; nothing is sent to it.

    A model's neutral name belongs to one provider of the installation.
    """
    body = await read_model(request, CreateProviderBody, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    shown = await deps.database.write(create_provider, deps.vault, body, request_id)
    return _shown(shown, 201, {"location": f"/api/v1/providers/{body.slug}"})


@router.get(
    "",
    operation_id="listProviders",
    responses={200: {"model": ProviderPage}, **refusals(*CONTROL_PLANE)},
    response_class=Response,
)
async def list_all(deps: Deps, limit: Limit = DEFAULT_PAGE, cursor: Cursor = None) -> Response:
    """List providers by slug."""
    return JSONResponse(await deps.database.read(list_providers, limit, cursor))


@router.get(
    "/{slug}",
    operation_id="getProvider",
    responses={200: {"model": ProviderBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def get(deps: Deps, slug: str) -> Response:
    """Look at a provider; its credential is never shown."""
    return _shown(await deps.database.read(read_provider, slug))


@router.patch(
    "/{slug}",
    operation_id="editProvider",
    openapi_extra=json_body(ProviderSettings),
    responses={
        200: {"model": ProviderBody},
        **refusals(
            *CONTROL_PLANE,
            *BODY,
            ErrorCode.NOT_FOUND,
            ErrorCode.CONFLICT,
            ErrorCode.PRECONDITION_FAILED,
            alternatives=(422,),
        ),
    },
    response_class=Response,
)
async def edit(request: Request, deps: Deps, slug: str) -> Response:
    """Change settings; fields that are absent stay as they are, the credential too."""
    body = await read_model(request, ProviderSettings, deps.settings.body_max_bytes)
    request_id: str = request.state.request_id
    return _shown(
        await deps.database.write(edit_provider, deps.vault, slug, body, if_match_of(request), request_id)
    )


@router.delete(
    "/{slug}",
    operation_id="deleteProvider",
    responses={
        200: {"model": DeletedProviderBody},
        **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.PRECONDITION_FAILED),
    },
    response_class=Response,
)
async def delete(request: Request, deps: Deps, slug: str) -> Response:
    """Delete a provider, its credential and its models; requests under way end as they would have."""
    request_id: str = request.state.request_id
    return JSONResponse(await deps.database.write(delete_provider, slug, if_match_of(request), request_id))


def _shown(shown: dict[str, JSON], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(shown, status, {"etag": shown["etag"], **(headers or {})})
