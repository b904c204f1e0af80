"""Tool lists and filter headers: what is read, what is refused."""

import pytest

from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.filters import (
    ALL_TOOLS,
    CLIENTS_HEADER,
    NO_FILTER,
    NO_TOOLS,
    TOOLS_HEADER,
    InvalidFilter,
    RequestFilter,
    ToolList,
    parse_request_filter,
    parse_tool_list,
    tool_list_problem,
)


def names(*entries: str) -> ToolList:
    return ToolList(everything=False, names=frozenset(entries))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, NO_TOOLS),
        ([], NO_TOOLS),
        ((), NO_TOOLS),
        (["*"], ALL_TOOLS),
        (["read"], names("read")),
        (["read", "write", "read"], names("read", "write")),
        (["get*"], names("get*")),
        (["*", "read"], names("*", "read")),
        (["*", "*"], names("*")),
    ],
)
def test_a_tool_list_is_read_literally(value: list[str] | None, expected: ToolList) -> None:
    assert parse_tool_list(value) == expected


@pytest.mark.parametrize("name", ["read", "*", "", "a.b", "名字"])
def test_a_list_of_everything_admits_any_name_and_a_list_of_nothing_none(name: str) -> None:
    assert ALL_TOOLS.admits(name)
    assert not NO_TOOLS.admits(name)


@pytest.mark.parametrize("name", ["foo_bar", "fooXbar", "FOO.BAR", "foo.bar ", "foo.ba", "foo.barn"])
def test_a_listed_name_admits_no_name_that_only_resembles_it(name: str) -> None:
    assert not names("foo.bar", "foo*").admits(name)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (NO_TOOLS, ALL_TOOLS, False),
        (NO_TOOLS, NO_TOOLS, False),
        (ALL_TOOLS, ALL_TOOLS, True),
        (ALL_TOOLS, names("a"), True),
        (names("a"), names("b"), False),
        (names("a", "b"), names("b", "c"), True),
    ],
)
def test_two_lists_overlap_where_a_name_can_be_on_both(
    one: ToolList, other: ToolList, *, overlap: bool
) -> None:
    assert one.overlaps(other) is overlap
    assert other.overlaps(one) is overlap


@pytest.mark.parametrize("value", [None, [], ["*"], ["read"], ["a.b", "a/b", "名字"], ("read",)])
def test_a_clear_tool_list_may_be_written(value: JSON) -> None:
    assert tool_list_problem(value) is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("*", "array"),
        ("read", "array"),
        ({}, "array"),
        (0, "array"),
        (False, "array"),
        ([1], "string"),
        ([None], "string"),
        ([["read"]], "string"),
        ([""], "blank"),
        (["read", " \t"], "blank"),
        (["*", "read"], "cannot stand beside"),
        (["*", "*"], "cannot stand beside"),
        (["get*"], "'get*'"),
        (["*read"], "'*read'"),
        (["read", "conn-*"], "'conn-*'"),
    ],
)
def test_a_doubtful_tool_list_may_not_be_written(value: JSON, says: str) -> None:
    problem = tool_list_problem(value)

    assert problem is not None
    assert says in problem


def filter_of(clients: list[str] | None = None, tools: list[str] | None = None) -> RequestFilter:
    parsed = parse_request_filter(clients, tools)
    assert isinstance(parsed, RequestFilter)
    return parsed


def test_absent_headers_do_not_narrow() -> None:
    assert filter_of() == NO_FILTER
    assert not NO_FILTER.asks_for_nothing
    assert NO_FILTER.admits("any", "any-tool")


EMPTY_HEADERS = [
    [""],
    [" "],
    ["\t"],
    [","],
    [" , ,, "],
    ["none"],
    [" none "],
    ["none,none"],
    ["", "none"],
    ["", ""],
]


@pytest.mark.parametrize("header", EMPTY_HEADERS)
def test_a_header_that_names_nothing_means_no_tools(header: list[str]) -> None:
    for parsed in (
        filter_of(clients=header),
        filter_of(tools=header),
        filter_of(header, ["*"]),
        filter_of(["*"], header),
    ):
        assert parsed.asks_for_nothing
        assert not parsed.admits("conn", "conn-tool")


@pytest.mark.parametrize(
    ("clients", "admitted"),
    [
        (["conn"], True),
        (["other"], False),
        (["other,conn"], True),
        (["other", "conn"], True),
        ([" conn ,"], True),
        (["*"], True),
        (["other,*"], True),
        (["con"], False),
        (["conn_"], False),
    ],
)
def test_the_clients_header_admits_connections_by_whole_name(clients: list[str], *, admitted: bool) -> None:
    assert filter_of(clients=clients).admits("conn", "conn-tool") is admitted


@pytest.mark.parametrize(
    ("tools", "admitted"),
    [
        (["conn-tool"], True),
        (["conn-tools"], False),
        (["conn-too"], False),
        (["conn-Tool"], False),
        (["conn-*"], True),
        (["con-*"], False),
        (["other-*"], False),
        (["other-tool,conn-tool"], True),
        (["other-tool", "conn-tool"], True),
        (["other-*", " conn-* "], True),
        (["*"], True),
        (["other-x,*"], True),
    ],
)
def test_the_tools_header_admits_tools_by_whole_name(tools: list[str], *, admitted: bool) -> None:
    assert filter_of(tools=tools).admits("conn", "conn-tool") is admitted


def test_a_hashed_name_may_be_written_in_the_tools_header() -> None:
    hashed = "conn-a_b--hfyccb3zioarocldznccckyx"

    assert filter_of(tools=[hashed]).admits("conn", hashed)


@pytest.mark.parametrize(
    ("clients", "tools", "admitted"),
    [
        (["conn"], ["conn-tool"], True),
        (["other"], ["conn-tool"], False),
        (["conn"], ["other-tool"], False),
        (["conn"], ["*"], True),
        (["*"], ["conn-*"], True),
    ],
)
def test_a_tool_must_pass_both_headers(clients: list[str], tools: list[str], *, admitted: bool) -> None:
    assert filter_of(clients, tools).admits("conn", "conn-tool") is admitted


@pytest.mark.parametrize(
    "entry",
    ["[]", '""', "Conn", "conn*", "*conn", "c*", "conn-tool", "conn-*", "1conn", "co nn", "名字", "a" * 33],
)
def test_an_entry_that_cannot_be_a_connection_is_an_invalid_filter(entry: str) -> None:
    parsed = parse_request_filter([f"conn, {entry}"], None)

    assert isinstance(parsed, InvalidFilter)
    assert (parsed.header, parsed.entry, parsed.code) == (CLIENTS_HEADER, entry, ErrorCode.INVALID_FILTER)
    assert parsed.reason.endswith(".")


@pytest.mark.parametrize(
    "entry",
    [
        "[]",
        '""',
        "tool",
        "conn_tool",
        "conn",
        "conn-get*",
        "conn-*get",
        "conn-g*t",
        "conn-**",
        "co*-tool",
        "*-tool",
        "**",
        "-tool",
        "Conn-tool",
        "conn-a.b",
        "conn-a b",
        "conn-" + "t" * 60,
        "*-*",
        "Conn-*",
    ],
)
def test_an_entry_that_cannot_be_a_tool_is_an_invalid_filter(entry: str) -> None:
    parsed = parse_request_filter(None, ["conn-tool", entry])

    assert isinstance(parsed, InvalidFilter)
    assert (parsed.header, parsed.entry, parsed.code) == (TOOLS_HEADER, entry, ErrorCode.INVALID_FILTER)
    assert parsed.reason.endswith(".")


def test_the_word_for_nothing_cannot_stand_beside_names() -> None:
    for parsed, header in (
        (parse_request_filter(["none,conn"], None), CLIENTS_HEADER),
        (parse_request_filter(None, ["*", "none"]), TOOLS_HEADER),
    ):
        assert isinstance(parsed, InvalidFilter)
        assert (parsed.header, parsed.entry) == (header, "none")
