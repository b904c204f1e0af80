"""The text of tool messages."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.canonical import JSON, NotCanonicalError, canonical_bytes
from governance.codes import Classification, ErrorCode
from governance.content import cut_content, error_content, message_content, without_lone_surrogates
from governance.failures import CallError
from tests.governance.test_canonical_and_failures import deep_list, json_values


def text(content: str) -> JSON:
    return {"type": "text", "text": content}


IMAGE: JSON = {"type": "image", "mimeType": "image/png", "data": "iVBOR"}
LINK: JSON = {"type": "resource_link", "uri": "file:///a", "name": "a"}
IMAGE_TEXT = '{"data":"iVBOR","mimeType":"image/png","type":"image"}'
LINK_TEXT = '{"name":"a","type":"resource_link","uri":"file:///a"}'


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ({"content": [text("hello\n ")]}, "hello\n "),
        ({"content": [text("")]}, ""),
        ({"content": [text("a"), text("b")]}, "a\nb"),
        ({"content": [text("a"), IMAGE, text("b"), LINK]}, f"a\n{IMAGE_TEXT}\nb\n{LINK_TEXT}"),
        ({"content": [IMAGE]}, IMAGE_TEXT),
        ({"content": [{"type": "text", "text": 1}]}, '{"text":1,"type":"text"}'),
        ({"content": [{"type": "text", "text": "a", "annotations": {"priority": 1}}]}, "a"),
        ({"content": ["odd", None]}, '"odd"\nnull'),
        ({"content": [text("failed")], "isError": True}, "failed"),
        ({"content": []}, '{"content":[]}'),
        ({"content": [], "isError": True}, '{"content":[],"isError":true}'),
        ({"content": [], "structuredContent": {"b": 1, "a": 2}}, '{"a":2,"b":1}'),
        ({"structuredContent": {"a": 1}, "isError": True}, '{"a":1}'),
        ({"content": "odd"}, '{"content":"odd"}'),
        ({"anything": 1}, '{"anything":1}'),
        ("bare", "bare"),
        (4, "4"),
        (None, "null"),
        ([1, "a"], '[1,"a"]'),
    ],
)
def test_a_result_becomes_text_that_invents_nothing(result: JSON, content: str) -> None:
    assert message_content(result) == content


@pytest.mark.parametrize(
    ("blocks", "structured"),
    [
        ([text('{"a": 1, "b": [2]}')], {"b": [2], "a": 1}),
        ([text("plain")], {"result": "plain"}),
        ([text("5")], {"result": 5}),
        ([text("[1, 2]")], {"result": [1, 2]}),
        ([text("a"), text("b")], {"result": ["a", "b"]}),
        ([text('{"x":1}'), text('{"x":2}')], {"result": [{"x": 1}, {"x": 2}]}),
        ([text("a"), text("b")], ["a", "b"]),
        ([IMAGE, text('{"a":1}')], {"a": 1}),
    ],
)
def test_structured_content_that_the_text_already_says_is_not_repeated(
    blocks: list[JSON], structured: JSON
) -> None:
    alone = message_content({"content": blocks})

    assert message_content({"content": blocks, "structuredContent": structured}) == alone


@pytest.mark.parametrize(
    ("blocks", "structured"),
    [
        ([text("3 rows found")], {"rows": [1, 2, 3]}),
        ([text('{"a": 1}')], {"a": 2}),
        ([text("1")], {"result": True}),
        ([text("1.0")], {"result": 1}),
        ([text("a")], {"result": ["a", "b"]}),
        ([text("a")], {"result": "a", "more": 1}),
        ([IMAGE], {"result": []}),
        ([text("NaN")], {"result": 1}),
        ([text("[" * 100_000)], {"a": 1}),
    ],
)
def test_structured_content_that_says_more_or_other_than_the_text_follows_it(
    blocks: list[JSON], structured: JSON
) -> None:
    alone = message_content({"content": blocks})

    assert message_content({"content": blocks, "structuredContent": structured}) == "\n".join(
        [alone, canonical_bytes(structured).decode()]
    )


@given(st.dictionaries(st.text("abc"), json_values, max_size=4))
def test_content_does_not_depend_on_the_order_of_keys(structured: dict[str, JSON]) -> None:
    backwards = dict(reversed(structured.items()))

    assert message_content({"structuredContent": structured}) == message_content(
        {"structuredContent": backwards}
    )


def test_half_an_emoji_in_a_result_is_replaced_and_a_whole_one_is_kept() -> None:
    sent = json.loads('{"content": [{"type": "text", "text": "cut \\ud83d"}]}')

    assert message_content(sent) == "cut \ufffd"
    assert without_lone_surrogates({"\ud83d": ["\ud83d\ude00", 1, None]}) == {
        "\ufffd": ["\U0001f600", 1, None]
    }


def test_a_value_without_lone_surrogates_is_not_copied() -> None:
    value = {"a": ["é", "\U0001f600"]}

    assert without_lone_surrogates(value) is value


@pytest.mark.parametrize("result", [float("nan"), deep_list(100_000)], ids=["nan", "deep"])
def test_a_result_without_a_json_form_is_refused(result: JSON) -> None:
    with pytest.raises(NotCanonicalError):
        message_content({"structuredContent": result})


def test_a_call_without_a_result_says_its_error_as_json() -> None:
    error = CallError(
        Classification.TRANSPORT, ErrorCode.OUTCOME_UNKNOWN, "No \ud83d answer.", details={"b": 1}
    )

    assert error_content(error) == (
        '{"error":{"classification":"transport","code":"outcome_unknown","details":{"b":1},'
        '"message":"No \ufffd answer.","retryable":false}}'
    )


def test_text_that_fits_is_not_touched() -> None:
    assert cut_content("é" * 50, 100, "/r") == "é" * 50


def test_text_that_does_not_fit_is_cut_between_characters_and_says_where_the_rest_is() -> None:
    whole = "\U0001f600" * 100

    cut = cut_content(whole, 150, "/v1/r/1")
    shown, _, marker = cut.partition("\n")
    kept = len(shown.encode())
    assert marker == f"[cut: {kept} of 400 bytes shown; whole result: /v1/r/1]"
    assert kept > 0
    assert whole.startswith(shown)


def test_a_limit_smaller_than_the_marker_leaves_the_marker() -> None:
    assert cut_content("x" * 100, 3, "/r") == "\n[cut: 0 of 100 bytes shown; whole result: /r]"


@given(st.text(), st.integers(0, 300))
def test_cut_text_keeps_to_the_limit(content: str, max_bytes: int) -> None:
    content = content.encode("utf-8", "ignore").decode()
    cut = cut_content(content, max_bytes, "/r")

    marker = "\n[cut: "
    assert cut == content or marker in cut
    assert len(cut.encode()) <= max_bytes or cut.startswith(marker)
    assert cut == content or content.startswith(cut[: cut.rindex(marker)])
