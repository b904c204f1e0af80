"""The decision, against a second writing of the rules and by its named properties."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.decision import (
    ConnectionRules,
    DecisionContext,
    Denied,
    GovernedTool,
    KeyRules,
    RequestFilterMode,
    decide,
    has_access,
)
from governance.filters import RequestFilter, parse_request_filter
from governance.names import exposed_name
from tests.governance.rule_model import Tools, World, usable

LISTS: list[tuple[str, ...] | None] = [
    None,
    (),
    ("*",),
    ("read",),
    ("read", "write"),
    ("nope",),
    ("*", "read"),
]
GRANTS: list[dict[str, tuple[str, ...]] | None] = [
    None,
    {},
    {"a": ()},
    {"a": ("*",)},
    {"a": ("read",)},
    {"a": ("nope",)},
    {"b": ("read",)},
    {"a": ("write",), "b": ("*",)},
]
CLIENT_HEADERS: list[tuple[str, ...] | None] = [
    None,
    ("",),
    (" ,",),
    ("none",),
    ("*",),
    ("a",),
    ("b",),
    ("zz",),
    ("b", "a"),
]
TOOL_HEADERS: list[tuple[str, ...] | None] = [
    None,
    ("",),
    (",,",),
    ("none",),
    ("*",),
    ("a-read",),
    ("a-*",),
    ("a-nope",),
    ("zz-*",),
    ("b-read,a-write",),
    ("b-*", "a-read"),
]
OFFERED = {"a": ("read", "write", "delete"), "b": ("read",)}


def context_of(world: World) -> DecisionContext:
    connections = {
        name: ConnectionRules(
            name, name not in world.disabled, world.baselines[name], name in world.open_to_all
        )
        for name in world.offered
        if name not in world.missing
    }
    mode = RequestFilterMode.NARROW if world.narrow else RequestFilterMode.OVERRIDE
    request = parse_request_filter(world.clients_header, world.tools_header)
    assert isinstance(request, RequestFilter)
    return DecisionContext(KeyRules(world.key_enabled, world.grants, mode), connections, request)


def tools_of(world: World) -> list[GovernedTool]:
    return [
        GovernedTool(exposed_name(connection, tool), connection, tool)
        for connection, tools in world.offered.items()
        for tool in tools
    ]


def allowed(world: World) -> Tools:
    context = context_of(world)
    return frozenset(
        (str(tool.connection), tool.upstream_name)
        for tool in tools_of(world)
        if not isinstance(decide(context, tool), Denied)
    )


@pytest.mark.parametrize("narrow", [False, True], ids=["override", "narrow"])
@pytest.mark.parametrize("grants", GRANTS, ids=str)
def test_every_combination_of_the_levels_gives_what_the_document_says(
    grants: dict[str, tuple[str, ...]] | None, *, narrow: bool
) -> None:
    flags = [frozenset[str](), frozenset({"a"}), frozenset({"b"})]
    for baseline, opened, disabled, clients, tools in product(
        LISTS, flags, flags[:2], CLIENT_HEADERS, TOOL_HEADERS
    ):
        world = World(
            offered=OFFERED,
            baselines={"a": baseline, "b": ("*",)},
            grants=grants,
            open_to_all=opened,
            disabled=disabled,
            clients_header=clients,
            tools_header=tools,
            narrow=narrow,
        )
        assert allowed(world) == usable(world), world


connection_names = st.sampled_from(["a", "b", "c", "a_b"])
tool_names = st.sampled_from(["read", "write", "get_x", "get-x", "x--y"])
# Lists and grants may hold anything that a careless operator can have written.
list_entries = st.one_of(tool_names, st.sampled_from(["*", "get*", "nope", "a-read", ""]))
tool_lists = st.one_of(st.none(), st.just(("*",)), st.lists(list_entries, max_size=3).map(tuple))
client_entries = st.one_of(connection_names, st.sampled_from(["*", "zz", "", " "]))
tool_entries = st.one_of(
    st.builds("{}-{}".format, connection_names, tool_names),
    st.builds("{}-*".format, connection_names),
    st.sampled_from(["*", "zz-read", "", " "]),
)


def headers(entries: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...] | None]:
    lines = st.lists(entries, max_size=3).map(",".join)
    return st.one_of(st.none(), st.just(("none",)), st.lists(lines, min_size=1, max_size=2).map(tuple))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    offered = draw(
        st.dictionaries(
            connection_names, st.lists(tool_names, unique=True, max_size=4).map(tuple), min_size=1
        )
    )
    some = st.frozensets(st.sampled_from(sorted(offered)))
    grants = st.dictionaries(connection_names, tool_lists.map(lambda names: names or ()), max_size=3)
    return World(
        offered=offered,
        baselines={name: draw(tool_lists) for name in offered},
        grants=draw(st.none() | grants),
        open_to_all=draw(some),
        disabled=draw(some),
        clients_header=draw(headers(client_entries)),
        tools_header=draw(headers(tool_entries)),
        narrow=draw(st.booleans()),
        key_enabled=draw(st.sampled_from([True, True, True, False])),
        missing=draw(some),
    )


def changed(world: World, **fields: object) -> World:
    return World(**{**vars(world), **fields})


@given(worlds())
def test_any_world_is_decided_as_the_document_says(world: World) -> None:
    assert allowed(world) == usable(world)


@given(worlds())
def test_no_level_admits_what_the_connection_does_not(world: World) -> None:
    lists = {name: world.baselines[name] for name in world.offered}

    assert all(
        lists[connection] == ("*",) or tool in (lists[connection] or ())
        for connection, tool in allowed(world)
    )


@given(worlds(), tool_lists)
def test_a_key_configuration_only_narrows_the_connections_it_names(
    world: World, names: tuple[str, ...] | None
) -> None:
    bare = changed(world, grants=None, clients_header=None, tools_header=None)
    configured = changed(bare, grants={"a": names or ()})

    assert allowed(configured) <= allowed(bare)


@given(worlds())
def test_a_request_only_narrows_a_key_without_a_configuration(world: World) -> None:
    bare = changed(world, grants=None)

    assert allowed(bare) <= allowed(changed(bare, clients_header=None, tools_header=None))


@given(worlds())
def test_a_narrowing_request_takes_away_and_never_adds(world: World) -> None:
    narrowed = allowed(changed(world, narrow=True))

    assert narrowed <= allowed(changed(world, narrow=False))


@given(worlds(), st.sampled_from([("",), (" , ",), ("none",), ("", "")]))
def test_an_empty_header_means_no_tools_whatever_the_key_is_granted(
    world: World, header: tuple[str, ...]
) -> None:
    assert allowed(changed(world, clients_header=header)) == frozenset()
    assert allowed(changed(world, tools_header=header)) == frozenset()


@given(worlds())
def test_a_tool_denied_by_a_connection_list_stays_denied_under_any_other_level(world: World) -> None:
    widest = changed(
        world,
        baselines=dict.fromkeys(world.offered, ()),
        grants=dict.fromkeys(world.offered, ("*",)),
        open_to_all=frozenset(world.offered),
        clients_header=("*",),
        tools_header=("*",),
    )

    assert allowed(widest) == frozenset()


@given(worlds())
def test_names_in_a_header_that_the_caller_may_not_use_change_nothing(world: World) -> None:
    base = changed(world, clients_header=None, tools_header=("a-read",), grants=None)
    more = changed(base, tools_header=("a-read, zz-secret, zz-*",))

    assert allowed(more) == allowed(base)


def test_a_tool_whose_real_name_holds_a_wildcard_widens_nothing() -> None:
    offered: dict[str, tuple[str, ...]] = {"a": ("*", "get*", "get_x", "read")}
    listed = World(offered, {"a": ("get*",)}, open_to_all=frozenset({"a"}))
    granted = World(offered, {"a": ("*",)}, grants={"a": ("get*", "*")})

    assert allowed(listed) == {("a", "get*")}
    assert allowed(granted) == {("a", "get*"), ("a", "*")}


class TestExamplesOfTheGatewayDocument:
    """Section 2.3, one test for each row."""

    def test_row_1_the_key_configuration_overrides_the_request(self) -> None:
        world = World(
            {"c": ("read", "write", "delete")},
            {"c": ("read", "write", "delete")},
            grants={"c": ("read",)},
            tools_header=("c-write",),
        )

        assert allowed(world) == {("c", "read")}

    def test_row_2_without_a_key_configuration_the_request_counts(self) -> None:
        world = World({"c": ("read", "write")}, {"c": ("read", "write")}, tools_header=("c-write",))

        assert allowed(world) == {("c", "write")}

    def test_row_3_without_either_the_connection_list_counts(self) -> None:
        world = World({"c": ("read", "write", "other")}, {"c": ("read", "write")})

        assert allowed(world) == {("c", "read"), ("c", "write")}


def test_a_key_set_to_narrow_turns_the_first_row_into_nothing() -> None:
    world = World(
        {"c": ("read", "write")},
        {"c": ("*",)},
        grants={"c": ("read",)},
        tools_header=("c-write",),
        narrow=True,
    )

    assert allowed(world) == frozenset()


@given(worlds())
def test_whatever_may_be_used_is_also_accessible(world: World) -> None:
    context = context_of(world)

    for name in {name for name, _ in allowed(world)}:
        assert has_access(context.key, context.connections[name])
