"""Tool results and listings as received, turned into values; oddities are marked, not fatal. Pure: no I/O."""

from dataclasses import dataclass, field
from typing import Final

from activities.mcp_http import wire
from activities.mcp_http.errors import MCPError, Outcome, ProtocolError
from activities.mcp_http.headers import parameter_headers
from activities.mcp_http.schemas import SchemaCache, remote_reference
from activities.mcp_http.types import JSON, DroppedTool, Era, Limits, ListedTool, ToolAnswer, ToolListing

CONTENT_TYPES: Final = frozenset({"text", "image", "audio", "resource", "resource_link"})
"""Kinds of content blocks, all versions together. Source: MCP 2025-11-25, Tools, Tool Result."""

MAX_TOOL_NAME_LENGTH: Final = 256


@dataclass(frozen=True, slots=True)
class InputRequired:
    """A modern result that asks for input and ends the exchange.

    Source: MCP 2026-07-28, Multi round-trip requests.
    """

    requests: dict[str, JSON]
    state: str | None


def read_interim(result: dict[str, JSON], era: Era) -> InputRequired | None:
    """Return what a result asks for, or None if it is complete.

    Raises:
        ProtocolError: The result is of a kind that was never agreed on, or asks for nothing.
    """
    if era == "legacy":
        if "task" in result and "content" not in result and "structuredContent" not in result:
            raise _unusable("undeclared_task", "The server answered with a task, which was not asked for.")
        return None
    kind = result.get("resultType", "complete")
    if kind == "complete":
        return None
    if kind != "input_required":
        raise _unusable("unknown_result_type", "The server answered with a result type that is not known.")
    requests, state = wire.as_object(result.get("inputRequests")), result.get("requestState")
    if not requests and not isinstance(state, str):
        raise _unusable("invalid_answer", "The server asked for input without saying which.")
    return InputRequired(requests or {}, state if isinstance(state, str) else None)


def _unusable(code: str, message: str) -> MCPError:
    return ProtocolError(code, message, Outcome.UNKNOWN)


def read_answer(result: dict[str, JSON], output_schema: JSON, era: Era, schemas: SchemaCache) -> ToolAnswer:
    """Turn a complete ``tools/call`` result into an answer; `raw` is `result` itself."""
    marks: list[str] = []
    is_error = result.get("isError", False)
    if not isinstance(is_error, bool):
        marks.append("is_error_not_boolean")
    content = wire.as_list(result.get("content"))
    structured = result.get("structuredContent")
    if content is None and (structured is None or "content" in result):
        marks.append("malformed_content" if "content" in result else "no_content")
    marks.extend(_content_marks(content or []))
    if structured is not None and era == "legacy" and wire.as_object(structured) is None:
        marks.append("structured_content_not_object")
    if output_schema is not None and not is_error:
        marks.extend(_schema_marks(result, output_schema, schemas))
    return ToolAnswer(tuple(content or ()), structured, bool(is_error), result, tuple(marks))


def _content_marks(content: list[JSON]) -> list[str]:
    kinds = [(wire.as_object(block) or {}).get("type") for block in content]
    marks: list[str] = []
    if any(not isinstance(kind, str) for kind in kinds):
        marks.append("malformed_content")
    if any(isinstance(kind, str) and kind not in CONTENT_TYPES for kind in kinds):
        marks.append("unknown_content_type")
    return marks


def _schema_marks(result: dict[str, JSON], output_schema: JSON, schemas: SchemaCache) -> list[str]:
    if "structuredContent" not in result:
        return ["structured_content_missing"]
    verdict = schemas.check(output_schema, result["structuredContent"])
    if verdict is None:
        return ["output_schema_unusable"]
    return [] if verdict else ["output_schema_violation"]


@dataclass(slots=True)
class ListingBuilder:
    """Collects the pages of ``tools/list``; one bad entry loses only itself."""

    era: Era
    limits: Limits
    schemas: SchemaCache
    _tools: dict[str, ListedTool] = field(default_factory=dict[str, ListedTool])
    _dropped: list[DroppedTool] = field(default_factory=list[DroppedTool])
    _cursors: set[str] = field(default_factory=set[str])
    _pages: int = 0
    _bytes: int = 0
    _stopped: str | None = None

    def take_page(self, result: dict[str, JSON]) -> str | None:
        """Add one page; return the cursor of the next one, or None when the listing is over.

        The empty string is a cursor like any other. A cursor seen before ends the listing.

        Raises:
            ProtocolError: The page holds no list of tools.
        """
        entries = wire.as_list(result.get("tools"))
        if entries is None:
            raise ProtocolError(
                "invalid_answer", "The MCP server's tool list is not a list.", Outcome.ANSWERED
            )
        self._pages += 1
        for entry in entries:
            self._take_entry(entry)
        cursor = result.get("nextCursor")
        return self._next(cursor) if isinstance(cursor, str) else None

    def _next(self, cursor: str) -> str | None:
        self._bytes += len(cursor)
        if cursor in self._cursors:
            self._stopped = "cursor_loop"
        elif self._pages >= self.limits.max_pages:
            self._stopped = "page_limit"
        elif len(self._tools) + len(self._dropped) >= self.limits.max_tools:
            self._stopped = "tool_limit"
        elif self._bytes > self.limits.max_listing_bytes:
            self._stopped = "byte_limit"
        self._cursors.add(cursor)
        return cursor if self._stopped is None else None

    def _take_entry(self, entry: JSON) -> None:
        if len(self._tools) + len(self._dropped) >= self.limits.max_tools:
            self._stopped = "tool_limit"
            return
        # Each page has the cap of a body; all of them together would hold many times that.
        self._bytes += len(wire.dump_json(entry))
        if self._bytes > self.limits.max_listing_bytes:
            self._stopped = "byte_limit"
            return
        tool = self._read_tool(entry)
        if isinstance(tool, ListedTool) and tool.name not in self._tools:
            self._tools[tool.name] = tool
        elif isinstance(tool, ListedTool):
            self._dropped.append(DroppedTool(tool.name, "duplicate_name"))
        else:
            self._dropped.append(tool)

    def _read_tool(self, entry: JSON) -> ListedTool | DroppedTool:
        raw = wire.as_object(entry)
        if raw is None:
            return DroppedTool("", "not_an_object")
        name = raw.get("name")
        shown = wire.clean_text(name, MAX_TOOL_NAME_LENGTH) if isinstance(name, str) else ""
        reason = _refusal_of_name(name) or self._refusal_of_schema(raw)
        input_schema = wire.as_object(raw.get("inputSchema"))
        if reason is not None or input_schema is None:
            return DroppedTool(shown, reason or "no_input_schema")
        output_schema = wire.as_object(raw.get("outputSchema"))
        usable = output_schema is not None and self.schemas.is_usable(output_schema)
        title, description = raw.get("title"), raw.get("description")
        return ListedTool(
            name=shown,
            title=title if isinstance(title, str) else None,
            description=description if isinstance(description, str) else None,
            input_schema=input_schema,
            output_schema=output_schema if usable else None,
            annotations=wire.as_object(raw.get("annotations")) or {},
            raw=raw,
            marks=("output_schema_ignored",) if raw.get("outputSchema") is not None and not usable else (),
        )

    def _refusal_of_schema(self, raw: dict[str, JSON]) -> str | None:
        schema = wire.as_object(raw.get("inputSchema"))
        if schema is None or schema.get("type", "object") != "object":
            return "no_input_schema"
        if remote_reference(schema) is not None:
            return "remote_reference"
        if (wire.as_object(raw.get("execution")) or {}).get("taskSupport") == "required":
            return "task_required"
        if self.era == "modern" and isinstance(parameter_headers(schema), str):
            return "invalid_parameter_header"
        return None

    def listing(self) -> ToolListing:
        """Return everything collected so far."""
        return ToolListing(tuple(self._tools.values()), tuple(self._dropped), self._pages, self._stopped)


def _refusal_of_name(name: JSON) -> str | None:
    if not isinstance(name, str) or not name:
        return "no_name"
    if len(name) > MAX_TOOL_NAME_LENGTH:
        return "name_too_long"
    if wire.clean_text(name, MAX_TOOL_NAME_LENGTH) != name:
        return "control_characters_in_name"
    return None
