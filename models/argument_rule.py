"""Argument rules as they are stored: with the row of their key, connection or tool, which is read anyway.

The column holds {"revision", "rules"}, or null where no rule was ever set. Rules of connections and tools
stand in the snapshots of the tools; those of a key in each round that the key asks for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from sqlalchemy.orm import Session

from governance.argument_rules import FrozenRule, RuleLevel, freeze_rules, key_names
from governance.canonical import JSON
from governance.snapshots import ToolSnapshot
from models.connection import Connection
from models.key import ApiKey
from models.tool import ToolDefinition

RuleOwner: TypeAlias = ApiKey | Connection | ToolDefinition
"""What rules are set on."""


def rules_of(owner: RuleOwner) -> list[JSON]:
    """Return the rules as they were set."""
    return [] if owner.argument_rules is None else list(owner.argument_rules["rules"])


def revision_of(owner: RuleOwner) -> int:
    """Return how often the rules were set."""
    return 0 if owner.argument_rules is None else int(owner.argument_rules["revision"])


def replace_rules(owner: RuleOwner, rules: Sequence[JSON]) -> None:
    """Set the whole list of rules, which the caller has checked, under the next revision."""
    owner.argument_rules = {"revision": revision_of(owner) + 1, "rules": list(rules)}


def key_rules(key: ApiKey, exposed_name: str, connection_name: str | None) -> tuple[FrozenRule, ...]:
    """Return the rules of a key that hold for a tool."""
    return frozen_key_rules(key.argument_rules, exposed_name, connection_name)


def frozen_key_rules(
    stored: Mapping[str, JSON] | None, exposed_name: str, connection_name: str | None
) -> tuple[FrozenRule, ...]:
    """Return the rules that hold for a tool among those of a key as a round keeps them."""
    if stored is None:
        return ()
    names = key_names(exposed_name, connection_name)
    return freeze_rules(RuleLevel.KEY, stored["revision"], stored["rules"], names)


def ruled(session: Session, definition: ToolDefinition, snapshot: ToolSnapshot) -> ToolSnapshot:
    """Return a snapshot with the rules of its connection and tool; the same one where there are none.

    That calls of the tool need an approval is one of its rules, and so are how they may be
    repeated and how long one may take.
    """
    if definition.idempotency is not None:
        snapshot = snapshot.with_idempotency(definition.idempotency)
    if definition.timeout_s is not None:
        snapshot = snapshot.with_timeout(definition.timeout_s)
    if definition.requires_approval and not snapshot.requires_approval:
        snapshot = replace(snapshot, requires_approval=True)
    connection = session.get(Connection, snapshot.connection) if snapshot.connection else None
    rules: list[FrozenRule] = []
    for level, owner, name in (
        (RuleLevel.CONNECTION, connection, snapshot.upstream_name),
        (RuleLevel.TOOL, definition, snapshot.exposed_name),
    ):
        if owner is not None and owner.argument_rules is not None:
            rules += freeze_rules(level, revision_of(owner), rules_of(owner), (name,))
    return replace(snapshot, argument_rules=tuple(rule.to_json() for rule in rules)) if rules else snapshot
