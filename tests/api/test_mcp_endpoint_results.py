"""Results and lists of tools in the shape of each version; nothing an upstream said is lost or invented."""

import json
from typing import Any

import pytest

from api.console.origins import is_own_page, may_speak_mcp
from api.mcp_server.eras import LEGACY, MODERN, decoded, negotiated
from api.mcp_server.event_ids import event_id_of, read_event_id
from api.mcp_server.frames import Answer, Malformed, Notification, Request, RPCProblem, read_frame
from api.mcp_server.results import call_result, listed_tool
from api.mcp_server.sessions import find_session, new_session

ROUND = {"dev.sluicegate/round-id": "r"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}
TEXT = {"type": "text", "text": "hello"}


def result(raw: Any, version: str, *, is_error: bool = False) -> dict[str, Any]:
    return call_result(json.dumps(raw).encode(), version, is_error=is_error, meta=ROUND)


@pytest.mark.parametrize("version", [*LEGACY, MODERN])
def test_content_stays_whole_and_in_order(version: str) -> None:
    blocks = [TEXT, {"type": "image", "data": "eA==", "mimeType": "image/png"}, TEXT]
    shown = result({"content": blocks, "isError": False, "resultType": "complete"}, version)
    assert shown == {"content": blocks, "isError": False, "_meta": ROUND}


def test_a_block_that_the_first_version_does_not_know_becomes_text() -> None:
    assert result({"content": [LINK]}, "2025-06-18")["content"] == [LINK]
    (block,) = result({"content": [LINK]}, "2025-03-26")["content"]
    assert (block["type"], json.loads(block["text"])) == ("text", LINK)


@pytest.mark.parametrize(
    ("structured", "version", "kept"),
    [
        ({"a": 1}, "2025-11-25", True),
        ({"a": 1}, "2025-03-26", False),
        ([1, 2], "2025-11-25", False),
        ([1, 2], MODERN, True),
        (0, MODERN, True),
        (False, "2025-06-18", False),
    ],
)
def test_structured_content_is_kept_where_the_version_has_it_and_is_text_otherwise(
    structured: Any, version: str, *, kept: bool
) -> None:
    shown = result({"structuredContent": structured}, version)
    assert ("structuredContent" in shown) == kept
    assert json.loads(shown["content"][-1]["text"]) == structured


@pytest.mark.parametrize("raw", [[], "text", 7, {"content": "none"}])
def test_what_is_no_result_of_the_protocol_is_shown_as_it_is(raw: Any) -> None:
    shown = result(raw, "2025-11-25")
    texts = [block["text"] for block in shown["content"]]
    assert texts == ([] if isinstance(raw, dict) else [raw if isinstance(raw, str) else json.dumps(raw)])


def test_metadata_of_the_protocol_itself_is_not_passed_on() -> None:
    meta = {"io.modelcontextprotocol/serverInfo": {"name": "x"}, "com.example/cost": 3}
    assert result({"content": [], "_meta": meta}, MODERN)["_meta"] == {"com.example/cost": 3, **ROUND}


def test_a_lone_surrogate_cannot_break_the_answer() -> None:
    shown = result({"content": [{"type": "text", "text": "\ud83d"}]}, MODERN)
    assert shown["content"][0]["text"] == "\ufffd"


def snapshot(**changes: Any) -> bytes:
    stored = {
        "exposed_name": "a-b",
        "description": None,
        "input_schema": {"type": "object"},
        "output_schema": None,
        "annotations": None,
    }
    return json.dumps({**stored, **changes}).encode()


@pytest.mark.parametrize("schema", [True, None, {}, {"properties": {}}])
def test_a_tool_always_has_an_object_schema(schema: Any) -> None:
    assert listed_tool(snapshot(input_schema=schema), MODERN)["inputSchema"]["type"] == "object"


def test_keywords_survive_and_only_annotations_of_the_next_hop_go() -> None:
    schema = {
        "type": "object",
        "$defs": {"x": {"pattern": "^a"}},
        "oneOf": [{"required": ["p"]}],
        "additionalProperties": False,
        "properties": {
            "p": {"type": "object", "properties": {"q": {"type": "string", "x-mcp-header": "Q"}}},
            "x-mcp-header": {"type": "string"},
        },
    }
    shown = listed_tool(snapshot(input_schema=schema), MODERN)["inputSchema"]
    expected = json.loads(json.dumps(schema))
    del expected["properties"]["p"]["properties"]["q"]["x-mcp-header"]
    assert shown == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"jsonrpc": "2.0", "id": 0, "method": "ping"}, Request),
        ({"jsonrpc": "2.0", "id": "", "method": "ping", "params": {}}, Request),
        ({"jsonrpc": "2.0", "method": "ping"}, Notification),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, Answer),
        ({"jsonrpc": "2.0", "id": 1, "error": {}}, Answer),
        ({"jsonrpc": "2.0", "id": 1, "error": {}, "result": {}}, Malformed),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, Malformed),
        ({"jsonrpc": "2.0", "id": [], "method": "ping"}, Malformed),
        ({"jsonrpc": "2.0", "id": 1, "method": ""}, Malformed),
        ({"id": 1, "method": "ping"}, Malformed),
        ([], Malformed),
        (None, Malformed),
    ],
)
def test_a_value_is_told_apart_as_a_message(value: Any, kind: type) -> None:
    assert isinstance(read_frame(value), kind)


@pytest.mark.parametrize("wanted", [None, 7, "2024-11-05", MODERN, "1999-01-01"])
def test_what_the_legacy_era_does_not_have_is_answered_with_its_newest(wanted: Any) -> None:
    assert negotiated(wanted) == "2025-11-25"


def test_a_session_is_found_by_its_own_key_alone() -> None:
    session, session_id = new_session("key-a", "2025-06-18")
    assert find_session(session_id, "key-a") == session
    assert find_session(session_id, "key-b") is None
    assert find_session(session_id.replace("2025-06-18", "2025-11-25"), "key-a") is None
    assert find_session(None, "key-a") is None
    assert session.round_key(1) != session.round_key("1")


@pytest.mark.parametrize("request_id", [0, -1, "", "a.b", "\u540d", 2**70])
def test_an_event_id_leads_back_to_its_request(request_id: Any) -> None:
    round_id = "01a22dfe-2bdf-70cb-8385-fb8eb85f3c7a"
    assert read_event_id(event_id_of(round_id, request_id)) == (round_id, request_id)


@pytest.mark.parametrize("event_id", ["", "x", "7", "01a22dfe-2bdf-70cb-8385-fb8eb85f3c7a.!!", "a.b.c"])
def test_an_event_id_that_is_none_of_ours_is_refused(event_id: str) -> None:
    with pytest.raises(RPCProblem):
        read_event_id(event_id)


@pytest.mark.parametrize(
    ("value", "name"),
    [("plain", "plain"), ("=?base64?w6k=?=", "\u00e9"), ("=?base64?%?=", None), ("=?base64?/w==?=", None)],
)
def test_a_header_value_is_decoded_or_refused(value: str, name: str | None) -> None:
    assert decoded(value) == name


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({}, True),
        ({"host": "a:1", "origin": "http://a:1"}, True),
        ({"host": "a", "origin": "https://A"}, True),
        ({"host": "a", "origin": "http://a.evil"}, False),
        ({"host": "a", "origin": "http://a/evil"}, False),
        ({"host": "a", "origin": "http://["}, False),
        ({"host": "a", "origin": "file://a"}, False),
        ({"host": "a", "origin": "null"}, False),
        ({"sec-fetch-site": "same-site"}, False),
    ],
)
def test_a_page_is_ours_by_host_and_port(headers: dict[str, str], *, own: bool) -> None:
    assert is_own_page(headers) is own


def test_a_rebound_name_speaks_no_mcp() -> None:
    allowed = {"https://agents.example"}
    assert may_speak_mcp({"host": "127.0.0.1:1", "origin": "http://[::1]:2"}, allowed)
    assert may_speak_mcp({"host": "gw.example", "origin": "https://agents.example"}, allowed)
    assert not may_speak_mcp({"host": "evil.example", "origin": "http://evil.example"}, allowed)
    assert not may_speak_mcp({"host": "127.0.0.1.evil", "origin": "http://127.0.0.1.evil"}, allowed)
