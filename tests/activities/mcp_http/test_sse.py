"""The event stream decoder against the standard, a slow decoder, and streams cut at every byte."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from activities.mcp_http.sse import MAX_RETRY_S, Event, EventStreamDecoder, EventTooLarge
from tests.activities.mcp_http.slow_decoder import decode_slowly

CAP = 1 << 20


def decode(data: bytes, *cuts: int) -> list[Event]:
    decoder = EventStreamDecoder(CAP)
    edges = [0, *sorted(cuts), len(data)]
    events: list[Event] = []
    for start, end in pairwise(edges):
        events.extend(decoder.feed(data[start:end]))
    return telling(events)


def telling(events: list[Event]) -> list[Event]:
    """Leave out events that neither carry data nor move the cursor: no caller can tell them from none."""
    return [e for e in events if e.data or e.event_id is not None or e.retry_s is not None]


TOKENS = [
    b"data:",
    b"data: ",
    b"data",
    b"event:",
    b"id:",
    b"id",
    b"retry:",
    b"retry: 5",
    b"retry:-5",
    b"retry: 1_0",
    b"retry:99999999999",
    b"retry",
    b":",
    b": ping",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\r\n\r\n",
    b" ",
    b"x",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"\xc2\x85",
    b"\xff",
    b"\xf0\x9f",
    b"\x00",
    "✅ 北京".encode(),
    b"message",
    b'{"a":1}',
    b"7",
    b"datax: 1",
    b"Data: 1",
    b"id: a\x00b",
]

streams = st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(streams, st.lists(st.integers(0, 400), max_size=6))
@example(b"\xef\xbb\xbfdata: 1\n\n", [1, 2])
@example(b"data: 1\r\n\r\ndata: 2\r\rdata: 3\n\n", [8, 10])
@example(b"id\n\n", [])
@example(b"id: 1\n\n: ping\n\n: ping\n\ndata: x\n\n", [])
def test_the_decoder_agrees_with_the_slow_one_however_the_stream_is_cut(data: bytes, cuts: list[int]) -> None:
    assert decode(data, *(min(cut, len(data)) for cut in cuts)) == decode_slowly(data)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_at_all_are_decoded_like_the_slow_one(data: bytes, cut: int) -> None:
    assert decode(data, min(cut, len(data))) == decode_slowly(data)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"], ids=["LF", "CR", "CRLF"])
def test_a_stream_fed_byte_by_byte_gives_the_same_events(end: bytes) -> None:
    data = (
        b"\xef\xbb\xbf" + "id: 1\ndata: a\u2028b✅\ndata\n\n: x\n\nretry: 40\n\nevent: e\ndata:y\n\n".encode()
    )
    data = data.replace(b"\n", end)
    expected = [
        Event("message", "a\u2028b✅\n", "1", None),
        Event("message", "", None, 0.04),
        Event("e", "y", None, None),
    ]
    assert decode(data, *range(len(data))) == decode(data) == expected


def test_keep_alive_comments_after_an_id_give_no_events() -> None:
    decoder = EventStreamDecoder(CAP)
    assert decoder.feed(b"id: 1\ndata: x\n\n") == [Event("message", "x", "1", None)]
    assert decoder.feed(b": ping\n\n: ping\n\n\n\n") == []


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("1500", 1.5),
        ("99999999999", MAX_RETRY_S),
        ("-5", None),
        ("+7", None),
        ("1_000", None),
        ("", None),
    ],
)
def test_retry_is_digits_only_and_clamped(value: str, seconds: float | None) -> None:
    events = decode(f"retry: {value}\ndata: x\n\n".encode())
    assert [event.retry_s for event in events] == [seconds]


@pytest.mark.parametrize(
    "data",
    [
        b"data: " + b"x" * 200,
        b"data: xxxxxxxx\n" * 20,
        b": " + b"x" * 200,
        b"x" * 200,
        b"id: " + b"x" * 200 + b"\n",
    ],
    ids=["line", "lines", "comment", "field", "id"],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_no_event_holds_more_than_the_cap(data: bytes, step: int) -> None:
    decoder = EventStreamDecoder(100)

    def feed_all() -> None:
        for start in range(0, len(data), step):
            decoder.feed(data[start : start + step])

    with pytest.raises(EventTooLarge):
        feed_all()


def test_events_below_the_cap_go_on_for_ever() -> None:
    decoder = EventStreamDecoder(100)
    assert sum(len(decoder.feed(b"data: " + b"x" * 80 + b"\n\n")) for _ in range(1000)) == 1000
