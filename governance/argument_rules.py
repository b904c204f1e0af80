"""An operator's rules over the arguments of calls, of a key, a connection or a tool. Pure: no I/O.

Rules only narrow: arguments have to fit the tool's own schema and every rule that applies, of each level.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from governance.arguments import ArgumentProblem, json_type
from governance.canonical import JSON, NotCanonicalError, canonical_bytes, is_array, is_object
from governance.filters import WILDCARD
from governance.names import EXPOSED_NAME
from governance.schemas import SchemaProblem, ToolSchema, compile_schema

MOST_RULES: Final = 32
"""Rules of one key, connection or tool."""

LARGEST_RULES: Final = 64 * 1024
"""Bytes of the rules of one key, connection or tool: they are read with its row."""

_RULE_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_FIELDS: Final = frozenset({"id", "schema", "tools"})
_WHOLE_CONNECTION: Final = "-*"


class RuleLevel(StrEnum):
    """What a rule is set on."""

    KEY = "key"
    CONNECTION = "connection"
    TOOL = "tool"


@dataclass(frozen=True)
class RuleProblem:
    """A rule may not be set; `path` is its place, such as `rules[0].schema`."""

    path: str
    problem: str


@dataclass(frozen=True)
class FrozenRule:
    """A rule as a round freezes it; `schema` is JSON and not to be changed.

    `revision` counts the edits of the rules of its key, connection or tool.
    """

    id: str
    level: RuleLevel
    revision: int
    schema: JSON

    def to_json(self) -> dict[str, JSON]:
        """Return the rule as it is stored in snapshots and rounds."""
        return {"id": self.id, "level": self.level.value, "revision": self.revision, "schema": self.schema}

    @classmethod
    def from_json(cls, payload: Mapping[str, JSON]) -> "FrozenRule":
        """Read a stored rule back."""
        return cls(payload["id"], RuleLevel(payload["level"]), payload["revision"], payload["schema"])


@dataclass(frozen=True)
class BrokenRule:
    """The first rule that arguments break, and what to correct."""

    rule: FrozenRule
    problems: tuple[ArgumentProblem, ...]

    def audited(self) -> dict[str, JSON]:
        """Return what the audit trail tells of it: rule, level and revision."""
        return {"rule": self.rule.id, "revision": self.rule.revision}


class CompiledRules:
    """Rules with their compiled schemas; making one costs about a millisecond a rule."""

    def __init__(self, rules: Iterable[FrozenRule]) -> None:
        """Compile each; one that cannot be compiled refuses every call."""
        self._rules: Sequence[tuple[FrozenRule, ToolSchema | SchemaProblem]] = [
            (rule, compile_schema(rule.schema, every_pattern=True)) for rule in rules
        ]

    def check(self, arguments: JSON) -> BrokenRule | None:
        """Return the first rule that the arguments break, None where they break none."""
        for rule, schema in self._rules:
            if isinstance(schema, SchemaProblem):
                unusable = ArgumentProblem("", "nothing: the rule cannot be used", json_type(arguments))
                return BrokenRule(rule, (unusable,))
            problems = schema.check(arguments)
            if problems:
                return BrokenRule(rule, problems)
        return None


NO_RULES: Final = CompiledRules(())
"""The rules of nearly every call."""


def rules_problem(level: RuleLevel, rules: JSON) -> RuleProblem | None:
    """Say why rules may not be set on a key, connection or tool, and where; None if they may.

    A rule is {"id", "schema", "tools"?}. `tools` narrows a key's rule to exposed names, `<connection>-*` or
    `*`, and a connection's rule to exact upstream names; without it the rule holds for every tool.
    """
    if not is_array(rules):
        return RuleProblem("rules", "is a list of rules")
    if too_large := _size_problem(rules):
        return RuleProblem("rules", too_large)
    seen: set[str] = set()
    for number, rule in enumerate(rules):
        place = f"rules[{number}]"
        problem = _rule_problem(level, rule, place)
        if problem is not None:
            return problem
        if rule["id"] in seen:
            return RuleProblem(f"{place}.id", "stands here twice")
        seen.add(rule["id"])
    return None


def _size_problem(rules: list[JSON]) -> str | None:
    if len(rules) > MOST_RULES:
        return f"holds more than {MOST_RULES} rules"
    try:
        size = len(canonical_bytes(rules))
    except NotCanonicalError:
        return "cannot be written as JSON in UTF-8"
    return f"is longer than {LARGEST_RULES} bytes" if size > LARGEST_RULES else None


def _rule_problem(level: RuleLevel, rule: JSON, place: str) -> RuleProblem | None:
    if not is_object(rule) or "id" not in rule or "schema" not in rule:
        return RuleProblem(place, "is an object with id and schema")
    unknown = sorted(set(rule) - _FIELDS)
    if unknown:
        return RuleProblem(f"{place}.{unknown[0][:100]}", "is no field of a rule")
    if not isinstance(rule["id"], str) or not _RULE_ID.fullmatch(rule["id"]):
        return RuleProblem(f"{place}.id", "is 1 to 64 lower-case letters, digits, hyphens and underscores")
    if unusable := _schema_problem(rule["schema"]):
        return RuleProblem(f"{place}.schema", unusable)
    return _tools_problem(level, rule, f"{place}.tools") if "tools" in rule else None


def _schema_problem(schema: JSON) -> str | None:
    if not is_object(schema):
        return "is a JSON Schema, an object"
    if b"\\u0000" in canonical_bytes(schema):
        return "holds the character NUL"
    compiled = compile_schema(schema, every_pattern=True)
    return compiled.reason if isinstance(compiled, SchemaProblem) else None


def _tools_problem(level: RuleLevel, rule: Mapping[str, JSON], place: str) -> RuleProblem | None:
    tools = rule["tools"]
    if level is RuleLevel.TOOL:
        return RuleProblem(place, "is not for the rules of one tool")
    if not is_array(tools) or not tools or not all(isinstance(name, str) and name for name in tools):
        return RuleProblem(place, "is a list of tool names; leave it out for every tool")
    for number, name in enumerate(tools):
        if "\x00" in name or len(name) > 512:
            return RuleProblem(f"{place}[{number}]", "is no name of a tool")
        stem = name.removesuffix(_WHOLE_CONNECTION)
        if level is RuleLevel.KEY and name != WILDCARD and not EXPOSED_NAME.fullmatch(stem):
            return RuleProblem(f"{place}[{number}]", "is an exposed name, `<connection>-*` or `*`")
    return None


def freeze_rules(
    level: RuleLevel, revision: int, rules: Iterable[Mapping[str, JSON]], names: Sequence[str]
) -> tuple[FrozenRule, ...]:
    """Return the rules that hold for a tool; `names` are those under which rules of the level know it."""
    return tuple(
        FrozenRule(rule["id"], level, revision, rule["schema"])
        for rule in rules
        if applies(rule.get("tools"), names)
    )


def applies(tools: JSON, names: Sequence[str]) -> bool:
    """Say whether a rule's list of tools names one of `names`; no list names every tool."""
    if tools is None or WILDCARD in tools:
        return True
    return any(name in tools for name in names)


def key_names(exposed_name: str, connection_name: str | None) -> tuple[str, ...]:
    """Return the names under which a key's rules know a tool."""
    if connection_name is None:
        return (exposed_name,)
    return (exposed_name, f"{connection_name}{_WHOLE_CONNECTION}")
