"""Secrets that an operator brings along, registered by their hash: the secret itself never travels.

So a key can be made from a file whose secret both sides read from their own store.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.changes import record_change
from api.deps import Deps
from api.documented import CONTROL_PLANE, refusals
from api.errors import APIProblem
from api.identity import require_admin
from api.routes.keys import load_key
from api.schemas.values import PublicId
from governance.codes import ErrorCode
from models.base import new_id
from models.database import ReadSession, WriteSession
from models.key import KeySecret

HINT = "declared …"
"""What lists show of such a secret, of which we know no character."""

SecretHash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the secret, in hex.")]


class KnownSecretBody(BaseModel):
    """Whether the key can be used with that secret."""

    registered: bool


router = APIRouter(prefix="/api/v1/keys", tags=["keys"], dependencies=[Depends(require_admin)])


@router.get(
    "/{key_id}/secrets/{secret_hash}",
    operation_id="hasSecret",
    responses={200: {"model": KnownSecretBody}, **refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND)},
    response_class=Response,
)
async def has_secret(deps: Deps, key_id: PublicId, secret_hash: SecretHash) -> Response:
    """Say whether a key has the secret of a hash."""
    return JSONResponse({"registered": await deps.database.read(_has, key_id, secret_hash)})


@router.put(
    "/{key_id}/secrets/{secret_hash}",
    operation_id="putSecret",
    status_code=204,
    responses=refusals(*CONTROL_PLANE, ErrorCode.NOT_FOUND, ErrorCode.CONFLICT),
    response_class=Response,
)
async def put_secret(request: Request, deps: Deps, key_id: PublicId, secret_hash: SecretHash) -> Response:
    """Let a key be used with a secret that is known by its SHA-256 alone; repeating it changes nothing.

    Whoever makes the secret answers for its strength: 32 random bytes, as ours have.
    """
    await deps.database.write(_put, key_id, secret_hash, request.state.request_id)
    return Response(status_code=204)


def _has(session: ReadSession, key_id: str, secret_hash: str) -> bool:
    load_key(session, key_id)
    return _owner(session, secret_hash) == key_id


def _put(session: WriteSession, key_id: str, secret_hash: str, request_id: str) -> None:
    key = load_key(session, key_id, for_update=True)
    owner = _owner(session, secret_hash)
    if owner == key.id:
        return
    if owner is not None:
        raise APIProblem(ErrorCode.CONFLICT, {"what": "secret", "name": secret_hash[:8]})
    row = KeySecret(id=new_id(), key_id=key.id, secret_hash=secret_hash, hint=HINT)
    session.add(row)
    session.flush()
    record_change(session, request_id, "put_secret", key=key.id, secret=row.id)


def _owner(session: Session, secret_hash: str) -> str | None:
    return session.scalar(select(KeySecret.key_id).where(KeySecret.secret_hash == secret_hash))
