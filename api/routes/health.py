"""Whether the process is up, and whether it can do its work."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy import inspect, text

from api.deps import APIDeps, Deps
from api.documented import refusals
from api.errors import APIProblem
from governance.codes import ErrorCode
from models.database import DatabaseError, ReadSession

REVISIONS = "alembic_version"
"""The table in which the migrations keep their place."""

router = APIRouter(tags=["health"])


class HealthBody(BaseModel):
    """The process is up."""

    status: Literal["ok"] = "ok"


class ReadyBody(BaseModel):
    """The database has this release's schema, and the workflow engine answers."""

    status: Literal["ready"] = "ready"
    database: Literal["current"] = "current"
    engine: Literal["reachable"] = "reachable"


@router.get("/healthz", operation_id="health")
async def healthz() -> HealthBody:
    """Tell that the process is up."""
    return HealthBody()


@router.get(
    "/readyz",
    operation_id="ready",
    responses=refusals(ErrorCode.DATABASE_BUSY, ErrorCode.ENGINE_UNAVAILABLE),
)
async def readyz(deps: Deps) -> ReadyBody:
    """Tell whether rounds can run here now: database reachable, schema current, engine reachable."""
    database = await _database_state(deps)
    if database != "current":
        raise APIProblem(ErrorCode.DATABASE_BUSY, {"reason": database})
    if not await deps.engine.is_reachable():
        raise APIProblem(ErrorCode.ENGINE_UNAVAILABLE, {"reason": "unreachable"})
    return ReadyBody()


async def _database_state(deps: APIDeps) -> str:
    try:
        revision = await deps.database.read(_revision)
    except DatabaseError:
        return "unreachable"
    if revision is None:
        return "schema_missing"
    return "current" if revision == deps.schema_head else "schema_outdated"


def _revision(session: ReadSession) -> str | None:
    if not inspect(session.connection()).has_table(REVISIONS):
        return None
    revision: str | None = session.scalar(text(f"SELECT version_num FROM {REVISIONS}"))  # noqa: S608
    return revision
