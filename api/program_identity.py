"""Who calls on the program plane: a program version or an execution runtime, by a credential of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Concatenate, ParamSpec, TypeVar

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from api.bodies import read_json
from api.deps import APIDeps, Deps
from api.errors import APIProblem, Audited, malformed
from api.identity import ADMIN_PREFIX, bearer_token
from governance.canonical import JSON, is_object
from governance.codes import ErrorCode
from models.base import utc_now
from models.credential import PROGRAM_PREFIX, RUNTIME_PREFIX
from models.database import ReadSession, WriteSession
from models.program import AgentProgram, ProgramVersion, find_version_by_secret
from models.runtime import ExecutionRuntime, find_runtime_by_secret

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ProgramPrincipal:
    """A version of a program, by its own credential."""

    program: AgentProgram
    version: ProgramVersion


@dataclass(frozen=True)
class RuntimePrincipal:
    """An execution runtime, by its own credential."""

    runtime: ExecutionRuntime


Principal = ProgramPrincipal | RuntimePrincipal
"""Who may call on the program plane."""


class PlaneCaller:
    """A request on the program plane, and transactions that check its credential first."""

    def __init__(self, request: Request, deps: APIDeps) -> None:
        """Read the header; raises invalid_key, or forbidden for a token of another plane."""
        self.request = request
        self.deps = deps
        self._token = bearer_token(request)
        if self._token.startswith((ADMIN_PREFIX, deps.settings.key_prefix)):
            raise APIProblem(ErrorCode.FORBIDDEN, {"reason": "token_of_another_plane"})

    @property
    def request_id(self) -> str:
        """The id of the request."""
        request_id: str = self.request.state.request_id
        return request_id

    async def read(
        self,
        work: Callable[Concatenate[ReadSession, Principal, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Check the credential and run `work(session, principal, ...)`, in one transaction."""

        def transaction(session: ReadSession) -> T:
            return work(session, self._authenticate(session), *args, **kwargs)

        return await self.deps.database.read(transaction)

    async def write(
        self,
        work: Callable[Concatenate[WriteSession, Principal, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Check the credential and run `work(session, principal, ...)`, in one transaction that may write."""

        def transaction(session: WriteSession) -> T:
            return work(session, self._authenticate(session), *args, **kwargs)

        return await self.deps.database.write(transaction)

    async def body(self) -> dict[str, JSON]:
        """Return the body, a JSON object; strangers are turned away before they are told of its faults."""
        await self.read(_nothing)
        value = await read_json(self.request, self.deps.settings.body_max_bytes)
        if not is_object(value):
            raise malformed(
                "the body is an object", status=422, problems=[{"path": "", "problem": "is an object"}]
            )
        return value

    def _authenticate(self, session: Session) -> Principal:
        principal = _principal(session, self._token)
        self.request.state.actor = (
            principal.version.id if isinstance(principal, ProgramPrincipal) else principal.runtime.id
        )
        return principal


def program_of_caller(principal: Principal) -> ProgramPrincipal:
    """Return the program that calls; raises forbidden for a runtime."""
    if isinstance(principal, RuntimePrincipal):
        raise APIProblem(ErrorCode.FORBIDDEN, {"reason": "runtime_credential"})
    return principal


def _principal(session: Session, token: str) -> Principal:
    now = utc_now()
    if token.startswith(PROGRAM_PREFIX):
        found = find_version_by_secret(session, token, now)
        if found is not None:
            program, version = found
            if not program.enabled:
                raise APIProblem(ErrorCode.KEY_DISABLED, audited=Audited(actor=version.id))
            return ProgramPrincipal(program, version)
    if token.startswith(RUNTIME_PREFIX):
        runtime = find_runtime_by_secret(session, token, now)
        if runtime is not None:
            if not runtime.enabled:
                raise APIProblem(ErrorCode.KEY_DISABLED, audited=Audited(actor=runtime.id))
            return RuntimePrincipal(runtime)
    raise APIProblem(ErrorCode.INVALID_KEY)


def _nothing(_session: ReadSession, _principal: Principal) -> None:
    """Do no work beyond the check."""


def plane_caller(request: Request, deps: Deps) -> PlaneCaller:
    """Make the caller of a program-plane route."""
    return PlaneCaller(request, deps)


OnProgramPlane = Annotated[PlaneCaller, Depends(plane_caller)]
"""What a program-plane route asks for."""
