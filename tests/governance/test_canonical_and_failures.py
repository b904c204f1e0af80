"""Canonical bytes and the error payload."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.canonical import (
    JSON,
    NotCanonicalError,
    canonical_bytes,
    digest,
    digest_of,
    is_array,
    is_object,
)
from governance.codes import Classification, ErrorCode
from governance.failures import CallError

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abé", max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
def test_canonical_bytes_read_back_as_the_same_value(value: JSON) -> None:
    assert json.loads(canonical_bytes(value)) == value


@given(st.dictionaries(st.text("abc", min_size=1), scalars, max_size=5))
def test_the_order_of_keys_does_not_change_a_digest(value: dict[str, JSON]) -> None:
    assert digest_of(dict(reversed(value.items()))) == digest_of(value)


def test_numbers_keep_their_digits() -> None:
    assert canonical_bytes([2**70, 0.1, 1.0, True]) == b"[1180591620717411303424,0.1,1.0,true]"


def deep_list(depth: int) -> JSON:
    value: JSON = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), "\ud800", {"\ud800": 1}, deep_list(100_000)],
    ids=["nan", "infinity", "surrogate", "surrogate key", "deep"],
)
def test_a_value_without_a_json_form_is_refused(value: JSON) -> None:
    with pytest.raises(NotCanonicalError):
        canonical_bytes(value)


def test_a_digest_is_the_sha_256_in_hexadecimal() -> None:
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_objects_and_arrays_are_told_apart() -> None:
    assert (is_object({}), is_object([]), is_array([]), is_array({})) == (True, False, True, False)


def test_an_error_payload_reads_back_as_it_was_written() -> None:
    error = CallError(
        Classification.TRANSPORT,
        ErrorCode.TOOL_TIMEOUT,
        "Too slow.",
        retryable=True,
        details={"timeout_s": 3},
    )

    assert CallError.from_json(json.loads(json.dumps(error.to_json()))) == error


def test_an_error_payload_without_details_has_an_empty_object() -> None:
    error = CallError(Classification.RUNTIME, ErrorCode.INTERNAL_ERROR, "Ours.")

    assert error.to_json()["details"] == {}
    assert CallError.from_json(error.to_json() | {"details": None}) == error
