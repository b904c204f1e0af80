"""What a decision answers: the level, code and reason of a denial, approval, and access."""

import pytest

from governance.codes import ErrorCode
from governance.decision import (
    Allowed,
    ConnectionRules,
    DecisionContext,
    Denied,
    GovernedTool,
    KeyRules,
    Level,
    NeedsApproval,
    decide,
    has_access,
)
from governance.filters import NO_FILTER, RequestFilter, parse_request_filter

TOOL = GovernedTool("c-read", "c", "read")


def connection(
    *, enabled: bool = True, names: tuple[str, ...] | None = ("*",), opened: bool = False
) -> ConnectionRules:
    return ConnectionRules("c", enabled, names, opened)


def request(clients: list[str] | None = None, tools: list[str] | None = None) -> RequestFilter:
    parsed = parse_request_filter(clients, tools)
    assert isinstance(parsed, RequestFilter)
    return parsed


KEY = KeyRules(enabled=True, mcp_configs=None)


@pytest.mark.parametrize(
    ("context", "level", "code", "reason"),
    [
        (
            DecisionContext(KeyRules(enabled=False, mcp_configs=None), {}, NO_FILTER),
            Level.KEY,
            ErrorCode.KEY_DISABLED,
            "key_disabled",
        ),
        (
            DecisionContext(KEY, {}, NO_FILTER),
            Level.CONNECTION,
            ErrorCode.TOOL_NOT_FOUND,
            "connection_disabled",
        ),
        (
            DecisionContext(KEY, {"c": connection(enabled=False)}, NO_FILTER),
            Level.CONNECTION,
            ErrorCode.TOOL_NOT_FOUND,
            "connection_disabled",
        ),
        (
            DecisionContext(KEY, {"c": connection(names=None)}, NO_FILTER),
            Level.CONNECTION,
            ErrorCode.TOOL_NOT_ALLOWED,
            "not_on_connection_list",
        ),
        (
            DecisionContext(KeyRules(enabled=True, mcp_configs={}), {"c": connection()}, NO_FILTER),
            Level.KEY,
            ErrorCode.TOOL_NOT_ALLOWED,
            "connection_not_granted_to_key",
        ),
        (
            DecisionContext(
                KeyRules(enabled=True, mcp_configs={"c": ()}), {"c": connection(opened=True)}, NO_FILTER
            ),
            Level.KEY,
            ErrorCode.TOOL_NOT_ALLOWED,
            "not_on_key_list",
        ),
        (
            DecisionContext(KEY, {"c": connection()}, request(tools=["none"])),
            Level.REQUEST,
            ErrorCode.TOOL_NOT_ALLOWED,
            "request_asks_for_no_tools",
        ),
        (
            DecisionContext(KEY, {"c": connection()}, request(tools=["c-write"])),
            Level.REQUEST,
            ErrorCode.TOOL_NOT_ALLOWED,
            "not_in_request",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "_" in value else "",
)
def test_a_denial_names_the_level_the_code_and_the_reason(
    context: DecisionContext, level: Level, code: ErrorCode, reason: str
) -> None:
    assert decide(context, TOOL) == Denied(level, code, reason)


def test_an_allowed_tool_that_requires_approval_needs_it() -> None:
    context = DecisionContext(KEY, {"c": connection()}, NO_FILTER)

    assert decide(context, TOOL) == Allowed()
    assert decide(context, GovernedTool("c-read", "c", "read", requires_approval=True)) == NeedsApproval(
        "tool_requires_approval"
    )


def test_a_denied_tool_is_denied_even_where_it_requires_approval() -> None:
    context = DecisionContext(KEY, {"c": connection(names=())}, NO_FILTER)

    assert isinstance(decide(context, GovernedTool("c-read", "c", "read", requires_approval=True)), Denied)


CORE_TOOL = GovernedTool("subagent_spawn", None, "subagent_spawn")


@pytest.mark.parametrize(
    ("core_tools", "filtered", "expected"),
    [
        (True, NO_FILTER, Allowed()),
        (True, request(tools=["c-read"]), Allowed()),
        (
            True,
            request(clients=[""]),
            Denied(Level.REQUEST, ErrorCode.TOOL_NOT_ALLOWED, "request_asks_for_no_tools"),
        ),
        (False, NO_FILTER, Denied(Level.KEY, ErrorCode.TOOL_NOT_ALLOWED, "core_tools_not_granted_to_key")),
    ],
)
def test_tools_of_no_connection_need_the_flag_and_a_request_that_asks_for_tools(
    *, core_tools: bool, filtered: RequestFilter, expected: Allowed | Denied
) -> None:
    key = KeyRules(enabled=True, mcp_configs={}, core_tools=core_tools)

    assert decide(DecisionContext(key, {}, filtered), CORE_TOOL) == expected


@pytest.mark.parametrize(
    ("grants", "names", "opened", "expected"),
    [
        (None, ("*",), False, True),
        (None, ("read",), False, True),
        (None, (), False, False),
        (None, None, True, False),
        ({}, ("*",), False, False),
        ({}, ("*",), True, True),
        ({}, (), True, False),
        ({"c": ()}, ("*",), True, False),
        ({"c": ("*",)}, ("read",), False, True),
        ({"c": ("*",)}, (), False, False),
        ({"c": ("read",)}, ("*",), False, True),
        ({"c": ("read",)}, ("write",), False, False),
        ({"c": ("read", "write")}, ("write",), False, True),
        ({"d": ("*",)}, ("*",), False, False),
    ],
)
def test_access_is_a_name_that_key_and_connection_both_configure(
    grants: dict[str, tuple[str, ...]] | None, names: tuple[str, ...] | None, *, opened: bool, expected: bool
) -> None:
    for enabled in (True, False):
        key = KeyRules(enabled=enabled, mcp_configs=grants)
        assert has_access(key, connection(enabled=enabled, names=names, opened=opened)) is expected
