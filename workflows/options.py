"""Timeouts and retry policies by name, each with its reason."""

from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

TRANSACTION_TIMEOUT = timedelta(seconds=3)
"""One database transaction as a local activity: longer would stretch the workflow task."""

TRANSACTION_TOTAL = timedelta(seconds=6)
"""All attempts of one together; after that it runs as a normal activity, which may wait."""

PATIENT_TIMEOUT = timedelta(seconds=30)
"""The same transaction as a normal activity, for a database that is slow or away."""

PATIENT_TOTAL = timedelta(hours=1)
"""How long a round waits for a database that is away before it is left to the reconciler."""

LOCAL_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=50), maximum_interval=timedelta(seconds=1), maximum_attempts=5
)
"""For transactions: they are idempotent, and a busy database is free again soon."""

PATIENT_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30), maximum_attempts=200
)
"""For transactions on a database that is away; never unlimited."""

TOOL_SLACK = timedelta(seconds=75)
"""What an attempt of a tool may take beyond the tool's own timeout: opening a session, and holding an
answer while the database is away."""

TOOL_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    maximum_interval=timedelta(seconds=10),
    maximum_attempts=12,
    # The tool's own timeout ends a call long before; an attempt that still runs then is stuck, and what it
    # sent is unknown. A heartbeat timeout is retried: the next attempt reads the ledger before it sends.
    non_retryable_error_types=["TemporalTimeout:StartToClose", "PayloadsTooLarge"],
)
"""For tool calls: the ledger, not the attempt number, decides whether anything is sent again."""

TOOL_CANCELLATION = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
"""A canceled call tells the server and settles its ledger row before the round goes on."""

GUARD_TIMEOUT = timedelta(minutes=5)
"""All calls of a round through their guardrails, eight at once; the hooks of one end after 30 s."""

GUARD_TOTAL = timedelta(minutes=30)
"""All attempts of that; after it the calls that were not judged are never made."""

GUARD_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10), maximum_attempts=20
)
"""For our own database, or a worker that ended: a hook that fails has blocked, which is a result."""

SYNC_TIMEOUT = timedelta(minutes=2)
"""Contact with a server: every page of its listing together."""

SYNC_RETRY = RetryPolicy(maximum_attempts=3, initial_interval=timedelta(milliseconds=500))
"""For contact with a server when our own database fails; the server's failures are results, not errors."""

LOCAL_TRANSACTION: dict[str, Any] = {
    "start_to_close_timeout": TRANSACTION_TIMEOUT,
    "schedule_to_close_timeout": TRANSACTION_TOTAL,
    "retry_policy": LOCAL_RETRY,
}
"""Options of a transaction run as a local activity."""

PATIENT_TRANSACTION: dict[str, Any] = {
    "start_to_close_timeout": PATIENT_TIMEOUT,
    "schedule_to_close_timeout": PATIENT_TOTAL,
    "retry_policy": PATIENT_RETRY,
}
"""Options of the same transaction run as a normal activity."""


GUARD_ACTIVITY: dict[str, Any] = {
    "start_to_close_timeout": GUARD_TIMEOUT,
    "schedule_to_close_timeout": GUARD_TOTAL,
    "retry_policy": GUARD_RETRY,
}
"""Options of judging the calls of a round."""


def tool_options(timeout_s: float, heartbeat_timeout_s: float) -> dict[str, Any]:
    """Return the options of a tool call's activity, for a tool with a limit of `timeout_s`."""
    return {
        "start_to_close_timeout": timedelta(seconds=timeout_s) + TOOL_SLACK,
        "heartbeat_timeout": timedelta(seconds=heartbeat_timeout_s),
        "retry_policy": TOOL_RETRY,
        "cancellation_type": TOOL_CANCELLATION,
    }
