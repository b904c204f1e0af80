"""What a runner is: the one seam through which the wrapper reaches a tool, whatever its source kind."""

from collections.abc import Mapping
from typing import Protocol

from activities.ledger import CallOutcome, OpenCall
from governance.admission import call_error
from governance.canonical import JSON
from governance.codes import Classification, ErrorCode, InvocationStatus, SendOutcome
from governance.modes import SourceKind
from models.invocation import Settlement


class SendGate(Protocol):
    """The wrapper's side of a send: every runner passes it before its first byte and reports through it."""

    async def before_send(self, session_digest: str | None) -> None:
        """Commit that the first byte is about to leave; raising forbids the send."""
        ...

    async def next_send(self) -> None:
        """Record that the send was refused and open another one for the same call.

        Raises:
            RepeatsUsedUpError: the round may not repeat any more; the refusal is the call's end.
        """
        ...

    async def on_cursor(self, cursor: Mapping[str, JSON]) -> None:
        """Keep where the answer can be resumed: {"request_id", "last_event_id"}."""
        ...

    def tell_upstream_on_cancel(self) -> bool:
        """Whether a cancel that reaches the runner is a person's wish, and not this worker's end."""
        ...


class RepeatLaterError(Exception):
    """The call may be sent again after a wait: it surely did not run, or is declared idempotent."""

    def __init__(self, outcome: CallOutcome, after_s: float | None) -> None:
        """Carry what to record when no repeat is left, and the wait that the server asked for."""
        super().__init__("The call may be repeated.")
        self.outcome = outcome
        self.after_s = after_s


class Runner(Protocol):
    """Makes one call of a tool and says how it ended."""

    async def run(self, call: OpenCall, gate: SendGate) -> CallOutcome:
        """Make the call, or with `call.resume` fetch the answer to one that left already.

        Raises:
            RepeatLaterError: another attempt may follow.
        """
        ...


def runner_of(runners: Mapping[SourceKind, Runner], source_kind: str) -> Runner | None:
    """Return the runner of a source kind as a snapshot names it; None where there is none.

    A worker of another release may have frozen a kind that this one does not know.
    """
    return next((runner for kind, runner in runners.items() if kind.value == source_kind), None)


def no_runner(call: OpenCall) -> CallOutcome:
    """Say that nothing here can make a call: it was not sent, and trying again changes nothing."""
    details: dict[str, JSON] = {
        "tool": call.snapshot.exposed_name,
        "source_kind": call.snapshot.source_kind,
        "outcome": "not_sent",
    }
    error = call_error(ErrorCode.NO_RUNNER, details, Classification.RUNTIME)
    return CallOutcome(Settlement(InvocationStatus.FAILED, error=error), SendOutcome.NOT_SENT)
