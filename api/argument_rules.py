"""Argument rules as the control plane edits and shows them; each function is one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from api.changes import record_change
from api.connections import load_connection
from api.errors import not_found
from api.etags import check_if_match, etag_of
from api.routes.keys import load_key
from governance.canonical import JSON
from models.argument_rule import RuleOwner, replace_rules, revision_of, rules_of
from models.database import ReadSession, WriteSession
from models.projection import hold_definition, reproject_connection, reproject_definition
from models.tool import ToolDefinition


@dataclass(frozen=True)
class Rules:
    """The rules of a key, a connection or a tool."""

    rules: Sequence[JSON]
    revision: int

    @classmethod
    def of(cls, owner: RuleOwner) -> "Rules":
        """Read the rules of a row."""
        return cls(rules_of(owner), revision_of(owner))

    @property
    def etag(self) -> str:
        """The entity tag, made from the rules alone."""
        return etag_of(list(self.rules))

    def to_json(self) -> dict[str, JSON]:
        """Return the rules as shown."""
        return {"rules": list(self.rules), "revision": self.revision, "etag": self.etag}


def read_key_rules(session: ReadSession, key_id: str) -> Rules:
    """Return the rules of a key; raises not_found."""
    return Rules.of(load_key(session, key_id))


def put_key_rules(
    session: WriteSession, key_id: str, rules: Sequence[JSON], if_match: str | None, request_id: str
) -> Rules:
    """Set the rules of a key, which are checked; every call that is judged from now on has to keep them."""
    key = load_key(session, key_id, for_update=True)
    return _put(session, key, rules, if_match, (request_id, "put_key_argument_rules", {"key": key.id}))


def read_connection_rules(session: ReadSession, name: str) -> Rules:
    """Return the rules of a connection; raises not_found."""
    return Rules.of(load_connection(session, name))


def put_connection_rules(
    session: WriteSession, name: str, rules: Sequence[JSON], if_match: str | None, request_id: str
) -> Rules:
    """Set the rules of a connection, and project its tools again, whose snapshots hold them."""
    connection = load_connection(session, name, for_update=True)
    facts: dict[str, JSON] = {"connection": connection.id, "name": name}
    shown = _put(session, connection, rules, if_match, (request_id, "put_connection_argument_rules", facts))
    reproject_connection(session, connection)
    return shown


def read_tool_rules(session: ReadSession, definition_id: str) -> Rules:
    """Return the rules of a tool; raises not_found."""
    return Rules.of(_load_definition(session, definition_id))


def put_tool_rules(
    session: WriteSession, definition_id: str, rules: Sequence[JSON], if_match: str | None, request_id: str
) -> Rules:
    """Set the rules of a tool, and project its catalog again, in whose snapshots they stand."""
    definition = _load_definition(session, definition_id)
    hold_definition(session, definition)
    facts: dict[str, JSON] = {"definition": definition.id, "tool": definition.tool_name}
    shown = _put(session, definition, rules, if_match, (request_id, "put_tool_argument_rules", facts))
    reproject_definition(session, definition)
    return shown


def _put(
    session: WriteSession,
    owner: RuleOwner,
    rules: Sequence[JSON],
    if_match: str | None,
    change: tuple[str, str, dict[str, JSON]],
) -> Rules:
    before = Rules.of(owner)
    check_if_match(if_match, before.etag, "argument rules")
    if list(rules) != list(before.rules):
        replace_rules(owner, rules)
        session.flush()
    after = Rules.of(owner)
    request_id, name, facts = change
    record_change(
        session,
        request_id,
        name,
        **facts,
        revision=after.revision,
        before=list(before.rules),
        after=list(after.rules),
    )
    return after


def _load_definition(session: Session, definition_id: str) -> ToolDefinition:
    definition = session.get(ToolDefinition, definition_id)
    if definition is None:
        raise not_found("definition", definition_id)
    return definition
