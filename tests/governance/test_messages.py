"""The sentences of errors in both languages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.codes import ErrorCode
from governance.messages import LOCAL_VALUES, Language, message_for, preferred_language


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_sentence_in_every_language(code: ErrorCode) -> None:
    english = message_for(code, {}, Language.EN)
    chinese = message_for(code, {}, Language.ZH_CN)

    assert english.isascii()
    assert any("\u4e00" <= letter <= "\u9fff" for letter in chinese)


def test_values_are_put_into_the_sentence() -> None:
    details = {"tool": "conn-read"}

    assert "conn-read" in message_for(ErrorCode.TOOL_NOT_ALLOWED, details)
    assert "conn-read" in message_for(ErrorCode.TOOL_NOT_ALLOWED, details, Language.ZH_CN)


def test_a_value_that_is_missing_leaves_a_visible_gap() -> None:
    assert "?" in message_for(ErrorCode.TOOL_NOT_ALLOWED, {})


def test_words_of_ours_are_translated_and_names_are_not() -> None:
    details = {"tool": "conn-read", "timeout_s": 5, "outcome": "unknown"}

    assert "unknown" in message_for(ErrorCode.TOOL_TIMEOUT, details)
    chinese = message_for(ErrorCode.TOOL_TIMEOUT, details, Language.ZH_CN)
    assert LOCAL_VALUES[Language.ZH_CN]["unknown"] in chinese
    assert "conn-read" in chinese


def test_braces_in_a_value_are_not_read_as_places() -> None:
    assert "{0.__class__}" in message_for(ErrorCode.TOOL_NOT_ALLOWED, {"tool": "{0.__class__}"})


@pytest.mark.parametrize(
    ("header", "language"),
    [
        (None, Language.EN),
        ("", Language.EN),
        ("zh-CN", Language.ZH_CN),
        ("zh", Language.ZH_CN),
        ("ZH-hans-cn", Language.ZH_CN),
        ("en-GB,en;q=0.9", Language.EN),
        ("fr, zh;q=0.5", Language.ZH_CN),
        ("fr", Language.EN),
        ("en;q=0.4, zh;q=0.6", Language.ZH_CN),
        ("zh;q=0.4, en;q=0.6", Language.EN),
        ("zh;q=0", Language.EN),
        ("zh;q=high", Language.EN),
        ("*", Language.EN),
        ("zh;level=1", Language.ZH_CN),
    ],
)
def test_the_language_asked_for_most_is_chosen(header: str | None, language: Language) -> None:
    assert preferred_language(header) is language


@given(st.text("zhen-;q=0.19,* ", max_size=30))
def test_any_header_gives_a_language(header: str) -> None:
    assert preferred_language(header) in Language
