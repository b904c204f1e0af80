"""Programs and runtimes as the control plane edits and shows them; each function is one transaction."""

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.changes import record_change
from api.errors import APIProblem, malformed, not_found
from api.etags import check_if_match, etag_of
from api.handshakes import changed_definition, checked_definition
from api.pages import page_of
from api.schemas.programs import CreateProgramBody, CreateRuntimeBody, EditProgramBody
from governance.canonical import JSON
from governance.codes import ErrorCode
from models.base import new_id, utc_now
from models.database import ReadSession, WriteSession
from models.key import ApiKey
from models.program import (
    AgentProgram,
    NewProgram,
    ProgramVersion,
    add_program,
    add_program_secret,
    add_version,
    find_program,
    find_version,
)
from models.runtime import (
    ExecutionRuntime,
    NewRuntime,
    add_runtime,
    add_runtime_secret,
    find_runtime,
)
from models.version_projection import project_version, reproject_all_versions


def create_program(session: WriteSession, body: CreateProgramBody, request_id: str) -> dict[str, JSON]:
    """Register a program, with a key of its own where none is named.

    Raises:
        APIProblem: conflict for a name or key that another program has, not_found for key or runtime.
    """
    runtime_id = None if body.execution_runtime is None else load_runtime(session, body.execution_runtime).id
    try:
        key_id = _key_for(session, body)
        program = add_program(
            session,
            NewProgram(body.name, key_id, runtime_id, body.declares_runtime, body.may_relax_policy),
        )
    except IntegrityError as error:
        raise APIProblem(ErrorCode.CONFLICT, {"what": "program", "name": body.name}) from error
    record_change(session, request_id, "create_program", program=program.id, settings=_settings(program))
    return show_program(session, program)


def _key_for(session: WriteSession, body: CreateProgramBody) -> str:
    """Return the key that a program acts as; one of its own may use what belongs to no connection."""
    if body.key_id is not None:
        key = session.get(ApiKey, body.key_id)
        if key is None:
            raise not_found("key", body.key_id)
        return key.id
    key = ApiKey(
        id=new_id(), name=f"program:{body.name}", enabled=True, has_tool_config=True, core_tools=True
    )
    session.add(key)
    session.flush()
    return key.id


def edit_program(
    session: WriteSession, name: str, body: EditProgramBody, if_match: str | None, request_id: str
) -> dict[str, JSON]:
    """Change a program's settings and, where they are part of its catalogs, project its versions again."""
    program = load_program(session, name)
    session.refresh(program, with_for_update=True)
    before = _settings(program)
    check_if_match(if_match, etag_of(before), "program")
    given = body.model_dump(exclude_unset=True)
    if "execution_runtime" in given:
        wanted = given.pop("execution_runtime")
        program.execution_runtime_id = None if wanted is None else load_runtime(session, wanted).id
    for field, value in given.items():
        if value is not None:
            setattr(program, field, value)
    after = _settings(program)
    if after != before:
        program.updated_at = utc_now()
        session.flush()
        for version in _versions(session, program.id):
            project_version(session, version)
        record_change(session, request_id, "edit_program", program=program.id, before=before, after=after)
    return show_program(session, program)


def list_programs(session: ReadSession, limit: int, cursor: str | None) -> dict[str, JSON]:
    """Return a page of programs by name."""
    query = select(AgentProgram).order_by(AgentProgram.name).limit(limit + 1)
    if cursor is not None:
        query = query.where(AgentProgram.name > _cursor(cursor))
    rows = session.scalars(query).all()
    return page_of(rows, limit, lambda row: show_program(session, row), lambda row: row.name)


def read_program(session: ReadSession, name: str) -> dict[str, JSON]:
    """Return a program as the control plane shows it; raises not_found."""
    return show_program(session, load_program(session, name))


def register_version(
    session: WriteSession, name: str, body: Mapping[str, JSON], request_id: str
) -> tuple[dict[str, JSON], bool]:
    """Register a version of a program; return it and whether it is new.

    The same declaration again changes nothing. Raises invalid_request with 422 and every fault, or conflict
    with the differences where the fingerprint stands for something else.
    """
    program = load_program(session, name)
    session.refresh(program, with_for_update=True)
    version_id = new_id()
    definition = checked_definition(session, version_id, body)
    known = find_version(session, program.id, definition.fingerprint)
    if known is not None:
        if known.definition_digest != definition.digest:
            raise changed_definition(known.definition(), definition)
        return _show_version(program, known), False
    version = add_version(session, program.id, definition, version_id)
    project_version(session, version)
    secret = add_program_secret(session, version.id)
    record_change(
        session,
        request_id,
        "register_program_version",
        program=program.id,
        version=version.id,
        fingerprint=version.fingerprint,
    )
    return {**_show_version(program, version), "secret": secret.text}, True


def list_versions(session: ReadSession, name: str) -> dict[str, JSON]:
    """Return the versions of a program, oldest first."""
    program = load_program(session, name)
    return {"items": [_show_version(program, version) for version in _versions(session, program.id)]}


def add_version_secret(session: WriteSession, name: str, version_id: str, request_id: str) -> dict[str, JSON]:
    """Make a further secret of a version; those before stay valid."""
    program = load_program(session, name)
    version = session.get(ProgramVersion, version_id)
    if version is None or version.program_id != program.id:
        raise not_found("program version", version_id)
    secret = add_program_secret(session, version.id)
    record_change(session, request_id, "add_program_secret", version=version.id, secret=secret.secret_id)
    return {"id": secret.secret_id, "secret": secret.text}


def create_runtime(session: WriteSession, body: CreateRuntimeBody, request_id: str) -> dict[str, JSON]:
    """Register an execution runtime, which has declared nothing yet."""
    try:
        runtime = add_runtime(session, NewRuntime(body.name, body.fingerprint))
    except IntegrityError as error:
        raise APIProblem(ErrorCode.CONFLICT, {"what": "runtime", "name": body.name}) from error
    secret = add_runtime_secret(session, runtime.id)
    record_change(session, request_id, "create_runtime", runtime=runtime.id, name=runtime.name)
    return {**show_runtime(runtime), "secret": secret.text}


def edit_runtime(
    session: WriteSession, name: str, *, enabled: bool, if_match: str | None, request_id: str
) -> dict[str, JSON]:
    """Take a runtime out of use or back; the versions that have it are projected again."""
    runtime = load_runtime(session, name)
    session.refresh(runtime, with_for_update=True)
    check_if_match(if_match, _runtime_etag(runtime), "runtime")
    if runtime.enabled != enabled:
        runtime.enabled = enabled
        runtime.updated_at = utc_now()
        session.flush()
        reproject_all_versions(session, runtime.id)
        record_change(session, request_id, "edit_runtime", runtime=runtime.id, enabled=enabled)
    return show_runtime(runtime)


def list_runtimes(session: ReadSession, limit: int, cursor: str | None) -> dict[str, JSON]:
    """Return a page of runtimes by name."""
    query = select(ExecutionRuntime).order_by(ExecutionRuntime.name).limit(limit + 1)
    if cursor is not None:
        query = query.where(ExecutionRuntime.name > _cursor(cursor))
    return page_of(session.scalars(query).all(), limit, show_runtime, lambda row: row.name)


def read_runtime(session: ReadSession, name: str) -> dict[str, JSON]:
    """Return a runtime as the control plane shows it; raises not_found."""
    return show_runtime(load_runtime(session, name))


def add_secret_of_runtime(session: WriteSession, name: str, request_id: str) -> dict[str, JSON]:
    """Make a further secret of a runtime; those before stay valid."""
    runtime = load_runtime(session, name)
    secret = add_runtime_secret(session, runtime.id)
    record_change(session, request_id, "add_runtime_secret", runtime=runtime.id, secret=secret.secret_id)
    return {"id": secret.secret_id, "secret": secret.text}


def load_program(session: Session, name: str) -> AgentProgram:
    """Return a program by name; raises not_found."""
    program = None if "\x00" in name else find_program(session, name)
    if program is None:
        raise not_found("program", name[:100].replace("\x00", ""))
    return program


def load_runtime(session: Session, name: str) -> ExecutionRuntime:
    """Return a runtime by name; raises not_found."""
    runtime = None if "\x00" in name else find_runtime(session, name)
    if runtime is None:
        raise not_found("runtime", name[:100].replace("\x00", ""))
    return runtime


def show_program(session: Session, program: AgentProgram) -> dict[str, JSON]:
    """Return a program as the control plane shows it."""
    runtime_id = program.execution_runtime_id
    runtime = None if runtime_id is None else session.get_one(ExecutionRuntime, runtime_id)
    return {
        "id": program.id,
        "name": program.name,
        "key_id": program.key_id,
        "execution_runtime": None if runtime is None else runtime.name,
        "declares_runtime": program.declares_runtime,
        "may_relax_policy": program.may_relax_policy,
        "enabled": program.enabled,
        "created_at": program.created_at.isoformat(),
        "updated_at": program.updated_at.isoformat(),
        "etag": etag_of(_settings(program)),
    }


def show_runtime(runtime: ExecutionRuntime) -> dict[str, JSON]:
    """Return a runtime as the control plane shows it."""
    return {
        "id": runtime.id,
        "name": runtime.name,
        "fingerprint": runtime.fingerprint,
        "enabled": runtime.enabled,
        "capability_payload": runtime.capability_payload,
        "tool_catalog": runtime.tool_catalog,
        "created_at": runtime.created_at.isoformat(),
        "updated_at": runtime.updated_at.isoformat(),
        "etag": _runtime_etag(runtime),
    }


def _settings(program: AgentProgram) -> dict[str, JSON]:
    return {
        "key_id": program.key_id,
        "execution_runtime_id": program.execution_runtime_id,
        "declares_runtime": program.declares_runtime,
        "may_relax_policy": program.may_relax_policy,
        "enabled": program.enabled,
    }


def _runtime_etag(runtime: ExecutionRuntime) -> str:
    return etag_of({"enabled": runtime.enabled, "fingerprint": runtime.fingerprint})


def _versions(session: Session, program_id: str) -> tuple[ProgramVersion, ...]:
    return tuple(
        session.scalars(
            select(ProgramVersion).where(ProgramVersion.program_id == program_id).order_by(ProgramVersion.id)
        )
    )


def _show_version(program: AgentProgram, version: ProgramVersion) -> dict[str, JSON]:
    return {
        "id": version.id,
        "program": program.name,
        "fingerprint": version.fingerprint,
        "definition_digest": version.definition_digest,
        "created_at": version.created_at.isoformat(),
    }


def _cursor(cursor: str) -> str:
    if "\x00" in cursor:
        raise malformed("cursor is the next_cursor of an earlier page")
    return cursor
