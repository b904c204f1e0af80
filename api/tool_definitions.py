"""Tool definitions as operators govern them: approved lists and pins; each function is one transaction."""

import json
from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from api.changes import record_change
from api.connections import load_connection
from api.errors import APIProblem, invalid_field, malformed, not_found
from api.etags import check_if_match, etag_of
from api.pages import id_of, page_of
from api.schemas.programs import AddImplementationBody
from governance.canonical import JSON
from governance.codes import ErrorCode, IdempotencyClass
from governance.modes import GovernanceMode, SelectionRule
from models.added_implementation import add_implementation, find_listed, remove_implementation
from models.connection_tools import reference_of
from models.database import ReadSession, WriteSession
from models.projection import hold_definition, reproject_definition
from models.tool import (
    ApprovedImplementation,
    ImplementationSource,
    SourceKind,
    ToolDefinition,
    ToolImplementation,
    load_snapshots,
)


def list_definitions(
    session: ReadSession, limit: int, cursor: str | None, scope: str | None, tool_name: str | None
) -> dict[str, JSON]:
    """Return a page of definitions by id, the newest first."""
    query = select(ToolDefinition).order_by(ToolDefinition.id.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(ToolDefinition.id < id_of(cursor))
    if scope is not None:
        query = query.where(ToolDefinition.scope == scope.replace("\x00", ""))
    if tool_name is not None:
        query = query.where(ToolDefinition.tool_name == tool_name.replace("\x00", ""))
    rows = session.scalars(query).all()
    return page_of(rows, limit, lambda row: show_definition(session, row), lambda row: row.id)


def read_definition(session: ReadSession, definition_id: str) -> dict[str, JSON]:
    """Return a definition with its implementations; raises not_found."""
    return show_definition(session, _load(session, definition_id))


def put_approved(
    session: WriteSession,
    definition_id: str,
    references: Sequence[str] | None,
    if_match: str | None,
    request_id: str,
) -> dict[str, JSON]:
    """Set the whole approved list; None goes back to the default implementation alone.

    Raises:
        APIProblem: invalid_request with 422 for a reference that is no live implementation of the tool.
    """
    definition = _load(session, definition_id, for_update=True)
    check_if_match(if_match, _etag(session, definition), "tool")
    candidates = {row.implementation_ref: row for row, _ in _implementations(session, definition.id)}
    wanted = list(dict.fromkeys(references or ()))
    for number, reference in enumerate(wanted):
        if reference not in candidates or candidates[reference].retired_at is not None:
            problem = {"path": f"implementations[{number}]", "problem": "is no implementation of this tool"}
            raise malformed(f"{problem['path']} {problem['problem']}", status=422, problems=[problem])
    before = _approved(session, definition)
    session.execute(
        delete(ApprovedImplementation).where(ApprovedImplementation.tool_definition_id == definition.id)
    )
    definition.has_approved_list = references is not None
    session.add_all(
        ApprovedImplementation(
            tool_definition_id=definition.id, tool_implementation_id=candidates[reference].id
        )
        for reference in wanted
    )
    session.flush()
    after = _approved(session, definition)
    record_change(session, request_id, "put_approved", definition=definition.id, before=before, after=after)
    return show_definition(session, definition)


def put_pin(
    session: WriteSession,
    definition_id: str,
    content_digest: str | None,
    if_match: str | None,
    request_id: str,
) -> dict[str, JSON]:
    """Accept the content of a tool: an implementation with other content is refused from now on.

    Raises:
        APIProblem: invalid_request with 422 for a digest that no live implementation has.
    """
    definition = _load(session, definition_id, for_update=True)
    check_if_match(if_match, _etag(session, definition), "tool")
    live = [row for row, _ in _implementations(session, definition.id) if row.retired_at is None]
    default = next((row.content_digest for row in live if row.is_default), None)
    wanted = content_digest or default
    if wanted is None or wanted not in {row.content_digest for row in live}:
        problem = {"path": "content_digest", "problem": "is the content of no live implementation"}
        raise malformed(f"{problem['path']} {problem['problem']}", status=422, problems=[problem])
    return _pin(session, definition, wanted, request_id)


def delete_pin(
    session: WriteSession, definition_id: str, if_match: str | None, request_id: str
) -> dict[str, JSON]:
    """Accept whatever the tool's source declares, now and later."""
    definition = _load(session, definition_id, for_update=True)
    check_if_match(if_match, _etag(session, definition), "tool")
    return _pin(session, definition, None, request_id)


def put_approval(
    session: WriteSession, definition_id: str, if_match: str | None, request_id: str, *, required: bool
) -> dict[str, JSON]:
    """Say whether each call of a tool needs an approval; it holds for rounds that were frozen before, too."""
    definition = _load(session, definition_id)
    hold_definition(session, definition)
    check_if_match(if_match, _etag(session, definition), "tool")
    before = definition.requires_approval
    if before != required:
        definition.requires_approval = required
        session.flush()
        # Snapshots say it as well, so that what a round froze is whole.
        reproject_definition(session, definition)
        record_change(
            session, request_id, "put_approval", definition=definition.id, before=before, after=required
        )
    return show_definition(session, definition)


def put_idempotency(
    session: WriteSession,
    definition_id: str,
    wanted: IdempotencyClass | None,
    if_match: str | None,
    request_id: str,
) -> dict[str, JSON]:
    """Say how calls of a tool may be repeated; None leaves it to its connection. Frozen calls keep theirs."""
    definition = _load(session, definition_id)
    hold_definition(session, definition)
    check_if_match(if_match, _etag(session, definition), "tool")
    before = definition.idempotency
    if before is not wanted:
        definition.idempotency = wanted
        session.flush()
        reproject_definition(session, definition)
        record_change(
            session, request_id, "put_idempotency", definition=definition.id, before=before, after=wanted
        )
    return show_definition(session, definition)


def put_timeout(
    session: WriteSession,
    definition_id: str,
    wanted_s: float | None,
    if_match: str | None,
    request_id: str,
) -> dict[str, JSON]:
    """Say how long a call of a tool may take; None leaves it to its connection. Frozen calls keep theirs."""
    definition = _load(session, definition_id)
    hold_definition(session, definition)
    check_if_match(if_match, _etag(session, definition), "tool")
    before = definition.timeout_s
    if before != wanted_s:
        definition.timeout_s = wanted_s
        session.flush()
        reproject_definition(session, definition)
        record_change(
            session, request_id, "put_timeout", definition=definition.id, before=before, after=wanted_s
        )
    return show_definition(session, definition)


def add_candidate(
    session: WriteSession,
    definition_id: str,
    body: AddImplementationBody,
    if_match: str | None,
    request_id: str,
) -> dict[str, JSON]:
    """Let a tool of a connection stand in for a tool; rounds and tasks may then ask for it by reference.

    Raises:
        APIProblem: not_found for definition or connection, implementation_not_allowed for a reserved tool,
            wrong_state for a retired one, invalid_request with 422 for a tool that the connection does not
            list or that is the tool itself.
    """
    definition = _load(session, definition_id)
    connection = load_connection(session, body.client, for_update=True)
    hold_definition(session, definition)
    check_if_match(if_match, _etag(session, definition), "tool")
    reference = reference_of(connection, body.upstream_name)
    if definition.governance_mode is GovernanceMode.RESERVED:
        details: dict[str, JSON] = {
            "tool": definition.tool_name,
            "implementation": reference,
            "rule": SelectionRule.RESERVED.value,
        }
        raise APIProblem(ErrorCode.IMPLEMENTATION_NOT_ALLOWED, details)
    if definition.retired_at is not None:
        raise _wrong_state("tool", definition.tool_name, "retired")
    tool = find_listed(session, connection, body.upstream_name)
    if tool is None:
        raise invalid_field("upstream_name", "is no tool that the connection lists")
    own = {
        row.implementation_ref
        for row, _ in _implementations(session, definition.id)
        if not row.is_added and row.retired_at is None
    }
    if reference in own:
        raise invalid_field("upstream_name", "is an implementation of this tool already")
    added = add_implementation(session, definition, connection, tool)
    record_change(
        session,
        request_id,
        "add_implementation",
        definition=definition.id,
        implementation=added.id,
        reference=reference,
    )
    return show_definition(session, definition)


def remove_candidate(
    session: WriteSession, definition_id: str, implementation_id: str, if_match: str | None, request_id: str
) -> dict[str, JSON]:
    """Take an added implementation away; what rounds and tasks froze of it stays as it is.

    Raises:
        APIProblem: not_found, or wrong_state for an implementation that the tool's own catalog declares.
    """
    definition = _load(session, definition_id, for_update=True)
    check_if_match(if_match, _etag(session, definition), "tool")
    implementation = session.get(ToolImplementation, implementation_id)
    if implementation is None or implementation.tool_definition_id != definition.id:
        raise not_found("implementation", implementation_id)
    if not implementation.is_added:
        raise _wrong_state("implementation", implementation.implementation_ref, "not added by an operator")
    remove_implementation(session, implementation)
    record_change(
        session,
        request_id,
        "remove_implementation",
        definition=definition.id,
        implementation=implementation.id,
        reference=implementation.implementation_ref,
    )
    return show_definition(session, definition)


def _wrong_state(what: str, name: str, state: str) -> APIProblem:
    return APIProblem(ErrorCode.WRONG_STATE, {"what": what, "name": name, "state": state})


def _pin(
    session: WriteSession, definition: ToolDefinition, wanted: str | None, request_id: str
) -> dict[str, JSON]:
    before = definition.pinned_digest
    definition.pinned_digest = wanted
    session.flush()
    record_change(session, request_id, "put_pin", definition=definition.id, before=before, after=wanted)
    return show_definition(session, definition)


def show_definition(session: Session, definition: ToolDefinition) -> dict[str, JSON]:
    """Return a definition as operators see it."""
    rows = _implementations(session, definition.id)
    snapshots = load_snapshots(session, {row.snapshot_digest for row, _ in rows})
    pinned = definition.pinned_digest
    default = next((row for row, _ in rows if row.is_default), None)
    changed = pinned is not None and default is not None and default.content_digest != pinned
    return {
        "id": definition.id,
        "scope": definition.scope,
        "tool_name": definition.tool_name,
        "tool_kind": definition.tool_kind,
        "governance_mode": definition.governance_mode.value,
        "approved": _approved(session, definition),
        "pinned_digest": pinned,
        "changed_since_pinned": changed,
        "requires_approval": definition.requires_approval,
        "idempotency": definition.idempotency,
        "timeout_s": definition.timeout_s,
        "retired": definition.retired_at is not None,
        "implementations": [_show(row, kind, snapshots[row.snapshot_digest]) for row, kind in rows],
        "etag": _etag(session, definition),
    }


def _show(row: ToolImplementation, kind: SourceKind, content: bytes) -> dict[str, JSON]:
    snapshot = json.loads(content)
    return {
        "id": row.id,
        "implementation_ref": row.implementation_ref,
        "source_kind": kind.value,
        "is_default": row.is_default,
        "is_added": row.is_added,
        "retired": row.retired_at is not None,
        "content_digest": row.content_digest,
        "snapshot_digest": row.snapshot_digest,
        "parallel_safe": snapshot["parallel_safe"],
        "policy_provenance": snapshot["policy_provenance"],
        "idempotency": snapshot["idempotency"],
        "idempotency_provenance": snapshot.get("idempotency_provenance", []),
        "timeout_s": snapshot["timeout_s"],
        "timeout_provenance": snapshot.get("timeout_provenance", []),
    }


def _load(session: Session, definition_id: str, *, for_update: bool = False) -> ToolDefinition:
    definition = session.get(ToolDefinition, definition_id)
    if definition is None:
        raise not_found("definition", definition_id)
    if for_update:
        session.refresh(definition, with_for_update=True)
    return definition


def _implementations(session: Session, definition_id: str) -> Sequence[tuple[ToolImplementation, SourceKind]]:
    rows = session.execute(
        select(ToolImplementation, ImplementationSource.source_kind)
        .join(ImplementationSource, ImplementationSource.id == ToolImplementation.implementation_source_id)
        .where(ToolImplementation.tool_definition_id == definition_id)
        .order_by(ToolImplementation.id)
    ).all()
    return [(row, kind) for row, kind in rows]


def _approved(session: Session, definition: ToolDefinition) -> list[str]:
    """Return the references on the approved list, which is the default alone until an operator sets it."""
    query = (
        select(ToolImplementation.implementation_ref)
        .where(ToolImplementation.tool_definition_id == definition.id)
        .order_by(ToolImplementation.implementation_ref)
    )
    if not definition.has_approved_list:
        return list(session.scalars(query.where(ToolImplementation.is_default)))
    return list(
        session.scalars(
            query.join(
                ApprovedImplementation, ApprovedImplementation.tool_implementation_id == ToolImplementation.id
            )
        )
    )


def _etag(session: Session, definition: ToolDefinition) -> str:
    return etag_of(
        {
            "approved": _approved(session, definition),
            "has_approved_list": definition.has_approved_list,
            "pinned_digest": definition.pinned_digest,
            "requires_approval": definition.requires_approval,
            "idempotency": definition.idempotency,
            "timeout_s": definition.timeout_s,
            "added": [row.id for row, _ in _implementations(session, definition.id) if row.is_added],
        }
    )
