"""Tool calls as providers write them, and as callers get them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.chat_http.tool_calls import ToolCallShaper, made_up_id


def delta(
    name: str | None = None, arguments: Any = None, call_id: str | None = None, index: Any = None
) -> dict[str, Any]:
    call: dict[str, Any] = {}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call["id"] = call_id
    function = {"name": name, "arguments": arguments}
    call["function"] = {key: value for key, value in function.items() if value is not None}
    return call


def gathered(deltas: list[list[dict[str, Any]]]) -> dict[int, tuple[str, str, str]]:
    """Add deltas up as clients do, holding that nothing comes twice; index to (id, name, arguments)."""
    shaper, calls = ToolCallShaper(), dict[int, list[str]]()
    for group in deltas:
        for call in shaper.deltas("c-1", 0, group):
            index = call["index"]
            if index not in calls:
                calls[index] = [call["id"], call["function"].get("name", ""), ""]
                assert call["type"] == "function"
            else:
                assert "id" not in call
                assert "type" not in call
                calls[index][1] += call["function"].get("name", "")
            calls[index][2] += call["function"].get("arguments", "")
    return {index: (parts[0], parts[1], parts[2]) for index, parts in calls.items()}


STREAMS = {
    "as OpenAI writes it": [
        [delta("f", "", "a", 0)],
        [delta(None, '{"x":', None, 0)],
        [delta(None, "1}", None, 0)],
        [delta("g", "", "b", 1)],
        [delta(None, "{}", None, 1)],
    ],
    "interleaved": [
        [delta("f", "", "a", 0), delta("g", "", "b", 1)],
        [delta(None, '{"x":', None, 0), delta(None, "{", None, 1)],
        [delta(None, "1}", None, 0), delta(None, "}", None, 1)],
    ],
    "no index": [
        [delta("f", '{"x":', "a")],
        [delta(None, "1}")],
        [delta("g", "{}", "b")],
    ],
    "id and name in every delta": [
        [delta("f", '{"x":', "a", 0)],
        [delta("f", "1}", "a", 0)],
        [delta("g", "{}", "b", 1)],
    ],
    "every call under index 0": [
        [delta("f", '{"x":', "a", 0)],
        [delta(None, "1}", None, 0)],
        [delta("g", "", "b", 0)],
        [delta(None, "{}", None, 0)],
    ],
    "empty ids and names after the first": [
        [delta("f", '{"x":', "a", 0)],
        [delta("", "1}", "", 0)],
        [delta("g", "{}", "b", 1)],
    ],
    "arguments that are no text": [[delta("f", {"x": 1}, "a", 0), delta("g", {}, "b", 1)]],
    "an index that starts at 1": [[delta("f", '{"x":1}', "a", 1)], [delta("g", "{}", "b", 2)]],
    "an index that is no number": [[delta("f", '{"x":1}', "a", "0")], [delta("g", "{}", "b", "1")]],
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=list(STREAMS))
def test_every_way_of_streaming_calls_adds_up_to_the_same(stream: list[list[dict[str, Any]]]) -> None:
    found = gathered(stream)

    assert list(found) == [0, 1]
    assert [(call_id, name, json.loads(text)) for call_id, name, text in found.values()] == [
        ("a", "f", {"x": 1}),
        ("b", "g", {}),
    ]


def test_whole_calls_without_ids_and_index_are_calls_of_their_own() -> None:
    found = gathered([[delta("f", '{"x":1}'), delta("f", '{"x":2}')], [delta("g", "{}")]])

    assert [(name, text) for _, name, text in found.values()] == [
        ("f", '{"x":1}'),
        ("f", '{"x":2}'),
        ("g", "{}"),
    ]
    ids = [call_id for call_id, _, _ in found.values()]
    assert ids == [made_up_id("c-1", 0, number) for number in range(3)]
    assert len(set(ids)) == 3


def test_choices_are_counted_apart() -> None:
    shaper = ToolCallShaper()

    first = shaper.deltas("c", 0, [delta("f", "", "a", 0)])
    second = shaper.deltas("c", 1, [delta("f", "", "a", 0)])

    assert first == second


@given(
    st.lists(
        st.lists(
            st.one_of(
                st.none(),
                st.integers(),
                st.builds(
                    delta,
                    st.sampled_from([None, "", "f", "g"]),
                    st.one_of(
                        st.none(), st.text(max_size=3), st.dictionaries(st.text(max_size=2), st.none())
                    ),
                    st.sampled_from([None, "", "a", "b"]),
                    st.sampled_from([None, 0, 1, -1, True, "0"]),
                ),
            ),
            max_size=4,
        ),
        max_size=6,
    )
)
def test_whatever_comes_each_call_has_one_id_and_indexes_without_gaps(stream: Any) -> None:
    assert list(gathered(stream)) == list(range(len(gathered(stream))))


def test_calls_of_a_whole_message_get_what_they_lack() -> None:
    calls = [
        {"function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": None}, "extra": 1},
        "no call",
        {"id": "c", "type": "custom", "custom": {"name": "h"}},
    ]

    assert ToolCallShaper().whole("c-1", 0, calls) == [
        {
            "id": made_up_id("c-1", 0, 0),
            "type": "function",
            "function": {"name": "f", "arguments": '{"x": 1}'},
        },
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}, "extra": 1},
        {"id": "c", "type": "custom", "custom": {"name": "h"}},
    ]
