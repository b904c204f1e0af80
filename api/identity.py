"""Who calls: data keys on the data plane, the admin token on the control plane, and never the other way."""

import hmac
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Concatenate, ParamSpec, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel
from sqlalchemy.orm import Session

from api.bodies import read_model
from api.console.sessions import COOKIE, require_session
from api.deps import APIDeps, Deps
from api.errors import APIProblem, Audited, problem_of_filter
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.filters import (
    CLIENTS_HEADER,
    TOOLS_HEADER,
    InvalidFilter,
    RequestFilter,
    parse_request_filter,
)
from governance.messages import Language, preferred_language
from models.base import utc_now
from models.database import ReadSession
from models.key import ApiKey, find_by_secret, hash_secret

DATA_PLANE_PATH = "/v1/"
"""What the path of every data-plane route begins with."""

ADMIN_PREFIX = "sga_"
"""What the control plane's token begins with."""

ADMIN_ACTOR = "admin"
"""How the audit trail names whoever holds the admin token."""

P = ParamSpec("P")
T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)


def bearer_token(request: Request) -> str:
    """Return the token of the Authorization header; raises invalid_key where there is none.

    Source: RFC 6750, section 2.1; the scheme's name is case-insensitive (RFC 9110, section 11.1).
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise APIProblem(ErrorCode.INVALID_KEY)
    return token.strip()


def authenticate(session: Session, token: str, now: datetime) -> ApiKey:
    """Return the key of a secret; raises invalid_key or key_disabled."""
    key = find_by_secret(session, token, now)
    if key is None:
        raise APIProblem(ErrorCode.INVALID_KEY)
    if not key.enabled:
        raise APIProblem(ErrorCode.KEY_DISABLED, audited=Audited(actor=key.id))
    return key


class DataCaller:
    """A request on the data plane: its secret, its filter headers, and reads that check them first."""

    def __init__(self, request: Request, deps: APIDeps) -> None:
        """Read the headers; raises invalid_key or forbidden for a token that cannot be a data key's."""
        self.request = request
        self.deps = deps
        self._token = bearer_token(request)
        if self._token.startswith(ADMIN_PREFIX):
            raise APIProblem(ErrorCode.FORBIDDEN, {"reason": "admin_token_on_data_plane"})
        # Header names are case-insensitive, and a repeated header is one list.
        self.include_clients: list[str] | None = request.headers.getlist(CLIENTS_HEADER) or None
        self.include_tools: list[str] | None = request.headers.getlist(TOOLS_HEADER) or None
        self._filter = parse_request_filter(self.include_clients, self.include_tools)

    @property
    def request_filter(self) -> RequestFilter:
        """What the filter headers ask for; raises invalid_filter."""
        if isinstance(self._filter, InvalidFilter):
            raise problem_of_filter(self._filter)
        return self._filter

    @property
    def filter_headers(self) -> dict[str, JSON]:
        """The filter headers as received, for storing beside a round."""
        return {"include_clients": self.include_clients, "include_tools": self.include_tools}

    @property
    def request_id(self) -> str:
        """The id of the request, the caller's own where that was well-formed."""
        request_id: str = self.request.state.request_id
        return request_id

    @property
    def language(self) -> Language:
        """The language of messages."""
        return language_of(self.request)

    async def read(
        self, work: Callable[Concatenate[ReadSession, ApiKey, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Authenticate, check the filter headers and run `work(session, key, ...)`, in one transaction."""

        def transaction(session: ReadSession) -> T:
            key = authenticate(session, self._token, utc_now())
            self.request.state.actor = key.id
            _ = self.request_filter
            return work(session, key, *args, **kwargs)

        return await self.deps.database.read(transaction)

    async def body(self, model: type[ModelT]) -> ModelT:
        """Return the body as `model`; strangers are turned away before they are told of its faults."""
        try:
            return await read_model(self.request, model, self.deps.settings.body_max_bytes)
        except APIProblem:
            await self.check()
            raise

    async def check(self) -> None:
        """Authenticate and check the filter headers, and do nothing else."""
        await self.read(_nothing)


def _nothing(_session: ReadSession, _key: ApiKey) -> None:
    """Do no work beyond the checks."""


def data_caller(request: Request, deps: Deps) -> DataCaller:
    """Make the caller of a data-plane route."""
    return DataCaller(request, deps)


async def require_admin(request: Request, deps: Deps) -> None:
    """Let the admin token and console sessions through.

    Raises:
        APIProblem: invalid_key, or forbidden for a data plane's token and for another site's page.
    """
    if COOKIE in request.cookies and "authorization" not in request.headers:
        await require_session(request, deps.database, deps.admin_token_hash)
    else:
        _require_admin_token(request, deps)
    request.state.actor = ADMIN_ACTOR


def _require_admin_token(request: Request, deps: APIDeps) -> None:
    token = bearer_token(request)
    if not hmac.compare_digest(hash_secret(token), deps.admin_token_hash):
        if token.startswith(deps.settings.key_prefix):
            raise APIProblem(ErrorCode.FORBIDDEN, {"reason": "data_key_on_control_plane"})
        raise APIProblem(ErrorCode.INVALID_KEY)


def language_of(request: Request) -> Language:
    """Return the language that a request asks messages in."""
    return preferred_language(request.headers.get("accept-language"))


Caller = Annotated[DataCaller, Depends(data_caller)]
"""What a data-plane route asks for."""
