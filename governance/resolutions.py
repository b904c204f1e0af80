"""What may follow an unknown outcome: what a round does then, and what an operator may say. Pure: no I/O."""

from enum import StrEnum

from governance.codes import InvocationOutcome, InvocationStatus


class OnUnknown(StrEnum):
    """What a round does when nobody knows whether one of its calls ran."""

    FAIL = "fail"
    """It goes on; the call's tool message says that its outcome is unknown."""

    WAIT = "wait"
    """It waits, before its next stage, until an operator has said what became of the call."""


class ResolutionKind(StrEnum):
    """What an operator found out or wants; the invocation's own status never changes."""

    SUCCEEDED = "succeeded"
    """The tool ran; the operator gives its result."""

    FAILED = "failed"
    """The tool did not run, or ran without success."""

    RETRY = "retry"
    """Call once more: a new invocation with the next attempt number and a key of its own."""


def effective_status(status: InvocationStatus, kind: ResolutionKind | None) -> InvocationStatus:
    """Return the status to count a call under: what an operator found out, else what its invocation says."""
    return InvocationStatus.SUCCEEDED if kind is ResolutionKind.SUCCEEDED else status


def is_open_question(outcome: InvocationOutcome, kind: ResolutionKind | None) -> bool:
    """Say whether nobody knows the outcome yet."""
    return outcome is InvocationOutcome.UNKNOWN and kind is None


def retry_suffix(number: int) -> str:
    """Return what an activity id and an idempotency key get for the operator's `number`-th retry, from 1."""
    return f"/r{number}"


def retry_number(activity_id: str) -> int:
    """Return which of the operator's retries an activity id belongs to; 0 for the call itself."""
    _, separator, number = activity_id.rpartition("/r")
    return int(number) if separator and number.isdecimal() else 0
