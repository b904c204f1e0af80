"""Results of calls and lists of tools, in the shape of the version that the client speaks. Pure: no I/O."""

import json
from collections.abc import Mapping
from typing import Final

from api.mcp_server.eras import MODERN, WITH_BATCHES
from governance.canonical import JSON, canonical_bytes, is_array, is_object
from governance.content import without_lone_surrogates

RESERVED_META: Final = "io.modelcontextprotocol/"
"""What the metadata of the protocol itself begins with; it is said anew at every hop."""

ROUND_META: Final = "dev.sluicegate/round-id"
INVOCATION_META: Final = "dev.sluicegate/invocation-id"

_FIRST_BLOCKS: Final = frozenset({"text", "image", "audio", "resource"})
"""The content blocks of 2025-03-26; its clients refuse a result with any other."""


def call_result(stored: bytes, version: str, *, is_error: bool, meta: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the stored result of an upstream as a client of `version` can read it.

    Blocks stay whole and in order. What a version has no place for is kept as text: other content blocks
    before 2025-06-18, and structured content that is no object before 2026-07-28.

    Source: MCP 2025-11-25 and 2026-07-28, Server Features, Tools, Tool Result.
    """
    raw: JSON = without_lone_surrogates(json.loads(stored))
    if not is_object(raw):
        return text_result(_as_text(raw), is_error=is_error, meta=meta)
    content = raw.get("content")
    blocks: list[JSON] = list(content) if is_array(content) else []
    structured = raw.get("structuredContent")
    keeps_structured = is_object(structured) or (version == MODERN and structured is not None)
    if structured is not None and (not blocks or not keeps_structured):
        blocks.append(_text_block(_as_text(structured)))
    if version == WITH_BATCHES:
        blocks = [_as_first_block(block) for block in blocks]
    result: dict[str, JSON] = {
        "content": blocks,
        "isError": is_error,
        "_meta": _joined(raw.get("_meta"), meta),
    }
    if keeps_structured and version != WITH_BATCHES:
        result["structuredContent"] = structured
    return result


def text_result(text: str, *, is_error: bool, meta: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return a result of one text block."""
    return {"content": [_text_block(text)], "isError": is_error, "_meta": dict(meta)}


def listed_tool(snapshot: bytes, version: str) -> dict[str, JSON]:
    """Return a tool's stored snapshot as `tools/list` shows it to a client of `version`.

    `x-mcp-header` annotations are left out: they ask for headers on the way to the tool's own server, and
    this is another hop, on which nothing reads them.
    """
    stored: dict[str, JSON] = without_lone_surrogates(json.loads(snapshot))
    schema = stored["input_schema"]
    shown: dict[str, JSON] = {
        "name": stored["exposed_name"],
        "description": stored["description"] or "",
        "inputSchema": {"type": "object", **_without_headers(schema)}
        if is_object(schema)
        else {"type": "object"},
    }
    if is_object(stored["annotations"]):
        shown["annotations"] = stored["annotations"]
    output = stored["output_schema"]
    if (
        is_object(output)
        and version != WITH_BATCHES
        and (version == MODERN or output.get("type") == "object")
    ):
        shown["outputSchema"] = output
    return shown


def _without_headers(schema: Mapping[str, JSON]) -> dict[str, JSON]:
    kept = {name: value for name, value in schema.items() if name != "x-mcp-header"}
    properties = schema.get("properties")
    if is_object(properties):
        kept["properties"] = {
            name: _without_headers(value) if is_object(value) else value for name, value in properties.items()
        }
    return kept


def _as_first_block(block: JSON) -> JSON:
    if is_object(block) and block.get("type") in _FIRST_BLOCKS:
        return block
    return _text_block(_as_text(block))


def _joined(upstream: JSON, ours: Mapping[str, JSON]) -> dict[str, JSON]:
    theirs = upstream if is_object(upstream) else {}
    return {name: value for name, value in theirs.items() if not name.startswith(RESERVED_META)} | dict(ours)


def _text_block(text: str) -> dict[str, JSON]:
    return {"type": "text", "text": text}


def _as_text(value: JSON) -> str:
    return value if isinstance(value, str) else canonical_bytes(value).decode("utf-8")
