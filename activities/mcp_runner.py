"""Runs tools of MCP servers: session, call, and what each failure of the transport means for the ledger."""

import logging
from collections.abc import Mapping

from activities.client_pool import ClientPool
from activities.ledger import CallOutcome, OpenCall, RepeatsUsedUpError
from activities.mcp_http.client import MCPClient
from activities.mcp_http.errors import MCPError, Outcome, SessionLost
from activities.mcp_http.types import CallHooks, Cursor, ToolAnswer, ToolCall
from activities.mcp_sessions import HeldSession, McpSessions, SessionScope
from activities.mcp_streams import StreamKeeper
from activities.runner import RepeatLaterError, SendGate
from governance.admission import call_error
from governance.canonical import JSON, NotCanonicalError, canonical_bytes
from governance.codes import (
    Classification,
    ErrorCode,
    IdempotencyClass,
    InvocationOutcome,
    InvocationStatus,
    SendOutcome,
)
from governance.content import without_lone_surrogates
from governance.failures import CallError
from models.base import new_id
from models.connection import ConnectionTarget, OnSessionLoss
from models.database import DatabaseError
from models.invocation import Settlement

IDEMPOTENCY_META = "dev.sluicegate/idempotency-key"
"""The field of `_meta` in which a server gets the call's idempotency key."""

logger = logging.getLogger(__name__)


class McpRunner:
    """Makes calls over MCP; sessions are shared by every worker."""

    def __init__(
        self, clients: ClientPool, sessions: McpSessions, streams: StreamKeeper, result_max_bytes: int
    ) -> None:
        """Keep results of up to `result_max_bytes`."""
        self._clients = clients
        self._sessions = sessions
        self._streams = streams
        self._result_max_bytes = result_max_bytes

    async def run(self, call: OpenCall, gate: SendGate) -> CallOutcome:
        """Make the call; after a lost session once more, where the connection says so.

        Raises:
            RepeatLaterError: nothing ran, and another attempt may succeed.
        """
        target = call.target
        if target is None:
            raise LookupError("A tool of an MCP server has no connection.")
        client = self._clients.client(target)
        wanted = SessionScope(target.id, target.version, call.session_scope)
        try:
            opener = self._streams.opener(client, target)
            held = await self._sessions.obtain(wanted, call.session, opener)
        except MCPError as error:
            return self._not_opened(call, error)
        try:
            return self._answered(call, await self._call(client, held, target, call, gate))
        except MCPError as error:
            if not _is_outdated(error):
                return self._failed(call, error)
            if target.on_session_loss is OnSessionLoss.REPORT or call.resume is not None:
                await self._discard(held)
                return self._failed(call, error)
            try:
                await gate.next_send()
            except RepeatsUsedUpError:
                await self._discard(held)
                return self._failed(call, error)
        return await self._once_more(call, gate, target, held)

    async def _once_more(
        self, call: OpenCall, gate: SendGate, target: ConnectionTarget, lost: HeldSession
    ) -> CallOutcome:
        """Make a call again that did not run: the server forgot its session, or changed its version."""
        await self._discard(lost)
        client = self._clients.client(target)
        try:
            held = await self._sessions.obtain(lost.wanted, None, self._streams.opener(client, target))
        except MCPError as error:
            return self._not_opened(call, error)
        try:
            return self._answered(call, await self._call(client, held, target, call, gate))
        except MCPError as error:
            if _is_outdated(error):
                await self._discard(held)
            return self._failed(call, error)

    async def _discard(self, held: HeldSession) -> None:
        """Close a forgotten session; if the database is away, the next call finds out as this one did."""
        try:
            await self._sessions.discard(held)
        except DatabaseError:
            logger.warning("A session that its server has forgotten could not be closed.")

    async def _call(
        self, client: MCPClient, held: HeldSession, target: ConnectionTarget, call: OpenCall, gate: SendGate
    ) -> ToolAnswer:
        request_id = new_id() if call.resume is None else call.resume.request_id
        asked = ToolCall(
            name=call.snapshot.upstream_name,
            arguments=call.arguments,
            request_id=request_id,
            meta={IDEMPOTENCY_META: call.place.idempotency_key},
            input_schema=call.snapshot.input_schema,
            output_schema=call.snapshot.output_schema,
        )

        async def before_send() -> None:
            await gate.before_send(held.digest)

        async def on_cursor(cursor: Cursor) -> None:
            await gate.on_cursor({"request_id": cursor.request_id, "last_event_id": cursor.last_event_id})

        async def on_notification(method: str, _params: Mapping[str, JSON]) -> None:
            self._streams.heard_in_call(target, method)

        hooks = CallHooks(
            before_send=before_send,
            on_cursor=on_cursor,
            on_notification=on_notification,
            tell_upstream_on_cancel=gate.tell_upstream_on_cancel,
        )
        timeout_s = call.snapshot.timeout_s
        async with self._streams.using(client, target, held):
            if call.resume is None:
                return await client.call_tool(held.session, asked, hooks, timeout_s)
            cursor = Cursor(call.resume.request_id, call.resume.last_event_id)
            return await client.resume_call(held.session, cursor, asked, hooks, timeout_s)

    def _answered(self, call: OpenCall, answer: ToolAnswer) -> CallOutcome:
        try:
            content = canonical_bytes(without_lone_surrogates(answer.raw))
        except NotCanonicalError:
            return _settled(
                InvocationStatus.FAILED,
                _error(
                    call,
                    ErrorCode.UPSTREAM_PROTOCOL_ERROR,
                    {"reason": "result_not_json"},
                    Classification.PROTOCOL,
                ),
            )
        if len(content) > self._result_max_bytes:
            return self._too_large(call)
        if not answer.is_error:
            return CallOutcome(Settlement(InvocationStatus.SUCCEEDED), SendOutcome.ANSWERED, content)
        error = _error(call, ErrorCode.TOOL_RESULT_ERROR, {}, Classification.SEMANTIC)
        settlement = Settlement(InvocationStatus.FAILED, is_error=True, error=error)
        return CallOutcome(settlement, SendOutcome.ANSWERED, content)

    def _too_large(self, call: OpenCall) -> CallOutcome:
        details = {"limit_bytes": self._result_max_bytes}
        error = _error(call, ErrorCode.RESULT_TOO_LARGE, details, Classification.RUNTIME)
        return _settled(InvocationStatus.FAILED, error)

    def _failed(self, call: OpenCall, error: MCPError) -> CallOutcome:
        """Say what a failure of the transport means; raise where another attempt may follow."""
        if call.resume is not None and error.outcome is not Outcome.ANSWERED:
            # The call left earlier: that its answer cannot be fetched says nothing about its effect.
            return self._unknown(call, error)
        match error.outcome:
            case Outcome.NOT_SENT:
                return self._not_sent(call, error)
            case Outcome.REFUSED:
                return self._refused(call, error)
            case Outcome.UNKNOWN:
                return self._unknown(call, error)
            case Outcome.ANSWERED:
                return self._answered_with_error(call, error)

    def _not_opened(self, call: OpenCall, error: MCPError) -> CallOutcome:
        """The handshake failed: whatever became of it, the call itself was not sent.

        Unless an earlier worker sent it, and it was the answer that was to be fetched.
        """
        if call.resume is not None:
            return self._unknown(call, error)
        details: dict[str, JSON] = {"outcome": "not_sent", "reason": error.code, "stage": "initialize"}
        retryable = error.retryable or error.outcome is Outcome.UNKNOWN
        failure = _error(
            call, ErrorCode.UPSTREAM_UNAVAILABLE, details, Classification.TRANSPORT, retryable=retryable
        )
        outcome = CallOutcome(Settlement(InvocationStatus.FAILED, error=failure), SendOutcome.NOT_SENT)
        if retryable:
            raise RepeatLaterError(outcome, error.retry_after_s)
        return outcome

    def _not_sent(self, call: OpenCall, error: MCPError) -> CallOutcome:
        details: dict[str, JSON] = {"outcome": "not_sent", "reason": error.code}
        failure = _error(
            call, ErrorCode.UPSTREAM_UNAVAILABLE, details, Classification.TRANSPORT, retryable=error.retryable
        )
        outcome = CallOutcome(Settlement(InvocationStatus.FAILED, error=failure), SendOutcome.NOT_SENT)
        if error.retryable:
            raise RepeatLaterError(outcome, error.retry_after_s)
        return outcome

    def _refused(self, call: OpenCall, error: MCPError) -> CallOutcome:
        lost = isinstance(error, SessionLost)
        code = ErrorCode.SESSION_NOT_FOUND if lost else ErrorCode.UPSTREAM_REFUSED
        details: dict[str, JSON] = {"reason": error.code, "http_status": error.http_status}
        if error.retry_after_s is not None:
            details["retry_after_s"] = error.retry_after_s
        failure = _error(call, code, details, Classification.TRANSPORT, retryable=error.retryable)
        outcome = CallOutcome(Settlement(InvocationStatus.FAILED, error=failure), SendOutcome.REFUSED)
        if error.retryable and not lost:
            raise RepeatLaterError(outcome, error.retry_after_s)
        return outcome

    def _unknown(self, call: OpenCall, error: MCPError) -> CallOutcome:
        repeatable = call.snapshot.idempotency is not IdempotencyClass.UNSAFE
        details: dict[str, JSON] = {"reason": error.code, "outcome": "unknown"}
        if error.http_status is not None:
            details["http_status"] = error.http_status
        code = ErrorCode.OUTCOME_UNKNOWN
        if error.code == "tool_timeout":
            code = ErrorCode.TOOL_TIMEOUT
            details["timeout_s"] = call.snapshot.timeout_s
        failure = _error(call, code, details, Classification(error.classification))
        settlement = Settlement(InvocationStatus.FAILED, InvocationOutcome.UNKNOWN, error=failure)
        outcome = CallOutcome(settlement, SendOutcome.UNKNOWN)
        if repeatable:
            raise RepeatLaterError(outcome, error.retry_after_s)
        return outcome

    def _answered_with_error(self, call: OpenCall, error: MCPError) -> CallOutcome:
        if error.code == "answer_too_large":
            return self._too_large(call)
        details: dict[str, JSON] = {"reason": error.code}
        details.update(
            {name: error.details[name] for name in ("jsonrpc_code", "http_status") if name in error.details}
        )
        semantic = error.classification == "semantic"
        code = ErrorCode.TOOL_ERROR if semantic else ErrorCode.UPSTREAM_PROTOCOL_ERROR
        if semantic:
            details["server_message"] = error.details.get("jsonrpc_message", "")
        return _settled(
            InvocationStatus.FAILED, _error(call, code, details, Classification(error.classification))
        )


def _is_outdated(error: MCPError) -> bool:
    """Say whether the server refused the call because what was negotiated does not hold any more."""
    return isinstance(error, SessionLost) or error.details.get("remedy") == "negotiate"


def _error(
    call: OpenCall,
    code: ErrorCode,
    details: Mapping[str, JSON],
    classification: Classification,
    *,
    retryable: bool = False,
) -> CallError:
    return call_error(
        code, {"tool": call.snapshot.exposed_name, **details}, classification, retryable=retryable
    )


def _settled(status: InvocationStatus, error: CallError) -> CallOutcome:
    return CallOutcome(Settlement(status, error=error), SendOutcome.ANSWERED)
