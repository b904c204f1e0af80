"""A runner whose tools are functions of the test: the seam at which a test controls time and answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from activities.ledger import CallOutcome, OpenCall
from activities.runner import SendGate
from governance.canonical import JSON, canonical_bytes
from governance.codes import InvocationStatus, SendOutcome
from models.invocation import Settlement

Script = Callable[[OpenCall], Awaitable[JSON]]


@dataclass
class ScriptedRunner:
    """Answers each call with what `script` returns, and remembers which calls were sent."""

    script: Script
    sent: list[str] = field(default_factory=list[str])

    async def run(self, call: OpenCall, gate: SendGate) -> CallOutcome:
        await gate.before_send(None)
        self.sent.append(call.tool_call_id)
        result = await self.script(call)
        return CallOutcome(
            Settlement(InvocationStatus.SUCCEEDED), SendOutcome.ANSWERED, canonical_bytes(result)
        )


def text_result(text: str) -> JSON:
    return {"content": [{"type": "text", "text": text}]}


async def echo(call: OpenCall) -> JSON:
    await asyncio.sleep(0)
    return text_result(json.dumps(call.arguments))
