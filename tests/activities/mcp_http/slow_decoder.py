"""A slow, obvious decoder of event streams to compare the real one with; follows the standard word by word.

Source: WHATWG HTML, section 9.2.6, Interpreting an event stream.
"""

from activities.mcp_http.sse import MAX_RETRY_S, Event


def decode_slowly(data: bytes) -> list[Event]:
    """Decode a whole stream at once, one character after the other."""
    text = data.decode("utf-8", errors="replace").removeprefix("\ufeff")
    lines, line, position = [], "", 0
    while position < len(text):
        char = text[position]
        if char == "\r" and position + 1 < len(text) and text[position + 1] == "\n":
            position += 1
        if char in "\r\n":
            lines.append(line)
            line = ""
        else:
            line += char
        position += 1
    # What is left in `line` has no end and is dropped.
    return _interpret(lines)


def _interpret(lines: list[str]) -> list[Event]:
    events: list[Event] = []
    fields: list[tuple[str, str]] = []
    for line in lines:
        if line == "":
            events.append(_event(fields))
            fields = []
        elif line[0] != ":":
            name, _, value = line.partition(":")
            fields.append((name, value[1:] if value[:1] == " " else value))
    return [
        event for event in events if event.data or event.event_id is not None or event.retry_s is not None
    ]


def _event(fields: list[tuple[str, str]]) -> Event:
    named = [value for name, value in fields if name == "event"]
    data = [value for name, value in fields if name == "data"]
    ids: list[str | None] = [value for name, value in fields if name == "id" and "\0" not in value]
    retries = [value for name, value in fields if name == "retry" and _is_digits(value)]
    return Event(
        (named or [""])[-1] or "message",
        "\n".join(data),
        (ids or [None])[-1],
        min(int(retries[-1]) / 1000, MAX_RETRY_S) if retries else None,
    )


def _is_digits(value: str) -> bool:
    return 0 < len(value) <= 20 and all("0" <= char <= "9" for char in value)
