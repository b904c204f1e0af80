"""What a change of a key's grants would do, before it is made."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from api.bodies import read_model
from api.deps import Deps
from api.documented import BODY, CONTROL_PLANE, refusals
from api.etags import etag_of
from api.identity import require_admin
from api.routes.key_tools import checked_grants, shown_configs
from api.routes.keys import load_key
from api.schemas.keys import ToolConfigEntry
from api.schemas.values import PublicId
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.decision import DecisionContext, Denied, KeyRules, decide, has_access
from governance.filters import NO_FILTER
from models.catalog import World, load_world
from models.database import ReadSession

router = APIRouter(prefix="/api/v1/mcp/keys", tags=["keys"], dependencies=[Depends(require_admin)])


class PreviewBody(BaseModel):
    """The tool configuration that a key would have; null to have none."""

    model_config = ConfigDict(extra="forbid")

    mcp_configs: list[ToolConfigEntry] | None = Field(max_length=1000)


class GrantPreviewBody(BaseModel):
    """What a change would do; nothing is changed. The etag is that of the configuration as it is now."""

    before: list[str]
    after: list[str]
    gained: list[str]
    lost: list[str]
    connections_gained: list[str]
    connections_lost: list[str]
    unmatched: list[dict[str, str]]
    widens: bool
    etag: str


SCHEMA = PreviewBody.model_json_schema(ref_template="#/components/schemas/{model}")
SCHEMA.pop("$defs", None)


@router.post(
    "/{key_id}/tools/preview",
    operation_id="previewKeyTools",
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": SCHEMA}}}},
    responses={
        200: {"model": GrantPreviewBody},
        **refusals(*CONTROL_PLANE, *BODY, ErrorCode.NOT_FOUND, ErrorCode.INVALID_FILTER, alternatives=(422,)),
    },
    response_class=Response,
)
async def preview_key_tools(request: Request, deps: Deps, key_id: PublicId) -> Response:
    """Say which tools and connections a key would gain and lose by another tool configuration.

    Judged for a request without filter headers, by the same function that decides calls.
    """
    body = await read_model(request, PreviewBody, deps.settings.body_max_bytes)
    return JSONResponse(await deps.database.read(_preview, key_id, body.mcp_configs))


def _preview(session: ReadSession, key_id: str, entries: Sequence[ToolConfigEntry] | None) -> dict[str, JSON]:
    key = load_key(session, key_id)
    world = load_world(session, key, NO_FILTER)
    configs = None
    if entries is not None:
        tools = [tools for _, tools in checked_grants(session, entries)]
        configs = {entry.client: names for entry, names in zip(entries, tools, strict=True)}
    changed = replace(world.context, key=_with_configs(world.context.key, configs))
    before, after = _allowed(world, world.context), _allowed(world, changed)
    reached, to_reach = _reached(world.context), _reached(changed)
    return {
        "before": sorted(before),
        "after": sorted(after),
        "gained": sorted(after - before),
        "lost": sorted(before - after),
        "connections_gained": sorted(to_reach - reached),
        "connections_lost": sorted(reached - to_reach),
        "unmatched": _unmatched(world, configs or {}),
        "widens": bool(after - before) or bool(to_reach - reached),
        "etag": etag_of(shown_configs(session, key)),
    }


def _with_configs(rules: KeyRules, configs: Mapping[str, tuple[str, ...]] | None) -> KeyRules:
    return KeyRules(
        enabled=rules.enabled,
        mcp_configs=configs,
        request_filter=rules.request_filter,
        core_tools=rules.core_tools,
    )


def _allowed(world: World, context: DecisionContext) -> set[str]:
    return {name for name, tool in world.governed.items() if not isinstance(decide(context, tool), Denied)}


def _reached(context: DecisionContext) -> set[str]:
    return {name for name, rules in context.connections.items() if has_access(context.key, rules)}


def _unmatched(world: World, configs: Mapping[str, Sequence[str]]) -> list[JSON]:
    live = {(tool.connection_name, tool.upstream_name) for tool in world.catalog.values()}
    return [
        {"client": client, "tool": tool}
        for client, tools in configs.items()
        for tool in tools
        if tool != "*" and (client, tool) not in live
    ]
