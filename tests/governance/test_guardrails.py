"""Verdicts, selectors and the built-in guardrails, without anything around them."""

from collections import OrderedDict
from typing import Any

import pytest

from governance.guardrails import (
    LARGEST_CHECKED,
    LARGEST_NOTES,
    LONGEST_REASON,
    MOST_GROWTH,
    Allow,
    Annotate,
    Block,
    GuardedCall,
    Guardrail,
    GuardrailRequest,
    Redact,
    Stage,
    build,
    matching,
    read_verdict,
    shown_reason,
    verdict_problem,
)

CALL = GuardedCall("key-1", "pay", "pay-send", "send", "round", 0, "call_1")


def guardrail(kind: str, settings: Any = None, **changes: Any) -> Guardrail:
    return Guardrail.from_json({"name": "one", "kind": kind, "settings": settings, **changes})


def judged(kind: str, settings: Any, value: Any, stage: Stage = Stage.BEFORE) -> Any:
    return build(guardrail(kind, settings))(GuardrailRequest("one", stage, CALL, value))


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        (None, True),
        ({}, True),
        ({"connections": None}, True),
        ({"connections": ["pay"]}, True),
        ({"connections": ["pay"], "tools": ["pay-send"], "keys": ["key-1"]}, True),
        ({"connections": ["pay"], "tools": ["pay-look"]}, False),
        ({"keys": ["key-2"]}, False),
        ({"tools": ["*"]}, False),
    ],
)
def test_a_guardrail_is_meant_for_calls_that_fit_all_it_names(selector: Any, selects: object) -> None:
    one = guardrail("size", {"max_bytes": 9}, selector=selector)
    assert bool(matching([one], Stage.BEFORE, CALL)) is selects


def test_a_guardrail_stands_on_the_sides_that_it_names_and_keeps_its_place() -> None:
    both, before = guardrail("size"), guardrail("size", stages=["before"])
    assert matching([before, both], Stage.BEFORE, CALL) == (before, both)
    assert matching([before, both], Stage.AFTER, CALL) == (both,)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ({"verdict": "allow"}, Allow()),
        ({"verdict": "annotate", "notes": {"a": 1}}, Annotate({"a": 1})),
        ({"verdict": "redact", "value": {}}, Redact({}, {})),
        ({"verdict": "redact", "value": None, "notes": None}, Redact(None, {})),
        ({"verdict": "block", "reason": "no"}, Block("no", {})),
        ({"verdict": "block"}, Block("", {})),
        ({"verdict": "allow", "reason": "x"}, None),
        ({"verdict": "redact"}, None),
        ({"verdict": "block", "value": {}}, None),
        ({"verdict": "ALLOW"}, None),
        ({"verdict": True}, None),
        ({"verdict": "allow", "extra": 1}, None),
        ({}, None),
        (["allow"], None),
        ("allow", None),
        (None, None),
    ],
)
def test_only_an_answer_with_one_meaning_is_a_verdict(answer: Any, verdict: Any) -> None:
    assert read_verdict(answer) == verdict


NESTED: Any = []
for _ in range(3000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("verdict", "problem"),
    [
        (Allow(), None),
        (Annotate({"a": [1, "b"]}), None),
        (Redact({"a": 1}), None),
        (Block("no"), None),
        (None, "not_a_verdict"),
        (True, "not_a_verdict"),
        ("allow", "not_a_verdict"),
        (Allow, "not_a_verdict"),
        (Block(7), "not_a_verdict"),  # type: ignore[arg-type] # hooks are not type-checked.
        (Annotate({"a": "x" * LARGEST_NOTES}), "notes_too_large"),
        (Annotate({"a": object()}), "notes_are_not_json"),
        (Annotate([1]), "notes_are_not_json"),  # type: ignore[arg-type] # hooks are not type-checked.
        (Redact([1]), "redacted_arguments_are_no_object"),
        (Redact(None), "redacted_arguments_are_no_object"),
        (Redact({"a": float("nan")}), "redacted_value_is_not_json"),
        (Redact({"a": "\x00"}), "redacted_value_is_not_json"),
        (Redact({1: "a"}), "redacted_value_is_not_json"),
        (Redact({"a": (1, 2)}), "redacted_value_is_not_json"),
        (Redact({"a": NESTED}), "redacted_value_is_not_json"),
        (Redact(OrderedDict(a=1)), "redacted_value_is_of_another_type"),
        (Redact({"a": "x" * (MOST_GROWTH + 10)}), "redacted_value_is_larger"),
    ],
)
def test_what_a_hook_answers_is_held_to_its_word(verdict: Any, problem: str | None) -> None:
    assert verdict_problem(verdict, Stage.BEFORE, {"a": "b"}) == problem


def test_a_reason_is_one_printable_line() -> None:
    assert shown_reason("a\nb\x1b[31m") == "a b [31m"
    assert shown_reason(" \n") == "blocked"
    assert len(shown_reason("x" * 1000)) == LONGEST_REASON


def test_redaction_redacts_or_blocks_and_says_what_it_found() -> None:
    value = {"to": "a@b.example"}
    counted = {"found": {"email": 1}}

    assert judged("redaction", {}, value) == Redact({"to": "[redacted:email]"}, counted)
    assert judged("redaction", {"action": "block"}, value) == Block("found email", counted)
    assert judged("redaction", {"find": ["secrets"]}, value) == Allow()
    assert judged("redaction", {}, {"a": "x" * LARGEST_CHECKED}) == Block("too_large_to_check")


def test_size_is_that_of_the_value_as_json() -> None:
    assert judged("size", {"max_bytes": 9}, {"a": "bc"}) == Block("larger than 9 bytes", {"bytes": 10})
    assert judged("size", {"max_bytes": 10}, {"a": "bc"}) == Allow()


@pytest.mark.parametrize(
    ("settings", "value", "verdict"),
    [
        ({"deny": ["(?i)drop table"]}, {"sql": "x; DROP TABLE t"}, Block("denied_pattern")),
        ({"deny": ["(?i)drop table"]}, {"drop table": 1}, Block("denied_pattern")),
        ({"deny": ["(?i)drop table"]}, {"sql": ["select 1"]}, Allow()),
        ({"deny": ["x"], "fields": ["sql"]}, {"text": "x", "sql": "y"}, Allow()),
        ({"allow": ["^/srv/"], "fields": ["path"]}, {"a": {"path": "/srv/x"}, "b": "/etc"}, Allow()),
        (
            {"allow": ["^/srv/"], "fields": ["path"]},
            {"a": {"path": ["/srv/x", "/etc"]}},
            Block("not_an_allowed_pattern"),
        ),
        ({"deny": ["(a+)+$"]}, {"text": "a" * 100_000 + "b"}, Allow()),
    ],
)
def test_patterns_are_denied_everywhere_and_allowed_where_asked_for(
    settings: Any, value: Any, verdict: Any
) -> None:
    assert judged("patterns", settings, value) == verdict


def test_text_that_takes_too_long_to_match_is_denied() -> None:
    settings = {"deny": ["(a{1,100}){1,100}x"]}
    assert judged("patterns", settings, {"a": "a" * 3_000_000}) == Block("denied_pattern")
