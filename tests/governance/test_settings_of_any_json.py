"""Whatever JSON an operator sends as rules or guardrails, the checks answer and never raise."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from governance.argument_rules import RuleLevel, rules_problem
from governance.guardrail_settings import guardrails_problem
from governance.guardrails import Guardrail, GuardrailKind, Stage

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
ANY = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["a", "no-pii", ""]) | ANY
SETTINGS = st.dictionaries(
    st.sampled_from(
        ["find", "action", "max_bytes", "deny", "allow", "fields", "plugin", "options", "url", "network"]
    ),
    st.sampled_from(["redact", "secrets", "https://a", "public", 7, ["a"], ["("], ["secrets"]]) | ANY,
    max_size=3,
)
GUARDRAIL = st.fixed_dictionaries(
    {"name": NAMES, "kind": st.sampled_from([kind.value for kind in GuardrailKind]) | ANY},
    optional={
        "stages": st.lists(st.sampled_from([stage.value for stage in Stage]) | ANY, max_size=2) | ANY,
        "selector": st.dictionaries(st.sampled_from(["keys", "tools", "x"]), ANY, max_size=2) | ANY,
        "settings": SETTINGS | ANY,
        "timeout_s": st.sampled_from([1, 0.5, -1]) | ANY,
        "secret": st.just("s" * 32) | ANY,
    },
)
RULE = st.fixed_dictionaries({"id": NAMES, "schema": ANY}, optional={"tools": ANY | st.just(["a-b"])})


@given(st.lists(GUARDRAIL | ANY, max_size=3) | ANY)
def test_guardrails_of_any_json_are_judged_and_those_that_pass_can_be_read(guardrails: Any) -> None:
    if guardrails_problem(guardrails) is None:
        assert all(Guardrail.from_json(one).name == one["name"] for one in guardrails)


@given(st.sampled_from(RuleLevel), st.lists(RULE | ANY, max_size=3) | ANY)
def test_rules_of_any_json_are_judged(level: RuleLevel, rules: Any) -> None:
    problem = rules_problem(level, rules)
    assert problem is None or problem.path.startswith("rules")
