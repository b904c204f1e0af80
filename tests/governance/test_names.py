"""Connection names, exposed names and suggestions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.names import (
    EXPOSED_NAME,
    SUBAGENT_TOOLS,
    check_connection_name,
    exposed_name,
    nearest_name,
)

HOSTILE_NAMES = [
    "",
    " ",
    "*",
    "get*",
    "a.b",
    "a/b",
    "a_b",
    "a-b",
    "a:b",
    "a b",
    "..",
    "名字",
    "naïve",
    "\ud800",
    "a\n",
    "a" * 40,
    "a" * 41,
    "x" * 300,
    "x" * 299 + "y",
    "--" + "a" * 24,
    "tool--" + "a" * 24,
    "-*",
]

connection_names = st.builds("{}{}".format, st.sampled_from("abz"), st.text("a0_", max_size=31))
upstream_names = st.one_of(
    st.text(max_size=80), st.text("ab-_.", max_size=70), st.sampled_from(HOSTILE_NAMES)
)


@pytest.mark.parametrize("name", ["a", "business_search", "k8s", "a" * 32, "none_", "nonesuch", "subagent"])
def test_a_well_formed_connection_name_is_accepted(name: str) -> None:
    assert check_connection_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "a-b",
        "1a",
        "_a",
        "a b",
        "a.b",
        "a" * 33,
        "a\n",
        "é",
        "*",
        "none",
        "core_matrix",
        "core_matrix__x",
        *sorted(SUBAGENT_TOOLS),
    ],
)
def test_a_connection_name_that_cannot_be_used_is_refused_with_advice(name: str) -> None:
    problem = check_connection_name(name)

    assert problem is not None
    assert problem.endswith("choose another name.")


def test_an_ordinary_tool_is_exposed_under_connection_and_tool() -> None:
    assert exposed_name("business_search", "fetch_record") == "business_search-fetch_record"
    assert exposed_name("conn", "my-tool") == "conn-my-tool"


def test_the_longest_name_that_fits_is_not_hashed() -> None:
    assert exposed_name("c", "t" * 62) == "c-" + "t" * 62
    assert exposed_name("c", "t" * 63) != "c-" + "t" * 63


def test_a_hashed_name_never_changes_between_releases() -> None:
    assert exposed_name("conn", "a.b") == "conn-a_b--hfyccb3zioarocldznccckyx"


def test_a_hashed_name_keeps_what_can_be_read() -> None:
    assert exposed_name("files", "admin/delete").startswith("files-admin_delete--")
    assert exposed_name("files", "名字").startswith("files-tool--")
    assert exposed_name("c" * 32, "abcdefgh.").startswith("c" * 32 + "-abcde--")


@pytest.mark.parametrize("connection", ["c", "c" * 32])
def test_hostile_upstream_names_all_get_names_of_their_own(connection: str) -> None:
    # The second half imitates the names that the first half gets.
    exposed = [exposed_name(connection, name) for name in HOSTILE_NAMES]
    imitations = {name.removeprefix(f"{connection}-") for name in exposed} - set(HOSTILE_NAMES)

    exposed += [exposed_name(connection, name) for name in imitations]
    assert len(set(exposed)) == len(HOSTILE_NAMES) + len(imitations)
    assert all(EXPOSED_NAME.fullmatch(name) for name in exposed)


@given(connection_names, connection_names, upstream_names, upstream_names)
def test_exposed_names_fit_and_are_shared_by_no_two_tools(
    connection: str, other_connection: str, tool: str, other_tool: str
) -> None:
    exposed = exposed_name(connection, tool)

    assert EXPOSED_NAME.fullmatch(exposed)
    assert exposed.split("-", 1)[0] == connection
    same_tool = (connection, tool) == (other_connection, other_tool)
    assert (exposed == exposed_name(other_connection, other_tool)) is same_tool


@given(connection_names, upstream_names)
def test_a_name_that_imitates_a_hashed_name_does_not_take_it(connection: str, tool: str) -> None:
    exposed = exposed_name(connection, tool)
    imitation = exposed.removeprefix(f"{connection}-")

    assert imitation == tool or exposed_name(connection, imitation) != exposed


@pytest.mark.parametrize(
    "wanted",
    [
        "conn_get_user",
        "conn-get-user",
        "Conn-Get_User",
        "mcp__conn__get_user",
        "mcp_conn_get_user",
        "conn.get.user",
        "conn-get_usr",
        "conn-get_users",
    ],
)
def test_another_spelling_of_a_name_finds_it(wanted: str) -> None:
    assert nearest_name(wanted, ["conn-get_user", "conn-set_limits", "other-read"]) == "conn-get_user"


@pytest.mark.parametrize("wanted", ["", "zzzz", "*", "名字", "x" * 10_000])
def test_a_name_like_no_other_has_no_nearest(wanted: str) -> None:
    assert nearest_name(wanted, ["conn-get_user", "other-read"]) is None


def test_nothing_is_nearest_where_nothing_is_visible() -> None:
    assert nearest_name("conn-get_user", []) is None


@given(st.permutations(["conn-read_a", "conn-read_b", "conn-read_c", "other-x"]))
def test_the_nearest_name_does_not_depend_on_the_order_of_the_visible(names: list[str]) -> None:
    assert nearest_name("conn-read_z", names) == "conn-read_a"
