"""Handshakes: what programs and runtimes declare, checked against what is registered, and the answer.

Each function is one transaction. Source: core document, capability handshake and governed catalog.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.errors import APIProblem, malformed
from api.program_identity import Principal, ProgramPrincipal, RuntimePrincipal
from governance.canonical import JSON, canonical_bytes, is_object
from governance.catalog_entries import read_runtime_catalog
from governance.catalogs import EffectiveTool
from governance.codes import ErrorCode
from governance.faults import Fault, Faults
from governance.handshake import (
    ProgramDefinition,
    definition_diff,
    execution_plane,
    program_plane,
    read_definition,
)
from governance.profiles import union_of_allowed_names
from models.base import utc_now
from models.database import WriteSession
from models.program import ProgramVersion
from models.projecting import source_ref_of
from models.runtime import ExecutionRuntime
from models.tool import ToolDefinition, ToolImplementation, scope_of_version
from models.version_projection import (
    ProjectedVersion,
    project_version,
    reproject_all_versions,
    servers_of,
)

HANDSHAKE = "capabilities_handshake"
REFRESH = "capabilities_refresh"

EXECUTION_FIELDS = ("execution_capability_payload", "execution_tool_catalog")
"""What is said of an execution runtime."""


def handshake(session: WriteSession, caller: Principal, body: Mapping[str, JSON]) -> dict[str, JSON]:
    """Check what the caller declares, project it, and answer with every plane and catalog.

    Raises:
        APIProblem: invalid_request with 422 and every fault, or conflict with 409 and the differences;
            nothing is changed then.
    """
    if isinstance(caller, RuntimePrincipal):
        _record_runtime(session, caller.runtime, body, required=True)
        reproject_all_versions(session, caller.runtime.id)
        return _runtime_answer(caller.runtime, HANDSHAKE)
    sent = checked_definition(session, caller.version.id, body)
    stored = caller.version.definition()
    faults: list[Fault] = []
    if sent.fingerprint != stored.fingerprint:
        faults.append(Fault("fingerprint", "is not the one that this credential was made for"))
    faults += _execution_faults(caller, body)
    if faults:
        raise refused_faults(faults)
    if sent.digest != stored.digest:
        raise changed_definition(stored, sent)
    if any(name in body for name in EXECUTION_FIELDS):
        runtime = session.get_one(ExecutionRuntime, caller.program.execution_runtime_id)
        _record_runtime(session, runtime, body, required=False)
        reproject_all_versions(session, runtime.id)
    return _program_answer(session, caller, project_version(session, caller.version), HANDSHAKE)


def refresh(session: WriteSession, caller: Principal) -> dict[str, JSON]:
    """Project what is registered again, and answer as a handshake does."""
    if isinstance(caller, RuntimePrincipal):
        return _runtime_answer(caller.runtime, REFRESH)
    return _program_answer(session, caller, project_version(session, caller.version), REFRESH)


def checked_definition(session: Session, version_id: str, body: Mapping[str, JSON]) -> ProgramDefinition:
    """Return a declaration that has no fault; raises invalid_request with 422 and every fault."""
    try:
        definition, _ = read_definition(body, source_ref_of(version_id), servers_of(session))
    except Faults as faults:
        raise refused_faults(faults.found) from faults
    return definition


def refused_faults(faults: Sequence[Fault]) -> APIProblem:
    """Refuse a declaration, with every fault of it."""
    first = faults[0]
    clause = f"{first.path} {first.problem}".strip()
    return malformed(clause, status=422, problems=[fault.to_json() for fault in faults])


def changed_definition(stored: ProgramDefinition, sent: ProgramDefinition) -> APIProblem:
    """Refuse other content under a fingerprint that is taken, with what differs."""
    details = {
        "what": "program version",
        "name": stored.fingerprint,
        "diff": definition_diff(stored, sent),
    }
    return APIProblem(ErrorCode.CONFLICT, details)


def _execution_faults(caller: ProgramPrincipal, body: Mapping[str, JSON]) -> list[Fault]:
    """Say why a program may not speak for its runtime, which is a channel of its own."""
    named = [name for name in EXECUTION_FIELDS if name in body]
    if not named:
        return []
    if not caller.program.declares_runtime:
        problem = "is declared by the execution runtime itself; this program may not speak for it"
        return [Fault(name, problem) for name in named]
    if caller.program.execution_runtime_id is None:
        return [Fault(name, "needs an execution runtime, and this program has none") for name in named]
    return _runtime_faults(body, str(caller.program.execution_runtime_id), required=False)


def _runtime_faults(body: Mapping[str, JSON], runtime_id: str, *, required: bool) -> list[Fault]:
    faults: list[Fault] = []
    if not is_object(body.get("execution_capability_payload", {})):
        faults.append(Fault("execution_capability_payload", "is an object"))
    if required or "execution_tool_catalog" in body:
        faults += read_runtime_catalog(body.get("execution_tool_catalog"), runtime_id)[1]
    if not faults and b"\\u0000" in canonical_bytes([body.get(name) for name in EXECUTION_FIELDS]):
        faults.append(Fault("execution_capability_payload", "holds the character NUL"))
    return faults


def _record_runtime(
    session: WriteSession, runtime: ExecutionRuntime, body: Mapping[str, JSON], *, required: bool
) -> None:
    faults = _runtime_faults(body, runtime.id, required=required)
    if required and body.get("fingerprint") != runtime.fingerprint:
        faults.insert(0, Fault("fingerprint", "is not the one that this credential was made for"))
    if faults:
        raise refused_faults(faults)
    session.refresh(runtime, with_for_update=True)
    before = (runtime.capability_payload, runtime.tool_catalog)
    if "execution_capability_payload" in body:
        runtime.capability_payload = body["execution_capability_payload"]
    if "execution_tool_catalog" in body:
        runtime.tool_catalog = body["execution_tool_catalog"]
    if (runtime.capability_payload, runtime.tool_catalog) != before:
        runtime.updated_at = utc_now()
    session.flush()


def _runtime_answer(runtime: ExecutionRuntime, method: str) -> dict[str, JSON]:
    return {"method_id": method, **_runtime_part(runtime)}


def _runtime_part(runtime: ExecutionRuntime) -> dict[str, JSON]:
    return {
        "execution_runtime_id": runtime.id,
        "runtime_fingerprint": runtime.fingerprint,
        "execution_capability_payload": runtime.capability_payload,
        "execution_tool_catalog": runtime.tool_catalog,
        "execution_plane": execution_plane(runtime.capability_payload, runtime.tool_catalog),
    }


def _program_answer(
    session: WriteSession, caller: ProgramPrincipal, projected: ProjectedVersion, method: str
) -> dict[str, JSON]:
    plane = program_plane(projected.definition)
    shown = {name: value for name, value in plane.items() if name != "runtime_plane"}
    tools = projected.catalog.executable()
    return {
        "method_id": method,
        "program_version_id": caller.version.id,
        **shown,
        "reconciliation_report": {},
        **({} if projected.runtime is None else _runtime_part(projected.runtime)),
        "program_plane": plane,
        "effective_tool_catalog": [_entry(tool) for tool in tools],
        "governed_effective_tool_catalog": _governed(session, caller.version, projected, tools),
    }


def _entry(tool: EffectiveTool) -> dict[str, JSON]:
    return tool.entry.to_json(parallel_safe=tool.policy.parallel_safe)


def _governed(
    session: Session, version: ProgramVersion, projected: ProjectedVersion, tools: Sequence[EffectiveTool]
) -> list[JSON]:
    """Annotate the tools that some profile lists, all where none lists any, with their governance."""
    named = union_of_allowed_names(projected.definition.profile_catalog)
    rows = session.execute(
        select(ToolDefinition.tool_name, ToolDefinition.id, ToolImplementation.id)
        .join(ToolImplementation, ToolImplementation.tool_definition_id == ToolDefinition.id)
        .where(ToolDefinition.scope == scope_of_version(version.id), ToolImplementation.is_default)
    ).all()
    ids = {name: (definition_id, implementation_id) for name, definition_id, implementation_id in rows}
    return [
        {
            **_entry(tool),
            "tool_definition_id": ids[tool.entry.tool_name][0],
            "tool_implementation_id": ids[tool.entry.tool_name][1],
            "governance_mode": tool.mode.value,
        }
        for tool in tools
        if named is None or tool.entry.tool_name in named
    ]
