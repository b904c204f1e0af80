"""A runner whose sends end as the test says, and the operator who resolves what that leaves unknown."""

from collections.abc import Callable
from dataclasses import dataclass, field

from activities.ledger import CallOutcome, OpenCall, unknown_outcome
from activities.runner import RepeatLaterError, SendGate
from governance.admission import call_error
from governance.canonical import canonical_bytes
from governance.codes import ErrorCode, InvocationOutcome, InvocationStatus, SendOutcome
from governance.resolutions import ResolutionKind
from models.database import Database, ReadSession, WriteSession
from models.invocation import Settlement, load_invocations
from models.payload import store_payload
from models.resolution import Resolved, Verdict, resolve
from tests.support.scripted_runner import text_result

Ending = Callable[[OpenCall], CallOutcome]


@dataclass
class SendsRunner:
    """Sends each call and ends each send with the next of its endings; the last one repeats."""

    endings: list[Ending]
    keys: list[str] = field(default_factory=list[str])

    async def run(self, call: OpenCall, gate: SendGate) -> CallOutcome:
        await gate.before_send(None)
        self.keys.append(call.place.activity_id)
        ending = self.endings.pop(0) if len(self.endings) > 1 else self.endings[0]
        return ending(call)


def answered(_call: OpenCall) -> CallOutcome:
    content = canonical_bytes(text_result("done"))
    return CallOutcome(Settlement(InvocationStatus.SUCCEEDED), SendOutcome.ANSWERED, content)


def unknown(call: OpenCall) -> CallOutcome:
    return unknown_outcome(call.snapshot.exposed_name, "no_answer")


def refused(after_s: float | None = None) -> Ending:
    """End a send as a server does that did not run it and may be asked again."""
    return _repeat(SendOutcome.REFUSED, ErrorCode.UPSTREAM_REFUSED, after_s)


def unanswered(call: OpenCall) -> CallOutcome:
    """End a send of a tool that may be repeated without any answer."""
    raise RepeatLaterError(unknown(call), None)


def _repeat(send: SendOutcome, code: ErrorCode, after_s: float | None) -> Ending:
    def ending(call: OpenCall) -> CallOutcome:
        error = call_error(code, {"tool": call.snapshot.exposed_name, "reason": "busy"}, retryable=True)
        settlement = Settlement(InvocationStatus.FAILED, error=error)
        raise RepeatLaterError(CallOutcome(settlement, send), after_s)

    return ending


async def resolve_only(
    database: Database, round_id: str, kind: ResolutionKind, result: str | None = None
) -> Resolved:
    """Resolve the one open question of a round."""

    def work(session: WriteSession) -> Resolved:
        [invocation_id] = [
            row.id
            for row in load_invocations(session, round_id).values()
            if row.outcome is InvocationOutcome.UNKNOWN and row.resolution_kind is None
        ]
        digest = None if result is None else store_payload(session, canonical_bytes(text_result(result)))
        return resolve(session, invocation_id, Verdict(kind, "admin", "looked it up", digest))

    return await database.write(work)


async def open_questions(database: Database, round_id: str) -> int:
    def read(session: ReadSession) -> int:
        rows = load_invocations(session, round_id).values()
        return sum(row.outcome is InvocationOutcome.UNKNOWN and row.resolution_kind is None for row in rows)

    return await database.read(read)
