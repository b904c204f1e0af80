"""Chat completions as JSON: requests out, answers and chunks in. Pure: no I/O.

Source: the OpenAI API reference, Chat Completions; leniency where providers that claim compatibility differ.
"""

import json
import math
from collections.abc import Mapping
from typing import Final

from activities.chat_http.errors import BrokenAnswer, Refused
from activities.chat_http.tool_calls import ToolCallShaper
from activities.chat_http.types import JSON, Chunk, Completion, Usage
from activities.mcp_http.wire import as_list, as_object, clean_text

DONE: Final = "[DONE]"
"""What the last event of a stream says instead of JSON."""

LONGEST_TEXT: Final = 500
"""Characters kept of a text that the provider wrote about an error."""


def dump_json(value: JSON) -> bytes:
    """Encode a JSON value in UTF-8; half a surrogate pair, which streams may hold, stays an escape."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def parse_object(data: bytes | str, max_depth: int) -> dict[str, JSON] | None:
    """Return the JSON object in a text, None where it holds anything else.

    Integers keep every digit; NaN and infinities, which some servers write for log probabilities, are null.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        value: JSON = json.loads(text, parse_constant=_null, parse_float=_finite_or_null)
    except (ValueError, RecursionError):
        return None
    # Counting brackets is far cheaper than walking; text inside strings can only make the count too high.
    if text.count("[") + text.count("{") > max_depth and _is_deeper(value, max_depth):
        return None
    return as_object(value)


def _null(_constant: str) -> None:
    return None


def _finite_or_null(text: str) -> float | None:
    value = float(text)
    return None if math.isinf(value) else value


def _is_deeper(value: JSON, max_depth: int) -> bool:
    level: list[JSON] = [value]
    for _ in range(max_depth):
        below: list[JSON] = []
        for item in level:
            below.extend((as_object(item) or {}).values())
            below.extend(as_list(item) or ())
        level = [item for item in below if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def read_completion(data: bytes, max_depth: int) -> Completion:
    """Return the answer in the body of a 200.

    Raises:
        Refused: the body is an error, as some providers send with 200.
        BrokenAnswer: the body is no chat completion, or holds no choice.
    """
    body = parse_object(data, max_depth)
    if body is None:
        raise BrokenAnswer("undecodable_answer", "The provider's answer is not a JSON object.")
    if body.get("error"):
        raise refusal_in(body, 200)
    choices = [as_object(choice) for choice in as_list(body.get("choices")) or []]
    if not choices:
        raise BrokenAnswer("empty_answer", "The provider's answer holds no choice.")
    shaper = ToolCallShaper()
    for position, choice in enumerate(choices):
        message = as_object((choice or {}).get("message"))
        if choice is None or message is None:
            raise BrokenAnswer("undecodable_answer", "A choice of the provider's answer holds no message.")
        calls = as_list(message.get("tool_calls"))
        if calls:
            message["tool_calls"] = shaper.whole(body.get("id"), position, calls)
    return Completion(body, usage_of(body))


class ChunkReader:
    """Reads the events of one stream in order, and knows whether the answer has come to its end."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._shaper = ToolCallShaper()
        self._begun: set[int] = set()
        self._ended: set[int] = set()

    @property
    def is_finished(self) -> bool:
        """Whether every choice that began has a finish reason: all that is missing then is the last event."""
        return bool(self._begun) and self._begun == self._ended

    def read(self, data: str) -> Chunk:
        """Return the chunk in the data of an event that is not `DONE`.

        Raises:
            Refused: the event is an error.
            BrokenAnswer: the event is no chunk.
        """
        body = parse_object(data, self._max_depth)
        if body is None:
            raise BrokenAnswer(
                "undecodable_answer", "An event of the provider's stream is not a JSON object."
            )
        if body.get("error"):
            raise refusal_in(body, None)
        choices = as_list(body.get("choices")) or []
        for position, choice in enumerate(choices):
            self._take_choice(body.get("id"), position, as_object(choice))
        return Chunk(body, usage_of(body), is_usage_only=not choices)

    def _take_choice(self, completion_id: JSON, position: int, choice: dict[str, JSON] | None) -> None:
        if choice is None:
            raise BrokenAnswer("undecodable_answer", "A choice of the provider's stream is not an object.")
        number = choice.get("index")
        if not isinstance(number, int) or isinstance(number, bool):
            number = choice["index"] = position
        self._begun.add(number)
        if choice.get("finish_reason") is not None:
            self._ended.add(number)
        delta = as_object(choice.get("delta"))
        if delta is None:
            delta = choice["delta"] = {}
        calls = as_list(delta.get("tool_calls"))
        if calls:
            delta["tool_calls"] = self._shaper.deltas(completion_id, number, calls)


def usage_of(body: Mapping[str, JSON]) -> Usage | None:
    """Return the usage of an answer or chunk, None where it names none."""
    raw = as_object(body.get("usage"))
    if raw is None:
        return None
    prompt = as_object(raw.get("prompt_tokens_details")) or {}
    completion = as_object(raw.get("completion_tokens_details")) or {}
    return Usage(
        prompt_tokens=_count(raw.get("prompt_tokens")),
        completion_tokens=_count(raw.get("completion_tokens")),
        cached_tokens=_count(prompt.get("cached_tokens")),
        reasoning_tokens=_count(completion.get("reasoning_tokens")),
        raw=raw,
    )


def _count(value: JSON) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return max(0, int(value))


def refusal_in(
    body: Mapping[str, JSON], status: int | None, facts: Mapping[str, JSON] | None = None
) -> Refused:
    """Return the error that a JSON object describes, in one of the forms in use.

    ``{"error": {"message", "type", "code"}}`` is OpenAI's, ``{"error": "text"}`` and ``{"message": "text"}``
    are others'.
    """
    details: dict[str, JSON] = dict(facts or {})
    if status is not None:
        details["http_status"] = status
    error = body.get("error")
    told = as_object(error) or (body if error is None else {"message": error})
    for key in ("code", "type", "message"):
        value = told.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            details[f"provider_{key}"] = clean_text(str(value), LONGEST_TEXT)
    where = "in its stream" if status is None else f"with HTTP {status}"
    return Refused("provider_error", f"The provider answered {where}.", retryable=False, details=details)
