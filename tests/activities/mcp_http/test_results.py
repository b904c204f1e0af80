"""Results and listings as values: everything kept, oddities marked, one bad tool loses only itself."""

from typing import Any

import pytest

from activities.mcp_http.errors import ProtocolError
from activities.mcp_http.headers import parameter_headers
from activities.mcp_http.results import ListingBuilder, read_answer
from activities.mcp_http.schemas import SchemaCache
from activities.mcp_http.types import DroppedTool, Limits, ListedTool, ToolListing
from tests.activities.mcp_http.connecting import connected, connected_modern
from tests.support.raw_server import Peer, RawRequest, dump, http, result

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
BLOCKS = [
    {"type": "text", "text": "t", "annotations": {"audience": ["user"]}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "a://b", "text": "x"}},
    {"type": "resource_link", "uri": "a://b", "name": "n"},
]

RESULTS: list[tuple[dict[str, Any], Any, str, tuple[str, ...]]] = [
    ({"content": BLOCKS}, None, "legacy", ()),
    ({"content": []}, None, "legacy", ()),
    ({"structuredContent": {"n": 1}}, NUMBER, "legacy", ()),
    ({"content": [], "structuredContent": {"n": "x"}}, NUMBER, "legacy", ("output_schema_violation",)),
    ({"content": [], "structuredContent": [1]}, None, "legacy", ("structured_content_not_object",)),
    ({"content": [], "structuredContent": [1]}, None, "modern", ()),
    ({"content": [], "structuredContent": 0}, {"type": "integer"}, "modern", ()),
    ({"content": []}, NUMBER, "legacy", ("structured_content_missing",)),
    ({"content": [], "isError": True}, NUMBER, "legacy", ()),
    (
        {"content": [], "structuredContent": {}},
        {"$ref": "http://x.example/s"},
        "legacy",
        ("output_schema_unusable",),
    ),
    ({"content": [], "structuredContent": {}}, {"type": "nonsense"}, "legacy", ("output_schema_unusable",)),
    (
        {"content": [], "structuredContent": {}},
        {"$schema": "urn:other"},
        "legacy",
        ("output_schema_unusable",),
    ),
    ({}, None, "legacy", ("no_content",)),
    ({"content": "text"}, None, "legacy", ("malformed_content",)),
    ({"content": [5, {}]}, None, "legacy", ("malformed_content",)),
    ({"content": [{"type": "hologram", "x": 1}]}, None, "legacy", ("unknown_content_type",)),
    ({"content": [], "isError": "yes"}, None, "legacy", ("is_error_not_boolean",)),
]


@pytest.mark.parametrize(
    ("value", "schema", "era", "marks"), RESULTS, ids=[str(n) for n in range(len(RESULTS))]
)
def test_a_result_is_kept_whole_and_marked(
    value: dict[str, Any], schema: Any, era: Any, marks: tuple[str, ...]
) -> None:
    answer = read_answer(value, schema, era, SchemaCache())
    assert answer.marks == marks
    assert answer.raw is value
    content = value.get("content")
    assert answer.content == (tuple(content) if isinstance(content, list) else ())
    assert answer.structured_content == value.get("structuredContent")
    assert answer.is_error is bool(value.get("isError", False))


def test_a_pattern_of_exponential_cost_is_checked_at_once() -> None:
    schema = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
    value = {"content": [], "structuredContent": {"a": "a" * 50_000 + "b"}}
    assert read_answer(value, schema, "legacy", SchemaCache()).marks == ("output_schema_violation",)


def test_schemas_are_cached_by_content_and_the_cache_is_bounded() -> None:
    cache = SchemaCache()
    for number in range(1200):
        assert cache.check({"minimum": number}, number) is True
    assert cache.size <= 512


def tool(name: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


DROPPED: list[tuple[Any, str]] = [
    (5, "not_an_object"),
    ({"inputSchema": {}}, "no_name"),
    (tool(7), "no_name"),
    (tool(""), "no_name"),
    (tool("x" * 300), "name_too_long"),
    (tool("a\r\nX-Evil: 1"), "control_characters_in_name"),
    (tool("nul\x00"), "control_characters_in_name"),
    ({"name": "a"}, "no_input_schema"),
    (tool("a", inputSchema=None), "no_input_schema"),
    (tool("a", inputSchema={"type": "string"}), "no_input_schema"),
    (tool("a", inputSchema={"properties": {"x": {"$ref": "https://x.example/s.json"}}}), "remote_reference"),
    (tool("a", execution={"taskSupport": "required"}), "task_required"),
    (tool("good"), "duplicate_name"),
]


@pytest.mark.parametrize(
    ("entry", "reason"), DROPPED, ids=[reason + str(n) for n, (_, reason) in enumerate(DROPPED)]
)
def test_a_bad_tool_is_dropped_alone_and_with_a_reason(entry: Any, reason: str) -> None:
    builder = ListingBuilder("legacy", Limits(), SchemaCache())
    assert (
        builder.take_page({"tools": [tool("good"), entry, tool("名字 a.b/c:d", description=None, title=3)]})
        is None
    )
    listing = builder.listing()
    assert [listed.name for listed in listing.tools] == ["good", "名字 a.b/c:d"]
    assert listing.tools[1].description is None
    assert [dropped.reason for dropped in listing.dropped] == [reason]
    assert all("\n" not in dropped.name and "\x00" not in dropped.name for dropped in listing.dropped)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/missing"},
        {"type": "nonsense"},
        {"$ref": "http://x.example"},
        "text",
        {"pattern": "(?=a)b"},
    ],
)
def test_a_bad_output_schema_costs_only_itself(schema: Any) -> None:
    builder = ListingBuilder("legacy", Limits(), SchemaCache())
    builder.take_page({"tools": [tool("a", outputSchema=schema), tool("b", outputSchema=NUMBER)]})
    first, second = builder.listing().tools
    assert (first.output_schema, first.marks) == (None, ("output_schema_ignored",))
    assert first.raw["outputSchema"] == schema
    assert (second.output_schema, second.marks) == (NUMBER, ())


def test_schemas_and_annotations_are_kept_as_received() -> None:
    entry = tool(
        "a",
        annotations={"readOnlyHint": True},
        inputSchema={"type": "object", "$defs": {"x": {"const": None}}},
    )
    builder = ListingBuilder("legacy", Limits(), SchemaCache())
    builder.take_page({"tools": [entry]})
    expected = ListedTool("a", None, None, entry["inputSchema"], None, {"readOnlyHint": True}, entry)
    assert builder.listing() == ToolListing((expected,), (), 1)


HEADER_SCHEMAS: list[tuple[Any, Any]] = [
    ({"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}, {("a",): "A"}),
    (
        {"properties": {"a": {"properties": {"b": {"type": "integer", "x-mcp-header": "B"}}}}},
        {("a", "b"): "B"},
    ),
    ({}, {}),
    (None, {}),
    ({"x-mcp-header": "A"}, str),
    ({"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}, str),
    ({"properties": {"a": {"type": ["string"], "x-mcp-header": "A"}}}, str),
    ({"properties": {"a": {"type": "string", "x-mcp-header": ""}}}, str),
    ({"properties": {"a": {"type": "string", "x-mcp-header": "A B"}}}, str),
    ({"properties": {"a": {"type": "string", "x-mcp-header": "A\r\nX-Evil: 1"}}}, str),
    ({"properties": {"a": {"type": "string", "x-mcp-header": 5}}}, str),
    ({"properties": {"a": {"items": {"type": "string", "x-mcp-header": "A"}}}}, str),
    ({"$defs": {"a": {"type": "string", "x-mcp-header": "A"}}}, str),
    ({"allOf": [{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]}, str),
    (
        {
            "properties": {
                "a": {"type": "string", "x-mcp-header": "A"},
                "b": {"type": "string", "x-mcp-header": "a"},
            }
        },
        str,
    ),
    ({"properties": {"a": {"default": {"x-mcp-header": "A"}}}}, {}),
]


@pytest.mark.parametrize(
    ("schema", "expected"), HEADER_SCHEMAS, ids=[str(n) for n in range(len(HEADER_SCHEMAS))]
)
def test_argument_headers_are_valid_only_where_the_specification_says(schema: Any, expected: Any) -> None:
    found = parameter_headers(schema)
    if expected is str:
        assert isinstance(found, str)
        builder = ListingBuilder("modern", Limits(), SchemaCache())
        builder.take_page({"tools": [{"name": "a", "inputSchema": schema}]})
        assert builder.listing().dropped == (DroppedTool("a", "invalid_parameter_header"),)
    else:
        assert found == expected


def paging(*pages: dict[str, Any]) -> Any:
    """Serve the n-th page to the n-th request, the last one for ever."""
    count = [0]

    async def script(request: RawRequest, peer: Peer) -> None:
        page = pages[min(count[0], len(pages) - 1)]
        count[0] += 1
        await peer.send(http(200, dump(result(request.message["id"], page))))

    return script


@pytest.mark.anyio
@pytest.mark.parametrize("connect", [connected, connected_modern], ids=["legacy", "modern"])
async def test_all_pages_are_fetched_and_the_empty_cursor_is_one(connect: Any) -> None:
    pages = paging(
        {"tools": [tool("a")], "nextCursor": ""},
        {"tools": [tool("b")], "nextCursor": "p"},
        {"tools": [tool("c")], "nextCursor": None},
    )
    async with connect(pages) as there:
        listing = await there.client.list_tools(there.session)
        assert [listed.name for listed in listing.tools] == ["a", "b", "c"]
        assert (listing.pages, listing.stopped) == (3, None)
        sent = [r.message["params"].get("cursor") for r in there.server.received("tools/list")]
        assert sent == [None, "", "p"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("cursors", "stopped", "pages"),
    [(["a", "a"], "cursor_loop", 2), (["a", "b", "a"], "cursor_loop", 3), (["", ""], "cursor_loop", 2)],
)
async def test_a_listing_that_turns_in_a_circle_ends(cursors: list[str], stopped: str, pages: int) -> None:
    script = paging(*({"tools": [tool(f"t{n}")], "nextCursor": c} for n, c in enumerate(cursors)))
    async with connected(script) as there:
        listing = await there.client.list_tools(there.session)
        assert (listing.stopped, listing.pages) == (stopped, pages)
        assert len(listing.tools) == pages


@pytest.mark.anyio
async def test_a_listing_without_end_is_bounded() -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        number = len(names)
        names.append(f"t{number}")
        page = {"tools": [tool(names[-1]), tool(names[-1] + "b")], "nextCursor": str(number)}
        await peer.send(http(200, dump(result(request.message["id"], page))))

    names: list[str] = []
    async with connected(script, limits=Limits(max_pages=5)) as there:
        assert (await there.client.list_tools(there.session)).stopped == "page_limit"
    async with connected(script, limits=Limits(max_tools=7)) as there:
        listing = await there.client.list_tools(there.session)
        assert (listing.stopped, len(listing.tools)) == ("tool_limit", 7)


@pytest.mark.anyio
@pytest.mark.parametrize("heavy", ["tools", "cursors"])
async def test_a_listing_holds_no_more_than_its_cap_however_many_pages_it_has(heavy: str) -> None:
    async def script(request: RawRequest, peer: Peer) -> None:
        pages.append(len(pages))
        text = "x" * 10_000
        entry = tool(f"t{pages[-1]}", description=text if heavy == "tools" else "")
        page = {"tools": [entry], "nextCursor": f"{pages[-1]}{text if heavy == 'cursors' else ''}"}
        await peer.send(http(200, dump(result(request.message["id"], page))))

    pages: list[int] = []
    async with connected(script, limits=Limits(max_listing_bytes=45_000)) as there:
        listing = await there.client.list_tools(there.session)
    assert (listing.stopped, listing.pages) == ("byte_limit", 5)


@pytest.mark.anyio
async def test_a_page_without_a_list_is_an_error() -> None:
    async with connected(paging({"tools": {}})) as there:
        with pytest.raises(ProtocolError):
            await there.client.list_tools(there.session)
