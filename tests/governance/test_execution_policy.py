"""Execution policy: layers, overlays and what may be written."""

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.canonical import JSON
from governance.execution_policy import (
    PolicyLayer,
    PolicyOverlay,
    PolicySubject,
    ResolvedPolicy,
    overlay_problem,
    resolve_execution_policy,
)

SAFE: JSON = {"parallel_safe": True}
UNSAFE: JSON = {"parallel_safe": False}


def subject(source: str = "agent", declared: JSON = None, *, slug: str | None = None) -> PolicySubject:
    return PolicySubject(source, slug, "lookup", "function", declared)


@pytest.mark.parametrize(
    "declared",
    [None, {}, [], "yes", True, {"parallel_safe": "yes"}, {"parallel_safe": 1}, {"other": True}, UNSAFE],
)
def test_a_tool_is_serial_unless_it_says_otherwise_with_a_boolean(declared: JSON) -> None:
    assert resolve_execution_policy(subject(declared=declared), []) == ResolvedPolicy(
        parallel_safe=False, provenance=(PolicyLayer("declared", value=False),)
    )


def test_a_declaration_counts_for_sources_other_than_mcp() -> None:
    assert resolve_execution_policy(subject(declared=SAFE), []).parallel_safe


def test_an_mcp_tool_is_serial_whatever_it_declares() -> None:
    assert resolve_execution_policy(subject("mcp", SAFE), []) == ResolvedPolicy(
        parallel_safe=False,
        provenance=(PolicyLayer("declared", value=True), PolicyLayer("source_default", value=False)),
    )


def test_an_overlay_may_make_an_mcp_tool_parallel_safe_and_the_last_one_wins() -> None:
    tool = subject("mcp", slug="wiki")
    by_source = PolicyOverlay({"tool_source": "mcp"}, SAFE)
    elsewhere = PolicyOverlay({"server_slug": "shop"}, UNSAFE)
    by_tool = PolicyOverlay({"server_slug": "wiki", "tool_name": "lookup"}, UNSAFE)

    relaxed = resolve_execution_policy(tool, [by_source, elsewhere])
    assert relaxed.parallel_safe
    assert relaxed.provenance[-1] == PolicyLayer("overlay:0", value=True)
    tightened = resolve_execution_policy(tool, [by_source, elsewhere, by_tool])
    assert not tightened.parallel_safe
    assert tightened.provenance[-1] == PolicyLayer("overlay:2", value=False)
    assert resolve_execution_policy(tool, [by_tool, by_source]).parallel_safe


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ({}, False),
        ({"tool_source": "agent"}, True),
        ({"tool_source": "Agent"}, False),
        ({"tool_source": "agent", "tool_name": "lookup"}, True),
        ({"tool_source": "agent", "tool_name": "other"}, False),
        ({"tool_kind": "function"}, True),
        ({"server_slug": ""}, False),
        ({"server_slug": "wiki"}, False),
        ({"tool_name": "look*"}, False),
        ({"unknown_key": "agent"}, False),
    ],
)
def test_an_overlay_matches_where_all_its_conditions_hold(match: dict[str, str], *, matches: bool) -> None:
    resolved = resolve_execution_policy(subject(), [PolicyOverlay(match, SAFE)])

    assert resolved.parallel_safe is matches
    assert len(resolved.provenance) == 1 + matches


@pytest.mark.parametrize("policy", [{}, {"parallel_safe": "yes"}, {"parallel_safe": None}])
def test_a_matching_overlay_that_does_not_say_true_makes_the_tool_serial(policy: dict[str, JSON]) -> None:
    overlay = PolicyOverlay({"tool_name": "lookup"}, policy)

    assert not resolve_execution_policy(subject(declared=SAFE), [overlay]).parallel_safe


texts = st.sampled_from(["mcp", "agent", "wiki", "lookup", "function", ""])
policies = st.sampled_from([{}, SAFE, UNSAFE, {"parallel_safe": "yes"}])
matches = st.dictionaries(
    st.sampled_from(["tool_source", "server_slug", "tool_name", "tool_kind"]), texts, max_size=3
)
subjects = st.builds(PolicySubject, texts, st.none() | texts, texts, st.none() | texts, policies)


@given(subjects, st.lists(st.builds(PolicyOverlay, matches, policies), max_size=4))
def test_any_layers_resolve_as_a_fold_over_plain_dictionaries(
    tool: PolicySubject, overlays: list[PolicyOverlay]
) -> None:
    entry = {key: value for key, value in vars(tool).items() if key != "declared" and value}
    first = tool.declared.get("parallel_safe") is True and tool.tool_source != "mcp"

    def later(current: bool, overlay: PolicyOverlay) -> bool:  # noqa: FBT001 - the shape that reduce wants
        holds = bool(overlay.match) and overlay.match.items() <= entry.items()
        return overlay.execution_policy.get("parallel_safe") is True if holds else current

    resolved = resolve_execution_policy(tool, overlays)
    assert resolved.parallel_safe is reduce(later, overlays, first)
    assert resolved.parallel_safe is resolved.provenance[-1].value


@pytest.mark.parametrize(
    "value",
    [
        {"match": {"tool_source": "mcp"}, "execution_policy": SAFE},
        {
            "match": {"server_slug": "wiki", "tool_name": "x", "tool_kind": "function"},
            "execution_policy": UNSAFE,
        },
    ],
)
def test_a_complete_overlay_may_be_written(value: JSON) -> None:
    assert overlay_problem(value) is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "object"),
        ([], "object"),
        ({}, "match"),
        ({"match": {}, "execution_policy": SAFE}, "at least one"),
        ({"match": [], "execution_policy": SAFE}, "at least one"),
        ({"match": {"name": "x"}, "execution_policy": SAFE}, "'name'"),
        ({"match": {"tool_name": 1}, "execution_policy": SAFE}, "tool_name"),
        ({"match": {"tool_name": " "}, "execution_policy": SAFE}, "blank"),
        ({"match": {"tool_name": "x"}}, "execution_policy"),
        ({"match": {"tool_name": "x"}, "execution_policy": {}}, "parallel_safe"),
        ({"match": {"tool_name": "x"}, "execution_policy": {"parallel": True}}, "'parallel'"),
        ({"match": {"tool_name": "x"}, "execution_policy": {"parallel_safe": "yes"}}, "true or false"),
        ({"match": {"tool_name": "x"}, "execution_policy": SAFE, "policy": {}}, "'policy'"),
    ],
)
def test_an_overlay_that_would_do_nothing_certain_may_not_be_written(value: JSON, says: str) -> None:
    problem = overlay_problem(value)

    assert problem is not None
    assert says in problem
