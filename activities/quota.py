"""Accounts and meters tool calls, in the transactions that open and settle them.

An admitted call takes its price from its key's account before it is sent, so that calls at once never spend
more than is there; a call that then surely did not run gives it back.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from governance.codes import Classification, SendOutcome
from governance.failures import CallError
from governance.quotas import Demand
from models.database import WriteSession
from models.invocation import Settlement, ToolInvocation
from models.key import ApiKey
from models.quota import give_back, spend, spend_refused
from models.round import RoundCall
from models.usage import UsageKind, UsageStatus, Used, append_usage, usage_status

RAN = frozenset({SendOutcome.ANSWERED, SendOutcome.UNKNOWN})
"""What is known of a call's last send where the call is to be paid for."""


@dataclass(frozen=True)
class MeteredCall:
    """A call that ended: whose it was, what became of it, and whether its price had been taken."""

    invocation_id: str
    price: int
    started_at: datetime
    key_id: str
    round_id: str
    tool: str
    settlement: Settlement
    send_outcome: SendOutcome
    took_price: bool


def take_from_quota(
    session: WriteSession, key: ApiKey, invocation: ToolInvocation, tool: str
) -> CallError | None:
    """Take one call from a key's account, or say why it may not be made; nothing for a key without limits."""
    if not key.has_quota:
        return None
    exceeded = spend(session, key.id, Demand(1, 1, invocation.price), invocation.id)
    return None if exceeded is None else exceeded.error_of(tool)


def count_refused(session: WriteSession, key: ApiKey | None, requests: int) -> None:
    """Count calls that were refused for another reason as requests; nothing for a key without limits."""
    if key is not None and key.has_quota and requests:
        spend_refused(session, key.id, requests)


def meter_refused(session: WriteSession, key: ApiKey, calls: Iterable[RoundCall]) -> None:
    """Meter the calls of a round that were not admitted, in one statement, and count them as requests."""
    used = [
        Used(
            key_id=key.id,
            kind=UsageKind.TOOL_CALL,
            status=UsageStatus.DENIED,
            tool=call.tool_name,
            round_id=call.round_id,
            code=None if call.refusal is None else call.refusal["code"],
        )
        for call in calls
    ]
    append_usage(session, *used)
    count_refused(session, key, len(used))


def meter_call(session: WriteSession, call: MeteredCall) -> None:
    """Meter a call that was just settled, in one statement; a price for nothing is given back in another."""
    price = call.price
    has_run = call.send_outcome in RAN
    error = call.settlement.error
    append_usage(
        session,
        Used(
            key_id=call.key_id,
            kind=UsageKind.TOOL_CALL,
            status=_status(call),
            tool=call.tool,
            round_id=call.round_id,
            invocation_id=call.invocation_id,
            code=None if error is None else error.code.value,
            cost=price if has_run else 0,
        ),
    )
    if price and call.took_price and not has_run:
        give_back(session, call.key_id, price, call.started_at)


def _status(call: MeteredCall) -> UsageStatus:
    error = call.settlement.error
    by_us = error is not None and error.classification is Classification.AUTHORIZATION
    if by_us and call.send_outcome is SendOutcome.NOT_SENT:
        return UsageStatus.DENIED
    return usage_status(call.settlement.status, call.settlement.outcome)
