"""Argument rules: what may be set, for which tools a rule holds, and what a broken one tells the model."""

from typing import Any

import pytest

from governance.admission import Admitted, Refused, judge_arguments
from governance.argument_rules import (
    LARGEST_RULES,
    MOST_RULES,
    CompiledRules,
    FrozenRule,
    RuleLevel,
    freeze_rules,
    key_names,
    rules_problem,
)
from governance.codes import Classification, ErrorCode
from governance.schemas import compile_schema
from governance.tool_cache import ToolCache

AMOUNT = {"properties": {"amount": {"type": "number", "maximum": 500}}}
FOLDER = {"properties": {"path": {"type": "string", "pattern": "^/srv/data/"}}, "required": ["path"]}


def rule(schema: Any = AMOUNT, **changes: Any) -> dict[str, Any]:
    return {"id": "max-amount", "schema": schema, **changes}


@pytest.mark.parametrize(
    ("level", "rules", "path"),
    [
        (RuleLevel.KEY, {}, "rules"),
        (RuleLevel.KEY, [rule(), "x"], "rules[1]"),
        (RuleLevel.KEY, [{"id": "a"}], "rules[0]"),
        (RuleLevel.KEY, [rule(id="Not an id")], "rules[0].id"),
        (RuleLevel.KEY, [rule(), rule()], "rules[1].id"),
        (RuleLevel.KEY, [rule(note="x")], "rules[0].note"),
        (RuleLevel.KEY, [rule(schema=True)], "rules[0].schema"),
        (RuleLevel.KEY, [rule({"type": "nothing"})], "rules[0].schema"),
        (RuleLevel.KEY, [rule({"properties": {"a": {"pattern": "(?=x)x"}}})], "rules[0].schema"),
        (RuleLevel.KEY, [rule({"properties": {"a": {"pattern": r"(a)\1"}}})], "rules[0].schema"),
        (RuleLevel.KEY, [rule({"$ref": "https://example.com/s.json"})], "rules[0].schema"),
        (RuleLevel.KEY, [rule({"const": "\x00"})], "rules[0].schema"),
        (RuleLevel.KEY, [rule({"const": "\ud800"})], "rules"),
        (RuleLevel.KEY, [rule({"const": "x" * LARGEST_RULES})], "rules"),
        (RuleLevel.KEY, [rule(id=f"r{n}") for n in range(MOST_RULES + 1)], "rules"),
        (RuleLevel.KEY, [rule(tools=[])], "rules[0].tools"),
        (RuleLevel.KEY, [rule(tools=["pay-send", "pay.*"])], "rules[0].tools[1]"),
        (RuleLevel.CONNECTION, [rule(tools=["a\x00"])], "rules[0].tools[0]"),
        (RuleLevel.TOOL, [rule(tools=["send"])], "rules[0].tools"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_at_its_place(level: RuleLevel, rules: Any, path: str) -> None:
    problem = rules_problem(level, rules)

    assert problem is not None
    assert problem.path == path


@pytest.mark.parametrize(
    ("level", "rules"),
    [
        (RuleLevel.KEY, []),
        (RuleLevel.KEY, [rule(), rule(FOLDER, id="folder", tools=["files-*", "pay-send", "*"])]),
        (RuleLevel.CONNECTION, [rule(tools=["send money", "*"])]),
        (RuleLevel.TOOL, [rule()]),
    ],
)
def test_a_rule_that_can_be_meant_is_taken(level: RuleLevel, rules: Any) -> None:
    assert rules_problem(level, rules) is None


@pytest.mark.parametrize(
    ("tools", "holds"),
    [
        (None, True),
        (["*"], True),
        (["pay-send"], True),
        (["pay-*"], True),
        (["pay-sen"], False),
        (["pa-*"], False),
        (["other-*", "x"], False),
    ],
)
def test_a_key_s_rule_holds_for_the_tools_that_it_names_literally(
    tools: list[str] | None,
    holds: bool,  # noqa: FBT001
) -> None:
    given = rule() if tools is None else rule(tools=tools)
    frozen = freeze_rules(RuleLevel.KEY, 3, [given], key_names("pay-send", "pay"))

    assert frozen == ((FrozenRule("max-amount", RuleLevel.KEY, 3, AMOUNT),) if holds else ())
    assert all(FrozenRule.from_json(one.to_json()) == one for one in frozen)


def judged(arguments: Any) -> Admitted | Refused:
    rules = CompiledRules(
        [
            FrozenRule("max-amount", RuleLevel.CONNECTION, 2, AMOUNT),
            FrozenRule("folder", RuleLevel.KEY, 7, FOLDER),
        ]
    )
    schema = compile_schema({"type": "object", "properties": {"amount": {"type": "number"}}})
    return judge_arguments("pay-send", arguments, lambda: schema, (rules,))


def test_arguments_that_keep_every_rule_are_admitted() -> None:
    arguments = {"amount": 500, "path": "/srv/data/a"}
    assert judged(arguments) == Admitted(arguments)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (
            {"amount": 501, "path": "/srv/data/a"},
            ("max-amount", "connection", 2, ["/amount", "at most 500", "integer"]),
        ),
        (
            {"amount": 5, "path": "/etc/passwd"},
            ("folder", "key", 7, ["/path", "text that matches ^/srv/data/", "string"]),
        ),
        ({"amount": 5}, ("folder", "key", 7, ["/path", "a value: it is required", "missing"])),
    ],
)
def test_a_broken_rule_tells_the_model_what_to_correct_and_the_trail_which_rule(
    arguments: Any, found: tuple[str, str, int, list[str]]
) -> None:
    refused = judged(arguments)

    assert isinstance(refused, Refused)
    details = refused.error.details
    problem = details["problems"][0]
    said = [problem["path"], problem["expected"], problem["got"]]
    audited = refused.audited
    assert (audited["rule"], refused.level, audited["revision"], said) == found
    assert (refused.error.code, refused.error.classification, details["rule"]) == (
        ErrorCode.INVALID_ARGUMENTS,
        Classification.AUTHORIZATION,
        found[0],
    )
    assert refused.reason == "argument_rule"
    assert "level" not in details


def test_the_tool_s_own_schema_is_asked_first() -> None:
    refused = judged({"amount": "much"})

    assert isinstance(refused, Refused)
    assert "rule" not in refused.error.details


def test_a_stored_rule_that_can_not_be_compiled_refuses_everything() -> None:
    rules = CompiledRules([FrozenRule("broken", RuleLevel.KEY, 1, {"type": "nothing"})])
    assert rules.check({}) is not None


def test_rules_of_one_content_are_compiled_once_and_no_rules_never() -> None:
    cache = ToolCache()
    frozen = [FrozenRule("max-amount", RuleLevel.KEY, 1, AMOUNT)]

    assert cache.rules(frozen) is cache.rules(list(frozen))
    assert cache.rules(()) is cache.rules([])
