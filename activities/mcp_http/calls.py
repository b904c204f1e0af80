"""One tool call from its arguments to its answer: time limits, cancellation, rounds of input."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Coroutine, Mapping
from typing import Final

from anyio import CancelScope

from activities.mcp_http import wire
from activities.mcp_http.conversation import Conversation
from activities.mcp_http.errors import MCPError, Outcome, ProtocolError, TransportError, already_begun
from activities.mcp_http.exchange import Line, Target
from activities.mcp_http.headers import RawHeaders, modern_headers, parameter_headers
from activities.mcp_http.http_sse import open_stream
from activities.mcp_http.replies import InputNotServed, declared_capabilities, input_reply
from activities.mcp_http.results import InputRequired, read_answer, read_interim
from activities.mcp_http.schemas import SchemaCache
from activities.mcp_http.types import (
    JSON,
    CallHooks,
    Cursor,
    OpenSession,
    ToolAnswer,
    ToolCall,
    nothing_before_send,
)

CANCEL_LIMIT_S: Final = 5.0
"""Longest time that telling a server about a cancellation may take."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.25


async def tell_cancelled(line: Line, target: Target, request_id: str, reason: str) -> None:
    """Ask the server to stop working on a request; best effort, within `CANCEL_LIMIT_S`.

    Modern servers take the closed response stream as the cancellation, so nothing is sent to them.
    Source: MCP 2025-11-25, Utilities, Cancellation; MCP 2026-07-28, Transports.
    """
    if target.era == "modern":
        return
    body = wire.notification_bytes("notifications/cancelled", {"requestId": request_id, "reason": reason})
    with contextlib.suppress(TimeoutError, MCPError):
        async with asyncio.timeout(CANCEL_LIMIT_S):
            await line.notify(target, body)


class ToolRun:
    """Runs one `ToolCall`, from the start or from a cursor; use once."""

    def __init__(
        self, line: Line, schemas: SchemaCache, session: OpenSession, call: ToolCall, hooks: CallHooks
    ) -> None:
        self._line = line
        self._schemas = schemas
        self._session = session
        self._call = call
        self._hooks = hooks
        self._conversation: Conversation | None = None
        self._target: Target | None = None
        self._told = False
        self._scope = asyncio.timeout(None)
        self._hard_at = 0.0
        self._begun = False
        """Whether the request reached the tool, in an earlier round or from another process."""

    async def start(self, timeout_s: float) -> ToolAnswer:
        """Send the call and return its answer within `timeout_s`."""
        return await self._bounded(self._rounds(), timeout_s)

    async def start_on_stream(self, timeout_s: float) -> ToolAnswer:
        """Do as `start` does over the transport of 2024-11-05."""
        return await self._bounded(self._one_stream(), timeout_s)

    async def resume(self, cursor: Cursor, timeout_s: float) -> ToolAnswer:
        """Return the answer to the call another process sent, within `timeout_s`."""
        self._begun = True
        return await self._bounded(self._fetch(cursor), timeout_s)

    async def _fetch(self, cursor: Cursor) -> ToolAnswer:
        result = await self._converse(cursor.request_id, self._hooks).resume(cursor)
        read_interim(result, self._session.era)
        return self._answer(result)

    async def _one_stream(self) -> ToolAnswer:
        async with open_stream(self._line) as (stream, _):
            conversation = self._converse(self._call.request_id, self._hooks, stream.target)
            body, _ = self._encode(self._call.request_id, {})
            try:
                return self._answer(await stream.ask(conversation, body))
            except asyncio.CancelledError:
                # The session ends with the stream, so the server is told while it still stands.
                await self._tell_upstream("the call was cancelled or timed out")
                raise

    async def _bounded(self, work: Coroutine[None, None, ToolAnswer], timeout_s: float) -> ToolAnswer:
        self._hard_at = asyncio.get_running_loop().time() + timeout_s
        self._scope = asyncio.timeout_at(self._deadline())
        try:
            async with self._scope:
                return await work
        except TimeoutError as exc:
            if not self._scope.expired():
                raise
            await self._tell_upstream("the call timed out")
            raise self._timed_out(timeout_s) from exc
        except asyncio.CancelledError:
            await self._tell_upstream("the call was cancelled")
            raise
        except MCPError as exc:
            if exc.code == "answer_too_large":
                await self._tell_upstream("the answer is too large")
            raise

    def _deadline(self) -> float:
        soft_s = self._line.endpoint.timeouts.soft_s
        if soft_s is None:
            return self._hard_at
        return min(self._hard_at, asyncio.get_running_loop().time() + soft_s)

    def _extend(self) -> None:
        # Progress moves the soft limit only, and never beyond the hard one.
        if self._line.endpoint.timeouts.soft_s is not None:
            self._scope.reschedule(self._deadline())

    def _was_sent(self) -> bool:
        return self._begun or (self._conversation is not None and self._conversation.watch.sent)

    def _timed_out(self, timeout_s: float) -> TransportError:
        outcome = Outcome.UNKNOWN if self._was_sent() else Outcome.NOT_SENT
        return TransportError(
            "tool_timeout",
            f"The tool did not answer in time (limit {timeout_s:g} s).",
            outcome,
            retryable=outcome is Outcome.NOT_SENT,
            details={"timeout_s": timeout_s},
        )

    async def _tell_upstream(self, reason: str) -> None:
        target = self._target
        if self._told or target is None or not self._was_sent() or not self._hooks.tell_upstream_on_cancel():
            return
        self._told = True
        telling = asyncio.create_task(tell_cancelled(self._line, target, self._call.request_id, reason))
        interrupted: asyncio.CancelledError | None = None
        # The shield keeps cancel scopes out; a plain task.cancel() gets through and is delivered afterwards.
        with CancelScope(shield=True):
            while not telling.done():
                try:
                    await asyncio.wait({telling})
                except asyncio.CancelledError as exc:
                    interrupted = exc
        if interrupted is not None:
            raise interrupted

    def _converse(self, request_id: str, hooks: CallHooks, target: Target | None = None) -> Conversation:
        self._target = target or self._line.target(self._session)
        self._conversation = Conversation(self._line, self._target, request_id, hooks, self._extend)
        return self._conversation

    async def _rounds(self) -> ToolAnswer:
        """Call, and at the modern era call again with what the server asked for, until it is complete.

        Each round has an id of its own; state of the server goes back unread.
        Source: MCP 2026-07-28, Multi round-trip requests.
        """
        hooks, inputs = self._hooks, dict[str, JSON]()
        pause_s = _FIRST_PAUSE_S
        for number in range(self._line.endpoint.limits.max_input_rounds + 1):
            request_id = self._call.request_id if number == 0 else f"{self._call.request_id}/{number + 1}"
            body, headers = self._encode(request_id, inputs)
            try:
                result = await self._converse(request_id, hooks).ask(body, headers)
            except MCPError as exc:
                raise (already_begun(exc) if self._begun else exc) from exc.__cause__
            interim = read_interim(result, self._session.era)
            if interim is None:
                return self._answer(result)
            self._begun = True
            if not interim.requests:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            inputs = await self._inputs(interim)
            hooks = dataclasses.replace(self._hooks, before_send=nothing_before_send)
        raise ProtocolError(
            "too_many_input_rounds",
            "The MCP server kept asking for input without ever completing the call.",
            Outcome.UNKNOWN,
            details={"rounds": self._line.endpoint.limits.max_input_rounds},
        )

    async def _inputs(self, interim: InputRequired) -> dict[str, JSON]:
        limits, state = self._line.endpoint.limits, interim.state or ""
        if len(interim.requests) > limits.max_inputs or len(state.encode()) > limits.max_state_bytes:
            raise ProtocolError(
                "input_too_large",
                "The MCP server asks for more input, or wants more carried back, than this client allows.",
                Outcome.UNKNOWN,
                details={"requests": len(interim.requests), "max_state_bytes": limits.max_state_bytes},
            )
        answers: dict[str, JSON] = {}
        for key, request in interim.requests.items():
            try:
                answer: Mapping[str, JSON] | None = input_reply(request, self._line.endpoint.elicitation)
            except InputNotServed as exc:
                raise ProtocolError(
                    "input_not_served",
                    f"The tool needs an input that this connection does not serve: {exc.method}.",
                    Outcome.ANSWERED,
                    details={"requested": exc.method},
                ) from exc
            if answer is None:
                answer = await self._hooks.on_elicitation(request["params"])
            answers[key] = dict(answer)
        inputs: dict[str, JSON] = {"inputResponses": answers} if answers else {}
        return inputs if interim.state is None else {**inputs, "requestState": interim.state}

    def _encode(self, request_id: str, inputs: Mapping[str, JSON]) -> tuple[bytes, RawHeaders | None]:
        call, modern = self._call, self._session.era == "modern"
        meta: dict[str, JSON] = {**call.meta, "progressToken": request_id}
        if modern:
            endpoint = self._line.endpoint
            declared = declared_capabilities(endpoint.elicitation, wire.MODERN_VERSION)
            meta |= wire.modern_meta(endpoint.client_info, declared)
        params = {"name": call.name, "arguments": dict(call.arguments), "_meta": meta, **inputs}
        try:
            body = wire.request_bytes(request_id, "tools/call", params)
        except wire.BadJSON as exc:
            raise ProtocolError(
                "invalid_arguments", "The arguments of the call are no JSON.", Outcome.NOT_SENT
            ) from exc
        return body, self._headers() if modern else None

    def _headers(self) -> RawHeaders:
        parameters = parameter_headers(self._call.input_schema)
        if isinstance(parameters, str):
            raise ProtocolError(
                "invalid_parameter_header",
                f"The tool cannot be called at this protocol version: {parameters}.",
                Outcome.NOT_SENT,
            )
        return modern_headers("tools/call", self._call.name, parameters, self._call.arguments)

    def _answer(self, result: dict[str, JSON]) -> ToolAnswer:
        return read_answer(result, self._call.output_schema, self._session.era, self._schemas)
