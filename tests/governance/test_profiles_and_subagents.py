"""What a profile and the subagent policy leave of the effective catalog."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.decision import (
    Allowed,
    DecisionContext,
    Denied,
    GovernedTool,
    KeyRules,
    Level,
    decide,
)
from governance.faults import Fault
from governance.filters import NO_FILTER, RequestFilter
from governance.names import SUBAGENT_TOOLS
from governance.profiles import allowed_names, profile_key, subagent_profile, union_of_allowed_names
from governance.subagents import (
    ROOT,
    SubagentPlace,
    SubagentPolicy,
    merged_policy,
    override_faults,
    policy_faults,
    withheld_tools,
)

SPAWN = frozenset({"subagent_spawn"})
NOTHING: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("session", "config", "key"),
    [
        ("researcher", {"interactive": {"profile": "writer"}}, "researcher"),
        (None, {"interactive": {"profile": "writer"}}, "writer"),
        (None, {"interactive": {}}, "main"),
        (None, {"interactive": {"profile": ""}}, "main"),
        (None, {}, "main"),
    ],
)
def test_the_profile_is_the_sessions_then_the_configured_then_main(
    session: str | None, config: dict[str, Any], key: str
) -> None:
    assert profile_key(session, config) == key


@pytest.mark.parametrize(
    ("catalog", "names"),
    [
        (None, None),
        ({}, None),
        ({"main": {}}, None),
        ({"main": {"allowed_tool_names": []}}, NOTHING),
        ({"main": {"allowed_tool_names": ["a", "b"]}}, frozenset("ab")),
        ({"other": {}}, NOTHING),
        ({"main": "not an object"}, NOTHING),
        ({"main": {"allowed_tool_names": "a"}}, NOTHING),
    ],
)
def test_a_profile_filters_by_its_list_and_an_unknown_one_admits_nothing(
    catalog: dict[str, Any] | None, names: frozenset[str] | None
) -> None:
    assert allowed_names(catalog, "main") == names


def test_the_union_of_lists_leaves_out_profiles_without_one() -> None:
    assert union_of_allowed_names({"a": {"allowed_tool_names": ["x"]}, "b": {}}) == frozenset("x")
    assert union_of_allowed_names({"a": {"allowed_tool_names": []}}) == NOTHING
    assert union_of_allowed_names({"a": {}, "b": {}}) is None
    assert union_of_allowed_names(None) is None


@pytest.mark.parametrize(
    ("catalog", "wanted", "profile"),
    [
        ({"main": {}, "writer": {}}, "writer", "writer"),
        ({"main": {}, "writer": {}}, "unknown", None),
        ({"main": {}, "writer": {"default_subagent_profile": True}}, None, "writer"),
        ({"main": {"default_subagent_profile": True}, "writer": {}}, "default", "main"),
        ({"main": {}, "writer": {}, "reader": {}}, "", "writer"),
        ({"main": {}}, None, "main"),
        ({}, None, "main"),
        ({"default": {}, "main": {}}, "default", "default"),
    ],
)
def test_a_subagent_gets_the_profile_named_or_flagged_or_another_than_the_interactive(
    catalog: dict[str, Any], wanted: str | None, profile: str | None
) -> None:
    assert subagent_profile(catalog, {}, wanted) == profile


@pytest.mark.parametrize(
    ("policy", "place", "withheld"),
    [
        (SubagentPolicy(), ROOT, NOTHING),
        (SubagentPolicy(enabled=False), ROOT, SUBAGENT_TOOLS),
        (SubagentPolicy(enabled=False), SubagentPlace(0), SUBAGENT_TOOLS),
        (SubagentPolicy(allow_nested=False), ROOT, NOTHING),
        (SubagentPolicy(allow_nested=False), SubagentPlace(0), SPAWN),
        (SubagentPolicy(max_depth=1), ROOT, NOTHING),
        (SubagentPolicy(max_depth=0), ROOT, NOTHING),
        (SubagentPolicy(max_depth=2), SubagentPlace(1), NOTHING),
        (SubagentPolicy(max_depth=2), SubagentPlace(2), SPAWN),
        (SubagentPolicy(max_depth=2), SubagentPlace(3), SPAWN),
        (SubagentPolicy(max_depth=0), SubagentPlace(0), SPAWN),
        (SubagentPolicy(max_depth=None), SubagentPlace(99), NOTHING),
    ],
)
def test_the_policy_withholds_all_five_tools_or_only_the_spawn(
    policy: SubagentPolicy, place: SubagentPlace, withheld: frozenset[str]
) -> None:
    assert withheld_tools(policy, place) == withheld


def test_a_conversation_overrides_single_fields_of_the_configured_policy() -> None:
    config = {"subagents": {"enabled": False, "max_depth": 3}}

    assert merged_policy(config, None) == SubagentPolicy(enabled=False, max_depth=3)
    assert merged_policy(config, {"subagents": {"enabled": True}}) == SubagentPolicy(max_depth=3)
    assert merged_policy(config, {"subagents": {"max_depth": None}}) == SubagentPolicy(enabled=False)
    assert merged_policy({}, {}) == SubagentPolicy()


@pytest.mark.parametrize("field", ["enabled", "allow_nested"])
@pytest.mark.parametrize("value", ["false", 0, 1, None, []])
def test_text_and_numbers_are_no_flags(field: str, value: object) -> None:
    assert policy_faults({field: value}, "subagents") == [Fault(f"subagents.{field}", "is true or false")]


@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
def test_a_depth_is_a_whole_number_from_zero(value: object) -> None:
    [fault] = policy_faults({"max_depth": value}, "subagents")
    assert fault.path == "subagents.max_depth"


def test_unknown_fields_of_a_policy_are_named() -> None:
    [fault] = policy_faults({"max_dept": 1}, "subagents")
    assert fault.path == "subagents.max_dept"


def test_a_conversation_may_not_override_the_interactive_profile() -> None:
    faults = override_faults({"interactive": {"profile": "x"}, "subagents": {"enabled": "no"}})
    assert [fault.path for fault in faults] == [
        "override_payload.interactive",
        "override_payload.subagents.enabled",
    ]


CORE = KeyRules(enabled=True, mcp_configs=None, core_tools=True)
TOOL_NAMES = st.sampled_from(["a", "b", "subagent_spawn", "subagent_list"])


@given(
    st.sets(TOOL_NAMES),
    st.none() | st.frozensets(TOOL_NAMES),
    st.builds(SubagentPolicy, st.booleans(), st.booleans(), st.none() | st.integers(0, 3)),
    st.builds(SubagentPlace, st.none() | st.integers(0, 4)),
    st.booleans(),
    st.sets(TOOL_NAMES),
)
def test_what_is_visible_is_what_is_left_after_taking_away_each_level(
    declared: set[str],
    profile: frozenset[str] | None,
    policy: SubagentPolicy,
    place: SubagentPlace,
    core_tools: bool,  # noqa: FBT001
    without_runner: set[str],
) -> None:
    left = declared - without_runner
    if profile is not None:
        left &= profile
    if not policy.enabled:
        left -= SUBAGENT_TOOLS
    elif place.depth is not None:
        too_deep = policy.max_depth is not None and place.depth >= policy.max_depth
        if too_deep or not policy.allow_nested:
            left -= SPAWN
    if not core_tools:
        left = set()
    key = KeyRules(enabled=True, mcp_configs=None, core_tools=core_tools)
    context = DecisionContext(key, {}, NO_FILTER, profile, withheld_tools(policy, place))

    visible = {
        name
        for name in declared
        if decide(
            context,
            GovernedTool(name, None, name, withheld="no_runner" if name in without_runner else None),
        )
        == Allowed()
    }

    assert visible == left


@pytest.mark.parametrize(
    ("context", "tool", "level", "reason"),
    [
        (
            DecisionContext(CORE, {}, NO_FILTER),
            GovernedTool("x", None, "x", withheld="no_runner"),
            Level.CATALOG,
            "no_runner",
        ),
        (
            DecisionContext(CORE, {}, NO_FILTER, NOTHING),
            GovernedTool("x", None, "x"),
            Level.PROFILE,
            "not_in_profile",
        ),
        (
            DecisionContext(CORE, {}, NO_FILTER, None, frozenset("x")),
            GovernedTool("x", None, "x"),
            Level.SUBAGENTS,
            "withheld_by_subagent_policy",
        ),
        (
            DecisionContext(KeyRules(enabled=True, mcp_configs=None), {}, NO_FILTER),
            GovernedTool("x", None, "x"),
            Level.KEY,
            "core_tools_not_granted_to_key",
        ),
        (
            DecisionContext(CORE, {}, RequestFilter(clients=frozenset())),
            GovernedTool("x", None, "x"),
            Level.REQUEST,
            "request_asks_for_no_tools",
        ),
    ],
    ids=["catalog", "profile", "subagents", "key", "request"],
)
def test_the_level_that_hides_a_tool_is_named(
    context: DecisionContext, tool: GovernedTool, level: Level, reason: str
) -> None:
    decision = decide(context, tool)

    assert isinstance(decision, Denied)
    assert (decision.level, decision.reason) == (level, reason)
