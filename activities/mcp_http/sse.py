"""Server-sent events from bytes, over the decoder of httpx-sse with its faults worked around. Pure: no I/O.

httpx-sse turns lines into events. Added here, because it does not have them: lines cut at any byte, UTF-8
always, a byte order mark skipped, a cap on the bytes held, ``retry`` in digits only and clamped, and no empty
events for keep-alive comments. Source: WHATWG HTML, section 9.2.6, Interpreting an event stream.
"""

import re
from dataclasses import dataclass
from typing import Final

# Not exported, but EventSource, which is, reads from an httpx.Response and would hide the bytes.
from httpx_sse._decoders import SSEDecoder

MAX_RETRY_S: Final = 30.0
"""Longest reconnection time a server may ask for."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event grew beyond the configured cap."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"one server-sent event is larger than {max_bytes} bytes")
        self.max_bytes = max_bytes


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event; `name` is ``message`` if it had none.

    `event_id` and `retry_s` are set only if this very event carried them.

    `data` is empty for events that only move the cursor (priming events).
    """

    name: str
    data: str
    event_id: str | None
    retry_s: float | None


class EventStreamDecoder:
    """Decodes one event stream; feed it chunks cut anywhere."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._decoder = SSEDecoder()
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._event_bytes = 0
        self._at_start = True
        self._after_cr = False
        self._clear_event()

    def _clear_event(self) -> None:
        self._event_bytes = 0
        self._seen_field = False
        self._event_id: str | None = None
        self._retry_s: float | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events completed by `chunk`; one left open at the end of the stream is never returned.

        Raises:
            EventTooLarge: The event being read is larger than the cap; the decoder is of no use afterwards.
        """
        events: list[Event] = []
        for line in self._lines(chunk):
            event = self._take_line(line)
            if event is not None:
                events.append(event)
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        *complete, rest = _LINE_END.split(chunk) if b"\r" in chunk else chunk.split(b"\n")
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        if complete and self._partial:
            self._partial.append(complete[0])
            complete[0] = b"".join(self._partial)
            self._partial, self._partial_bytes = [], 0
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
        if self._event_bytes + self._partial_bytes > self._max_event_bytes:
            raise EventTooLarge(self._max_event_bytes)
        return complete

    def _take_line(self, line: bytes) -> Event | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            return None
        self._event_bytes += len(line)
        if self._event_bytes > self._max_event_bytes:
            raise EventTooLarge(self._max_event_bytes)
        self._take_field(line)
        return None

    def _take_field(self, line: bytes) -> None:
        text = line.decode("utf-8", errors="replace")
        name, _, value = text[:64].partition(":")  # A cut copy: data may be megabytes.
        if name == "retry":
            # httpx-sse accepts whatever int() does, signs and underscores included; the standard says digits.
            digits = value.removeprefix(" ")
            if len(digits) <= 20 and digits.isascii() and digits.isdigit():
                self._retry_s = min(int(digits) / 1000, MAX_RETRY_S)
                self._seen_field = True
            return
        if name == "id":
            event_id = text.partition(":")[2].removeprefix(" ")
            if "\0" not in event_id:
                self._event_id = event_id
        self._seen_field = True
        self._decoder.decode(text)

    def _dispatch(self) -> Event | None:
        if not self._seen_field:
            # httpx-sse would report an empty event here whenever an id was seen before.
            self._clear_event()
            return None
        sse = self._decoder.decode("")
        event_id, retry_s = self._event_id, self._retry_s
        self._clear_event()
        if sse is None:
            return (
                Event("message", "", event_id, retry_s)
                if event_id is not None or retry_s is not None
                else None
            )
        return Event(sse.event, sse.data, event_id, retry_s)
