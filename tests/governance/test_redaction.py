"""Redaction on a corpus of made-up text: what it finds, what it leaves, and that no text is slow."""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from governance.redaction import (
    PERSONAL,
    SECRETS,
    Finding,
    find,
    iban_holds,
    kinds_of,
    luhn_holds,
    redact_json,
    redact_text,
)

CORPUS = Path(__file__).parents[1] / "support" / "corpus"

PRECISION, RECALL = 0.989, 0.976
"""What was measured when the corpus was made. Texts that no pattern can see are part of it."""


def corpus(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CORPUS / f"{name}.jsonl").read_text("utf-8").splitlines()]


def test_precision_and_recall_on_the_corpus_do_not_fall(capsys: pytest.CaptureFixture[str]) -> None:
    positives, negatives = corpus("positives"), corpus("negatives")
    assert len(positives) >= 200
    assert len(negatives) >= 200
    right, wrong, missed = Counter[str](), Counter[str](), Counter[str]()
    for row in [*positives, *negatives]:
        wanted = Counter((kind, text) for kind, text in row["spans"])
        found = Counter((span.kind.value, row["text"][span.start : span.end]) for span in find(row["text"]))
        for kind, _ in (wanted & found).elements():
            right[kind] += 1
        for kind, _ in (found - wanted).elements():
            wrong[kind] += 1
        for kind, _ in (wanted - found).elements():
            missed[kind] += 1

    precision = right.total() / (right.total() + wrong.total())
    recall = right.total() / (right.total() + missed.total())
    lines = [
        f"redaction: precision {precision:.4f}, recall {recall:.4f}, {len(positives) + len(negatives)} texts"
    ]
    lines += [
        f"  {kind:13} found {right[kind]:3}, wrongly {wrong[kind]}, missed {missed[kind]}"
        for kind in sorted({*right, *wrong, *missed})
    ]
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert precision >= PRECISION
    assert recall >= RECALL
    assert set(right) == {kind.value for kind in Finding}


def test_every_occurrence_is_replaced_and_nothing_else() -> None:
    text = "a@b.example, then 4111 1111 1111 1111; again a@b.example."
    redacted, found = redact_text(text)

    assert redacted == "[redacted:email], then [redacted:card]; again [redacted:email]."
    assert found == [Finding.EMAIL, Finding.CARD, Finding.EMAIL]
    assert redact_text(redacted) == (redacted, [])


def test_only_the_kinds_that_are_asked_for_are_found() -> None:
    text = "a@b.example with AKIAIOSFODNN7EXAMPL3"
    assert redact_text(text, PERSONAL)[0] == "[redacted:email] with AKIAIOSFODNN7EXAMPL3"
    assert kinds_of(["secrets", "email"]) == SECRETS | {Finding.EMAIL}
    with pytest.raises(ValueError, match="nothing"):
        kinds_of(["nothing"])


def test_values_are_redacted_at_every_depth_with_their_names() -> None:
    value = {
        "to": ["a@b.example", {"a@b.example": 1, "c@d.example": 2}],
        "password": "Tr0ub4dor",
        "db_password": "x9$kkq",
        "count": 3,
        "none": None,
        "schema": {"password": "string"},
    }
    redacted, counts = redact_json(value, SECRETS | PERSONAL)

    assert redacted == {
        "to": ["[redacted:email]", {"[redacted:email]": 1, "[redacted:email]'": 2}],
        "password": "[redacted:password]",
        "db_password": "[redacted:password]",
        "count": 3,
        "none": None,
        "schema": {"password": "string"},
    }
    assert counts == {"email": 3, "password": 2}


def test_a_value_with_nothing_to_find_is_the_same_object() -> None:
    value = {"a": ["b", {"c": 1}]}
    assert redact_json(value, SECRETS)[0] is value


def test_a_token_that_holds_a_number_is_one_finding() -> None:
    text = "Authorization: Bearer abcDEF123456-4111111111111111-xyzw"
    assert [span.kind for span in find(text)] == [Finding.BEARER_TOKEN]


@pytest.mark.parametrize(("number", "holds"), [("4111111111111111", True), ("4111111111111112", False)])
def test_the_check_digit_of_cards_is_looked_at(number: str, holds: object) -> None:
    assert luhn_holds(number) is holds


@pytest.mark.parametrize(
    ("number", "holds"),
    [("DE89370400440532013000", True), ("DE89370400440532013001", False), ("XX89370400440532013000", False)],
)
def test_length_and_check_digits_of_accounts_are_looked_at(number: str, holds: object) -> None:
    assert iban_holds(number) is holds


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "1",
        "+123456789012345678901234567890a ",
        "sk-",
        "a@",
        "a@b.",
        "4111 1111 1111 1112 ",
        "DE89 3704 0044 0532 0130 01 ",
        "eyJaaaaaaaaaa.eyJ",
        "-----BEGIN PRIVATE KEY-----",
        "password=",
        "a://b:c",
        "tel 123-",
        "aws_key",
    ],
)
def test_no_text_takes_more_than_its_length(piece: str) -> None:
    """Ten times the text may take some twenty times as long on a busy machine, never a hundred times."""

    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        begun = time.process_time()
        find(text)
        return time.process_time() - begun

    seconds(1_000)
    assert seconds(200_000) < 40 * max(seconds(20_000), 0.002)
