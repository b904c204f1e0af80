"""Serves one HTTP request to the MCP endpoint: tells the eras apart, and the methods."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from starlette.responses import Response

from api.bodies import read_body
from api.errors import APIProblem
from api.identity import DataCaller
from api.mcp_server.answers import JSON_TYPE, STREAM_TYPE, Manner, PendingAnswer, Reply
from api.mcp_server.calls import (
    ToolsCall,
    answer_call,
    answer_round,
    await_start,
    cancel_call,
    cancel_now,
    find_call,
    find_round_id,
    read_call,
    refusal_of,
)
from api.mcp_server.eras import (
    MODERN,
    SESSION_HEADER,
    WITH_BATCHES,
    WITH_RESUMPTION,
    Fields,
    check_legacy_version,
    check_modern,
    fields_of,
    is_modern,
    negotiated,
)
from api.mcp_server.event_ids import event_id_of, read_event_id, unknown_event
from api.mcp_server.frames import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Answer,
    Frame,
    Malformed,
    Notification,
    Request,
    RPCProblem,
    error_frame,
    read_frame,
    result_frame,
)
from api.mcp_server.listing import list_tools
from api.mcp_server.sessions import LegacySession, find_session, new_session
from api.refusals import answer_refusal, problem_of_database
from governance.canonical import JSON, is_array
from governance.strict_json import JSONProblem, parse_json_strict
from models.database import DatabaseError, ReadSession
from models.key import ApiKey

CAPABILITIES: Final = {"tools": {"listChanged": False}}
"""What we serve: tools, and nothing that a client must be told of by itself."""

SERVER_INFO: Final = {"name": "sluicegate", "version": version("sluicegate")}
SERVER_INFO_META: Final = "io.modelcontextprotocol/serverInfo"

CACHEABLE: Final = frozenset({"server/discover", "tools/list"})
"""Methods whose modern results say how long they hold: not at all, since grants may change at any time.

Source: MCP 2026-07-28, Server Features, Utilities, Caching.
"""

LARGEST_BATCH: Final = 100
"""Messages in a batch."""

Work = Coroutine[Any, Any, dict[str, JSON]]
"""Makes the result of a request."""


@dataclass(frozen=True)
class Place:
    """The session that a legacy request belongs to, and its key."""

    key_id: str
    session: LegacySession


class Exchange:
    """One request over HTTP and what it is answered with."""

    def __init__(self, caller: DataCaller) -> None:
        """Serve the request of `caller`."""
        self._caller = caller
        self._fields: Fields = fields_of(caller.request.headers)
        accept = caller.request.headers.get("accept", "*/*").lower()
        self._accepts_json = any(kind in accept for kind in (JSON_TYPE, "application/*", "*/*"))
        self._accepts_stream = any(kind in accept for kind in (STREAM_TYPE, "text/*", "*/*"))

    async def post(self) -> Response:
        """Answer one message, or a batch of them where the session's version has batches."""
        frame: Frame | None = None
        try:
            message = await self._message()
            if is_array(message):
                return await self._serve_batch(message)
            frame = read_frame(message)
            return await self._serve(frame)
        except RPCProblem as problem:
            # Strangers are turned away before they are told what is wrong with their message.
            await self._caller.check()
            return _sent(_refusal(frame, problem))
        except APIProblem as problem:
            if not isinstance(frame, Request):
                raise
            return _sent(await self._refused(frame, problem))

    async def resume(self, last_event_id: str) -> Response:
        """Answer once more what an earlier stream of this session was to carry.

        Source: MCP 2025-11-25, Transports, Resumability and Redelivery.
        """
        try:
            place = await self._caller.read(_place, self._fields)
            if place.session.version != WITH_RESUMPTION:
                raise unknown_event()
            round_id, request_id = read_event_id(last_event_id)
            answer = await self._caller.read(find_call, round_id, place.session.round_key(request_id))
            if answer is None:
                raise unknown_event()
        except RPCProblem as problem:
            return _sent(_refusal(None, problem))
        request = Request(request_id, "tools/call", {})
        work = answer_round(self._caller, answer, place.session.version)
        manner = Manner(accepts_json=False, accepts_stream=True)
        return PendingAnswer(self._reply(request, work, place.session.version), manner)

    async def _message(self) -> JSON:
        request = self._caller.request
        if not (self._accepts_json or self._accepts_stream):
            raise RPCProblem(
                INVALID_REQUEST, f"Accept names neither {JSON_TYPE} nor {STREAM_TYPE}", status=406
            )
        body = await read_body(request, self._caller.deps.settings.body_max_bytes)
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != JSON_TYPE:
            raise RPCProblem(INVALID_REQUEST, f"Content-Type must be {JSON_TYPE}", status=415)
        try:
            return await asyncio.to_thread(parse_json_strict, body)
        except JSONProblem as problem:
            text = f"not JSON: {problem.problem} at position {problem.position}"
            raise RPCProblem(PARSE_ERROR, text, status=400) from problem

    async def _serve(self, frame: Frame) -> Response:
        if isinstance(frame, Malformed):
            raise RPCProblem(INVALID_REQUEST, frame.reason, status=400)
        if isinstance(frame, Answer):
            await self._caller.check()
            return Response(status_code=202)
        if is_modern(self._fields, frame):
            check_modern(self._fields, frame)
            if isinstance(frame, Request):
                return self._pending(frame, None)
            await self._caller.check()
            return Response(status_code=202)
        if isinstance(frame, Request) and frame.method == "initialize":
            return await self._initialize(frame)
        check_legacy_version(self._fields)
        place = await self._caller.read(_place, self._fields)
        if isinstance(frame, Request):
            return self._pending(frame, place)
        await self._notice(place, frame)
        return Response(status_code=202)

    async def _serve_batch(self, messages: list[JSON]) -> Response:
        """Answer a batch as one. Source: JSON-RPC 2.0, section 6; MCP 2025-03-26, Base Protocol, Batching."""
        check_legacy_version(self._fields)
        place = await self._caller.read(_place, self._fields)
        if place.session.version != WITH_BATCHES:
            raise RPCProblem(INVALID_REQUEST, "Batches ended with 2025-03-26", status=400)
        if not 0 < len(messages) <= LARGEST_BATCH:
            raise RPCProblem(INVALID_REQUEST, f"A batch has 1 to {LARGEST_BATCH} messages", status=400)
        frames = [read_frame(message) for message in messages]
        for notice in (frame for frame in frames if isinstance(frame, Notification)):
            await self._notice(place, notice)
        owed = [frame for frame in frames if isinstance(frame, Request | Malformed)]
        if not owed:
            return Response(status_code=202)
        manner = Manner(self._accepts_json, self._accepts_stream)
        return PendingAnswer(self._batch_reply(owed, place), manner)

    async def _batch_reply(self, frames: list[Request | Malformed], place: Place) -> Reply:
        replies = await asyncio.gather(*(self._batch_part(frame, place) for frame in frames))
        return Reply([reply.body for reply in replies])

    async def _batch_part(self, frame: Request | Malformed, place: Place) -> Reply:
        if isinstance(frame, Malformed):
            return _refusal(frame, RPCProblem(INVALID_REQUEST, frame.reason))
        try:
            work, _ = self._work(frame, place)
        except RPCProblem as problem:
            return _refusal(frame, problem)
        return await self._reply(frame, work, place.session.version)

    async def _initialize(self, request: Request) -> Response:
        key_id = await self._caller.read(_key_id)
        session, session_id = new_session(key_id, negotiated(request.params.get("protocolVersion")))
        result: dict[str, JSON] = {
            "protocolVersion": session.version,
            "capabilities": CAPABILITIES,
            "serverInfo": SERVER_INFO,
        }
        return _sent(Reply(result_frame(request.id, result), headers={SESSION_HEADER: session_id}))

    async def _notice(self, place: Place, notice: Notification) -> None:
        """Take a notification; a cancellation is the only one that means anything here."""
        request_id = notice.params.get("requestId")
        if notice.method != "notifications/cancelled" or isinstance(request_id, bool):
            return
        if isinstance(request_id, str | int):
            await cancel_now(self._caller, place.key_id, place.session.round_key(request_id))

    def _pending(self, request: Request, place: Place | None) -> Response:
        work, call = self._work(request, place)
        spoken = MODERN if place is None else place.session.version
        manner = Manner(self._accepts_json, self._accepts_stream)
        if call is not None:
            manner = self._manner_of(call, place)
        return PendingAnswer(self._reply(request, work, spoken), manner)

    def _manner_of(self, call: ToolsCall, place: Place | None) -> Manner:
        async def event_id() -> str | None:
            key_id: str = self._caller.request.state.actor
            round_id = await self._caller.deps.database.read(find_round_id, key_id, call.round_key)
            return None if round_id is None else event_id_of(round_id, call.request.id)

        async def on_gone(making: "asyncio.Task[Reply]") -> None:
            # Whoever named the call will come back for its result; and a legacy client says when it cancels.
            if place is None and not call.is_named:
                await cancel_call(self._caller, call.round_key, making)
            else:
                await await_start(self._caller, call.round_key, making)

        resumable = place is not None and place.session.version == WITH_RESUMPTION and not call.is_named
        return Manner(self._accepts_json, self._accepts_stream, event_id if resumable else None, on_gone)

    def _work(self, request: Request, place: Place | None) -> tuple[Work, ToolsCall | None]:
        """Return what makes the result of a request, and the call where it is one."""
        spoken = MODERN if place is None else place.session.version
        match request.method, place:
            case "tools/list", _:
                return self._caller.read(list_tools, self._caller, request, spoken), None
            case "tools/call", _:
                round_key = None if place is None else place.session.round_key(request.id)
                call = read_call(self._caller, request, spoken, round_key)
                return answer_call(self._caller, call), call
            case "ping", Place():
                return _done({}), None
            case "server/discover", None:
                return self._discover(), None
            case _:
                status = 404 if place is None else 200
                raise RPCProblem(METHOD_NOT_FOUND, f"Method not found: {request.method[:100]}", status=status)

    async def _discover(self) -> dict[str, JSON]:
        await self._caller.check()
        return {"supportedVersions": [MODERN], "capabilities": CAPABILITIES}

    async def _reply(self, request: Request, work: Work, spoken: str) -> Reply:
        """Turn what a request comes to into its answer; nothing that is expected is raised from here."""
        try:
            result = await work
        except RPCProblem as problem:
            return _refusal(request, problem)
        except APIProblem as problem:
            return await self._refused(request, problem)
        except DatabaseError as error:
            return await self._refused(request, problem_of_database(error))
        return Reply(result_frame(request.id, _as_spoken(result, request.method, spoken)))

    async def _refused(self, request: Request, problem: APIProblem) -> Reply:
        try:
            return _refusal(request, await refusal_of(self._caller, problem))
        except APIProblem as plain:
            response = await answer_refusal(self._caller.request, plain)
            kept = {name: value for name, value in response.headers.items() if name != "content-length"}
            return Reply(json.loads(bytes(response.body)), response.status_code, kept)


def _as_spoken(result: dict[str, JSON], method: str, spoken: str) -> dict[str, JSON]:
    """Add what the modern era wants of every result. Source: MCP 2026-07-28, Basic, Results."""
    if spoken != MODERN:
        return result
    meta = {**result.get("_meta", {}), SERVER_INFO_META: SERVER_INFO}
    cache = {"ttlMs": 0, "cacheScope": "private"} if method in CACHEABLE else {}
    return {**result, **cache, "resultType": "complete", "_meta": meta}


def _refusal(frame: Frame | None, problem: RPCProblem) -> Reply:
    request_id = frame.id if isinstance(frame, Request | Malformed) else None
    return Reply(error_frame(request_id, problem), problem.status, problem.headers)


def _sent(reply: Reply) -> Response:
    return Response(reply.content(), reply.status, dict(reply.headers), JSON_TYPE)


async def _done(result: dict[str, JSON]) -> dict[str, JSON]:
    return result


def _key_id(_session: ReadSession, key: ApiKey) -> str:
    return key.id


def _place(_session: ReadSession, key: ApiKey, fields: Fields) -> Place:
    """Find the session of a legacy request. Source: MCP 2025-11-25, Transports, Session Management."""
    if fields.session is None:
        raise RPCProblem(INVALID_REQUEST, f"{SESSION_HEADER} is missing: send initialize first", status=400)
    session = find_session(fields.session, key.id)
    if session is None:
        raise RPCProblem(INVALID_REQUEST, "Session not found: send initialize again", status=404)
    return Place(key.id, session)
