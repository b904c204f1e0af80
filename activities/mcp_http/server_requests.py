"""Answers what a server asks of us while we read its stream."""

import asyncio
import contextlib
from typing import Final

from activities.mcp_http import wire
from activities.mcp_http.errors import MCPError
from activities.mcp_http.exchange import Line, Target
from activities.mcp_http.replies import elicitation_reply, reply_to
from activities.mcp_http.types import CallHooks

MAX_REPLIES: Final = 64
"""Answers under way at once; what is asked beyond is ignored until one has arrived."""


class ReplyDesk:
    """Posts answers to server requests beside a stream; `close` it when the stream is done with.

    It answers for as long as the stream lives: servers drop a client that stops answering their pings.
    """

    def __init__(self, line: Line, target: Target, hooks: CallHooks) -> None:
        self._line = line
        self._target = target
        self._hooks = hooks
        self._posting: set[asyncio.Task[None]] = set()

    async def take(self, request: wire.Request) -> None:
        """Answer one request; waits only for `CallHooks.on_elicitation`, never for the server."""
        if self._target.era == "modern":
            return  # This era has no such requests, and answers to them must not be posted.
        if len(self._posting) >= MAX_REPLIES:
            return
        body = reply_to(request, self._line.endpoint.elicitation)
        if body is None:
            body = elicitation_reply(request, await self._hooks.on_elicitation(request.params))
        # Posted beside the stream: a server that is slow to take an answer must not stop us from reading.
        task = asyncio.create_task(self._post(body))
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)

    async def _post(self, body: bytes) -> None:
        # Whatever the server makes of our answer, the call itself decides: some refuse it and go on.
        with contextlib.suppress(TimeoutError, MCPError):
            async with asyncio.timeout(self._line.endpoint.timeouts.negotiation_s):
                await self._line.notify(self._target, body)

    async def close(self) -> None:
        """Drop answers still under way."""
        if self._posting:
            posting = list(self._posting)
            for task in posting:
                task.cancel()
            await asyncio.gather(*posting, return_exceptions=True)
