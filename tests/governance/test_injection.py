"""Which tools are added to a chat request."""

from hypothesis import given
from hypothesis import strategies as st

from governance.canonical import JSON
from governance.injection import Injection, NoTools, given_name, plan_injection
from governance.names import folded_name

NAMES = st.lists(
    st.text("ab_-", min_size=1, max_size=6).map(lambda text: f"c-{text}"), unique=True, max_size=8
)
GIVEN: st.SearchStrategy[list[JSON]] = st.lists(
    st.one_of(
        st.text("abcABC_-.", max_size=8).map(lambda name: {"type": "function", "function": {"name": name}}),
        st.sampled_from([None, 1, "x", [], {}, {"function": 1}, {"type": "web_search"}]),
    ),
    max_size=6,
)


@given(NAMES, GIVEN)
def test_what_is_added_keeps_the_order_and_repeats_nothing(visible: list[str], own: list[JSON]) -> None:
    plan = plan_injection(visible, own)

    assert list(plan.names) == [name for name in visible if name in plan.names]
    assert len({*plan.names}) == len(plan.names)
    assert {name for name in map(given_name, own) if name}.isdisjoint(plan.names)
    assert (plan.reason is None) == bool(plan.names)


@given(NAMES, GIVEN)
def test_every_visible_tool_is_either_added_or_brought(visible: list[str], own: list[JSON]) -> None:
    plan = plan_injection(visible, own)
    brought = {folded_name(name) for name in map(given_name, own) if name}

    assert all(folded_name(name) in brought for name in set(visible) - set(plan.names))


@given(NAMES)
def test_without_tools_of_its_own_a_request_gets_all(visible: list[str]) -> None:
    expected = Injection(tuple(visible), None if visible else NoTools.NONE_VISIBLE)
    assert plan_injection(visible, []) == expected


def test_a_request_that_asks_for_nothing_gets_nothing() -> None:
    plan = plan_injection(["c-a"], [], asks_for_nothing=True)
    assert plan == Injection((), NoTools.REQUEST_ASKS_FOR_NONE)


def test_tools_of_the_responses_form_are_known_by_their_name() -> None:
    plan = plan_injection(["c-a", "c-b"], [{"type": "function", "name": "mcp__c__a"}])
    assert plan.names == ("c-b",)
