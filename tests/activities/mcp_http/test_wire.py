"""JSON and JSON-RPC frames: what is read, what is refused, and that nothing crashes."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.mcp_http.correlation import Answered, AnswerWait, Asked, Failed, Noted
from activities.mcp_http.wire import (
    BadJSON,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    RPCError,
    clean_text,
    dump_json,
    is_answer_to,
    parse_json,
    read_message,
)

DEPTH = 32
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(item) for item in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(item) for item in value), default=0)
    return 0


def has_odd_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_odd_number(item) for item in value.values())
    if isinstance(value, list):
        return any(has_odd_number(item) for item in value)
    return isinstance(value, float) and not math.isfinite(value)


@settings(max_examples=120, deadline=None)
@given(values, st.booleans())
def test_json_goes_out_and_in_unchanged_or_is_refused(value: Any, ascii_only: bool) -> None:  # noqa: FBT001
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    if has_odd_number(value):
        with pytest.raises(BadJSON):
            parse_json(text, DEPTH)
        with pytest.raises(BadJSON):
            dump_json(value)
    else:
        assert parse_json(text, DEPTH) == value
        assert parse_json(b"\xef\xbb\xbf" + dump_json(value), DEPTH) == value


@settings(max_examples=120, deadline=None)
@given(
    st.binary(max_size=60)
    | st.text(alphabet='{}[]",:0123456789eE+-.truefalsn\\ud8', max_size=40).map(str.encode)
)
def test_any_bytes_are_json_or_refused_and_never_more(data: bytes) -> None:
    try:
        value = parse_json(data, DEPTH)
    except BadJSON:
        return
    assert json.loads(dump_json(value)) == value


@pytest.mark.parametrize("levels", [DEPTH, DEPTH + 1, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_bounded_exactly(levels: int, opening: bytes, closing: bytes) -> None:
    text = opening * levels + b"1" + closing * levels
    if levels <= DEPTH:
        assert depth(parse_json(text, DEPTH)) == levels
    else:
        with pytest.raises(BadJSON):
            parse_json(text, DEPTH)


def test_brackets_in_text_do_not_count_as_depth() -> None:
    assert parse_json(dump_json(["[{" * 500]), DEPTH) == ["[{" * 500]


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        '"\\ud800"',
        '"\\uDFFF"',
        "1" * 5000,
        "",
        " ",
        "{",
        "'a'",
        "01",
    ],
)
def test_what_is_no_portable_json_is_refused(text: str) -> None:
    with pytest.raises(BadJSON):
        parse_json(text.encode(), DEPTH)


@pytest.mark.parametrize("number", [1915883588174806058, 2**63, -(2**63), 10**30])
def test_integers_stay_exact(number: int) -> None:
    assert parse_json(str(number).encode(), DEPTH) == number


def test_a_paired_surrogate_escape_is_a_character() -> None:
    assert parse_json(b'"\\ud83d\\ude00"', DEPTH) == "😀"


FRAMES: list[tuple[Any, Message]] = [
    ({"jsonrpc": "2.0", "id": 1, "result": {}}, Response(1, {})),
    ({"jsonrpc": "2.0", "id": 1, "result": {"a": 1}, "error": None}, Response(1, {"a": 1})),
    ({"jsonrpc": "2.0", "error": {"code": 1, "message": "m"}}, Response(None, None, RPCError(1, "m"))),
    ({"jsonrpc": "2.0", "id": 1, "error": {"code": 1}}, Response(1, None, RPCError(1, ""))),
    ({"jsonrpc": "2.0", "id": 0, "method": "ping"}, Request(0, "ping", {})),
    ({"jsonrpc": "2.0", "id": "a", "method": "m", "params": [1]}, Request("a", "m", {})),
    ({"jsonrpc": "2.0", "method": "n", "params": {"a": 1}}, Notification("n", {"a": 1})),
    (
        {"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": ""}},
        Malformed("both result and error", 1),
    ),
    ({"jsonrpc": "2.0", "id": 1, "error": "x"}, Malformed("error is not an object", 1)),
    ({"jsonrpc": "2.0", "id": 1, "error": {"code": True}}, Malformed("error code is not an integer", 1)),
    ({"jsonrpc": "2.0", "id": 1, "result": [1]}, Malformed("result is not an object", 1)),
    ({"jsonrpc": "2.0", "id": 1}, Malformed("no result or error", 1)),
    ({"jsonrpc": "1.0", "id": 1, "result": {}}, Malformed("jsonrpc is not 2.0", 1)),
    ({"jsonrpc": "2.0", "method": 5}, Malformed("method is not a string")),
    ({"jsonrpc": "2.0", "method": "m", "id": None}, Malformed("request id is neither string nor number")),
    ({"jsonrpc": "2.0", "method": "m", "id": True}, Malformed("request id is neither string nor number")),
    ([], Malformed("not an object")),
    ("x", Malformed("not an object")),
]


@pytest.mark.parametrize(("value", "message"), FRAMES, ids=[str(n) for n in range(len(FRAMES))])
def test_a_frame_is_read_as(value: Any, message: Message) -> None:
    assert read_message(value) == message


@settings(max_examples=120, deadline=None)
@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("jsonrpc", "id", "method", "params", "result", "error"), values)
    )
)
def test_any_object_is_some_message(value: dict[str, Any]) -> None:
    assert isinstance(read_message(value), Message)
    assert isinstance(read_message({**value, "jsonrpc": "2.0"}), Message)


@pytest.mark.parametrize(
    ("answer_id", "request_id", "matches"),
    [
        ("a", "a", True),
        ("A", "a", False),
        (1, "1", True),
        ("1", "1", True),
        (1.0, "1", False),
        (True, "1", False),
        (True, "True", False),
        (None, "None", False),
        (0, "0", True),
        ([1], "[1]", False),
    ],
)
def test_ids_match_by_value_and_tolerate_only_integers(
    answer_id: Any, request_id: str, matches: object
) -> None:
    assert is_answer_to(answer_id, request_id) is matches


json_frames: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"id": st.sampled_from(["ours", "other", None, 7]), "result": st.just({"n": 1})}),
    st.fixed_dictionaries(
        {"id": st.sampled_from(["ours", "other", None]), "error": st.just({"code": 1, "message": ""})}
    ),
    st.fixed_dictionaries({"id": st.sampled_from(["ours", 0]), "method": st.just("ping")}),
    st.fixed_dictionaries({"method": st.sampled_from(["notifications/progress", "x"])}),
    st.just({}),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(json_frames, max_size=8))
def test_only_the_first_response_that_is_ours_ends_the_wait(frames: list[dict[str, Any]]) -> None:
    wait = AnswerWait("ours", "legacy", DEPTH)
    ended: list[Any] = []
    for frame in frames:
        ended += [
            s
            for s in wait.take_event(json.dumps({"jsonrpc": "2.0", **frame}))
            if isinstance(s, Answered | Failed)
        ]
        if ended:
            break
    ours = [
        frame
        for frame in frames
        if "method" not in frame
        and ((frame.get("id") == "ours" and len(frame) > 1) or ("error" in frame and frame["id"] is None))
    ]
    assert bool(ended) == bool(ours)
    if ours:
        assert isinstance(ended[0], Answered if "result" in ours[0] else Failed)


def test_a_batch_is_taken_apart_at_the_legacy_era_only() -> None:
    batch = dump_json(
        [
            {"jsonrpc": "2.0", "id": "x", "method": "ping"},
            {"jsonrpc": "2.0", "method": "n"},
            {"jsonrpc": "2.0", "id": "ours", "result": {}},
        ]
    )
    steps = AnswerWait("ours", "legacy", DEPTH).take_body(batch)
    assert [type(step) for step in steps] == [Asked, Noted, Answered]
    (failed,) = AnswerWait("ours", "modern", DEPTH).take_body(batch)
    assert isinstance(failed, Failed)


@pytest.mark.parametrize("text", ["a\r\nb", "a\x00b", "\x1b[31mred", "a\u2028b", "\x85", "\ud800"])
def test_text_of_a_server_is_made_harmless(text: str) -> None:
    cleaned = clean_text(text, 100)
    assert cleaned.isprintable()
    cleaned.encode("utf-8")
    assert len(clean_text("x" * 1000, 50)) == 50
