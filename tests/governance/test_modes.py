"""Which mode a tool gets, and which implementation may be bound under each mode."""

import pytest

from governance.modes import (
    GovernanceMode,
    Selected,
    SelectionRefused,
    SelectionRule,
    SourceKind,
    is_reserved_name,
    mode_of,
    select_implementation,
)
from governance.names import SUBAGENT_TOOLS

RESERVED, WHITELIST, REPLACEABLE = GovernanceMode
BOTH = ("a", "b")


@pytest.mark.parametrize("source", SourceKind)
@pytest.mark.parametrize("name", ["core_matrix__x", "core_matrix__", *sorted(SUBAGENT_TOOLS)])
def test_reserved_names_are_reserved_whoever_declares_them(name: str, source: SourceKind) -> None:
    assert is_reserved_name(name)
    assert mode_of(name, source) is RESERVED


@pytest.mark.parametrize(
    ("name", "source", "mode"),
    [
        ("core_matrix_x", SourceKind.AGENT, REPLACEABLE),
        ("compact_context", SourceKind.AGENT, REPLACEABLE),
        ("exec_command", SourceKind.EXECUTION_RUNTIME, WHITELIST),
        ("exec_command", SourceKind.AGENT, REPLACEABLE),
        ("read_memory", SourceKind.KERNEL, REPLACEABLE),
        ("remote_echo", SourceKind.MCP, REPLACEABLE),
        ("plain", SourceKind.CORE_MATRIX, REPLACEABLE),
        ("subagent_spawner", SourceKind.AGENT, REPLACEABLE),
    ],
)
def test_other_names_get_their_mode_from_the_winning_source(
    name: str, source: SourceKind, mode: GovernanceMode
) -> None:
    assert mode_of(name, source) is mode


@pytest.mark.parametrize("mode", GovernanceMode)
@pytest.mark.parametrize("preferred", [None, "a"])
def test_the_default_implementation_is_bound_under_every_mode(
    mode: GovernanceMode, preferred: str | None
) -> None:
    assert select_implementation(mode, "a", BOTH, preferred) == Selected("a", is_override=False)


@pytest.mark.parametrize(
    ("mode", "approved", "outcome"),
    [
        (RESERVED, None, SelectionRefused(SelectionRule.RESERVED)),
        (RESERVED, BOTH, SelectionRefused(SelectionRule.RESERVED)),
        (WHITELIST, None, SelectionRefused(SelectionRule.NOT_APPROVED)),
        (WHITELIST, ("a",), SelectionRefused(SelectionRule.NOT_APPROVED)),
        (WHITELIST, BOTH, Selected("b", is_override=True)),
        (WHITELIST, ("b",), Selected("b", is_override=True)),
        (REPLACEABLE, None, Selected("b", is_override=True)),
        (REPLACEABLE, (), Selected("b", is_override=True)),
    ],
)
def test_another_implementation_is_bound_only_where_its_mode_allows(
    mode: GovernanceMode, approved: tuple[str, ...] | None, outcome: Selected | SelectionRefused
) -> None:
    assert select_implementation(mode, "a", BOTH, "b", approved) == outcome


@pytest.mark.parametrize(
    ("mode", "rule"),
    [
        (RESERVED, SelectionRule.RESERVED),
        (WHITELIST, SelectionRule.NOT_APPROVED),
        (REPLACEABLE, SelectionRule.NOT_OF_THIS_TOOL),
    ],
)
def test_a_foreign_implementation_is_refused_by_the_rule_that_is_asked_first(
    mode: GovernanceMode, rule: SelectionRule
) -> None:
    assert select_implementation(mode, "a", BOTH, "of_another_tool") == SelectionRefused(rule)


def test_an_approved_list_without_the_default_refuses_the_default() -> None:
    refused = SelectionRefused(SelectionRule.NOT_APPROVED)
    assert select_implementation(WHITELIST, "a", BOTH, None, ("b",)) == refused
    assert select_implementation(WHITELIST, "a", BOTH, None, ()) == refused


def test_an_approved_implementation_that_is_gone_is_not_bound() -> None:
    refused = SelectionRefused(SelectionRule.NOT_OF_THIS_TOOL)
    assert select_implementation(WHITELIST, "a", BOTH, "gone", ("gone",)) == refused


@pytest.mark.parametrize("mode", GovernanceMode)
def test_a_tool_without_a_default_is_not_bound_by_default(mode: GovernanceMode) -> None:
    assert select_implementation(mode, None, ("b",)) == SelectionRefused(SelectionRule.NO_DEFAULT)
