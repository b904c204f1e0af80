"""Turn what a call came to into the text of its tool message. Pure: no I/O."""

import json
from collections.abc import Sequence
from typing import Final

from governance.canonical import JSON, NotCanonicalError, canonical_bytes, is_array, is_object
from governance.failures import CallError

_WRAPPER_KEY: Final = "result"


def message_content(result: JSON) -> str:
    r"""Return the text of a tool message for the result of a call.

    Of an MCP result, text blocks stand as they are and every other block (image, audio, link, resource) as
    canonical JSON, in the server's order, joined by "\n"; a lone text block is exactly its text.
    `structuredContent` follows as canonical JSON, unless the text blocks already say the same: servers send
    both for older clients, and the text is what their authors wrote for the model. A result with none of
    these, and any result that is not an MCP one, is its own canonical JSON; a bare string is itself.
    Lone surrogates, which no UTF-8 text can hold, become U+FFFD.

    Source: MCP 2025-11-25, Server Features, Tools, Tool Result.

    Raises:
        NotCanonicalError: the result holds NaN or infinity, or nests too deep.
    """
    result = without_lone_surrogates(result)
    if isinstance(result, str):
        return result
    if not is_object(result):
        return _as_json(result)
    content = result.get("content")
    blocks = content if is_array(content) else []
    parts = [_block_text(block) for block in blocks]
    structured = result.get("structuredContent")
    if structured is not None and not _says_the_same(blocks, structured):
        parts.append(_as_json(structured))
    return "\n".join(parts) if parts else _as_json(result)


def error_content(error: CallError) -> str:
    """Return the text of the tool message for a call without a result: `{"error": {...}}`, canonical."""
    return _as_json(without_lone_surrogates({"error": error.to_json()}))


def cut_content(text: str, max_bytes: int, link: str) -> str:
    """Return the text, or as much of it as fits into `max_bytes` of UTF-8 with a marker at its end.

    The marker names the bytes kept, the full size and where the whole result is; it is never cut itself, so
    a limit below its own size (about 100 bytes and the link) leaves the marker alone.
    """
    encoded = text.encode("utf-8")
    if len(encoded) <= max_bytes:
        return text
    room = max(0, max_bytes - len(_cut_marker(len(encoded), len(encoded), link).encode("utf-8")))
    # What is left of a character cut in the middle is dropped.
    kept = encoded[:room].decode("utf-8", "ignore")
    return kept + _cut_marker(len(kept.encode("utf-8")), len(encoded), link)


def without_lone_surrogates(value: JSON) -> JSON:
    r"""Return the JSON value with each lone surrogate replaced by U+FFFD; the same object if it has none.

    Upstreams that cut text in the middle of an emoji send `\ud83d` alone: valid JSON, but no valid text. The
    effect has happened, so the result is repaired rather than refused.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return _repaired(value)
    except RecursionError as error:
        message = "The value nests too deep to be written as JSON."
        raise NotCanonicalError(message) from error
    return value


def _repaired(value: JSON) -> JSON:
    # Surrogate pairs written as two code units are joined; what is left alone is replaced.
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if is_array(value):
        return [_repaired(item) for item in value]
    if is_object(value):
        return {_repaired(key): _repaired(item) for key, item in value.items()}
    return value


def _cut_marker(kept: int, whole: int, link: str) -> str:
    return f"\n[cut: {kept} of {whole} bytes shown; whole result: {link}]"


def _as_json(value: JSON) -> str:
    return canonical_bytes(value).decode("utf-8")


def _text_of(block: JSON) -> str | None:
    if not is_object(block):
        return None
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, str) else None


def _block_text(block: JSON) -> str:
    text = _text_of(block)
    return _as_json(block) if text is None else text


def _says_the_same(blocks: Sequence[JSON], structured: JSON) -> bool:
    """Tell whether the text blocks carry the structured content, whole or in the usual `result` wrapper.

    Servers that wrap a bare value as `{"result": value}` send the value itself as text, a list as one block
    for each item.
    """
    texts = [text for text in map(_text_of, blocks) if text is not None]
    if _is_text_of(texts, structured):
        return True
    return (
        is_object(structured)
        and set(structured) == {_WRAPPER_KEY}
        and _is_text_of(texts, structured[_WRAPPER_KEY])
    )


def _is_text_of(texts: Sequence[str], value: JSON) -> bool:
    if len(texts) == 1 and _reads_as(texts[0], value):
        return True
    if not is_array(value) or not texts:
        return False
    return len(value) == len(texts) and all(map(_reads_as, texts, value))


def _reads_as(text: str, value: JSON) -> bool:
    if text == value:
        return True
    try:
        # Bytes are compared, because in Python 1 == 1.0 == True.
        return canonical_bytes(json.loads(text)) == canonical_bytes(value)
    except (ValueError, RecursionError):
        return False
