"""Answers and chunks as JSON: what is accepted, what is refused, what never changes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.chat_http.errors import BrokenAnswer, ChatError, Refused
from activities.chat_http.types import ChatEndpoint
from activities.chat_http.wire import ChunkReader, dump_json, parse_object, read_completion, usage_of
from tests.support.fake_provider import chunk, completion, error

JSON_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_an_object_comes_out_as_it_went_in(value: dict[str, Any]) -> None:
    assert parse_object(dump_json(value), 200) == value


def test_numbers_that_json_does_not_have_are_read_as_null() -> None:
    written = b'{"Infinity": Infinity, "least": -Infinity, "none": [NaN]}'
    assert parse_object(written, 10) == {"Infinity": None, "least": None, "none": [None]}


def test_half_a_surrogate_pair_passes_through() -> None:
    assert dump_json({"x": "\ud83d"}) == b'{"x":"\\ud83d"}'
    assert parse_object(b'{"x":"\\ud83d"}', 10) == {"x": "\ud83d"}


def test_numbers_keep_their_digits_and_what_is_no_number_is_null() -> None:
    text = '{"a": 12345678901234567890, "b": NaN, "c": [-Infinity, 1e999], "d": 0.1}'
    assert parse_object(text, 10) == {"a": 12345678901234567890, "b": None, "c": [None, None], "d": 0.1}


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_nesting_is_bounded(depth: int) -> None:
    text = '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}" if depth > 1 else "{}"
    assert parse_object(text, depth) is not None
    if depth > 1:
        assert parse_object(text, depth - 1) is None


@given(st.binary(max_size=60))
def test_no_bytes_make_the_reader_fail_otherwise_than_by_its_errors(data: bytes) -> None:
    for read in (lambda: read_completion(data, 10), lambda: ChunkReader(10).read(data.decode("latin-1"))):
        try:
            read()
        except ChatError:
            continue


@given(JSON_VALUES)
def test_no_json_makes_the_reader_fail_otherwise_than_by_its_errors(value: Any) -> None:
    shapes = [value, {"choices": value}, {"choices": [value]}, {"choices": [{"message": value}]}]
    shapes += [{"choices": [{"delta": value}]}, {"choices": [{"delta": {"tool_calls": value}}]}]
    shapes += [{"error": value}, {"usage": value, "choices": [{"message": {}}]}]
    for shape in shapes:
        data = dump_json(shape)
        for read in (lambda: read_completion(data, 50), lambda: ChunkReader(50).read(data.decode())):  # noqa: B023
            try:
                read()
            except ChatError:
                continue


def test_what_a_model_says_of_itself_is_kept() -> None:
    body = {**completion(), "system_fingerprint": "fp", "x_own": {"deep": [1, 2]}}
    body["choices"][0]["message"] |= {"reasoning_content": "hm", "refusal": None, "annotations": []}

    assert read_completion(dump_json(body), 50).body == body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (error("busy", "c", "t"), {"provider_code": "c", "provider_type": "t", "provider_message": "busy"}),
        ({"error": "busy"}, {"provider_message": "busy"}),
        ({"error": {"code": 429, "message": "a\nb\x00" + "x" * 900}}, {"provider_code": "429"}),
        ({"error": ["odd"]}, {}),
        ({"error": True}, {}),
    ],
)
def test_errors_in_every_form_in_use_are_read(body: dict[str, Any], words: dict[str, str]) -> None:
    with pytest.raises(Refused) as raised:
        ChunkReader(10).read(dump_json(body).decode())

    found = raised.value.details
    assert {name: found.get(name) for name in words} == words
    assert all(str(value).isprintable() and len(str(value)) <= 500 for value in found.values())


def test_a_stream_is_finished_when_every_choice_is() -> None:
    reader = ChunkReader(10)
    two: dict[str, Any] = {"choices": [{"index": n, "delta": {}, "finish_reason": None} for n in (0, 1)]}

    finished = [reader.is_finished]
    for value in (two, chunk({}, "stop"), {"choices": [{"index": 1, "finish_reason": "stop"}]}, chunk(None)):
        reader.read(json.dumps(value))
        finished.append(reader.is_finished)

    assert finished == [False, False, False, True, True]


def test_a_chunk_without_index_and_delta_gets_them() -> None:
    body = ChunkReader(10).read('{"choices":[{"finish_reason":"stop"}]}').body
    assert body["choices"] == [{"finish_reason": "stop", "index": 0, "delta": {}}]


@pytest.mark.parametrize("data", ["", "null", "[1]", '"x"', "{", '{"choices":[1]}'])
def test_an_event_that_is_no_chunk_is_refused(data: str) -> None:
    with pytest.raises(BrokenAnswer):
        ChunkReader(10).read(data)


@pytest.mark.parametrize(
    ("raw", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4, 0, 0)),
        ({"prompt_tokens": 3.0, "prompt_tokens_details": {"cached_tokens": 2}}, (3, 0, 2, 0)),
        ({"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 8}}, (0, 9, 0, 8)),
        ({"prompt_tokens": -5, "completion_tokens": "7", "prompt_tokens_details": None}, (0, 0, 0, 0)),
        ({"prompt_tokens": True}, (0, 0, 0, 0)),
    ],
)
def test_usage_is_read_leniently_and_never_negative(
    raw: dict[str, Any], counts: tuple[int, int, int, int]
) -> None:
    usage = usage_of({"usage": raw})
    assert usage is not None
    found = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)
    assert found == counts
    assert usage.raw == raw


@pytest.mark.parametrize("body", [{}, {"usage": None}, {"usage": 5}])
def test_no_usage_is_none(body: dict[str, Any]) -> None:
    assert usage_of(body) is None


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://a.example/v1", "https://a.example/v1/chat/completions"),
        ("https://a.example/v1/", "https://a.example/v1/chat/completions"),
        ("https://a.example", "https://a.example/chat/completions"),
        ("https://a.example/x?api-version=1", "https://a.example/x/chat/completions?api-version=1"),
    ],
)
def test_the_path_is_appended_before_a_query(base: str, url: str) -> None:
    assert ChatEndpoint(base).completions_url == url
