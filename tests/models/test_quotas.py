"""Accounts of keys in a real database: exact under many processes, cheap, and without leaks."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

import pytest

from governance.codes import InvocationStatus
from governance.quotas import ONE_CHAT, Demand, Exceeded, Limits, QuotaLimit
from models.base import new_id, utc_now
from models.database import Database, ReadSession, WriteSession
from models.invocation import Settlement, settle
from models.key import ApiKey
from models.quota import (
    ChatLease,
    close_lease,
    count_running,
    find_quota,
    give_back,
    look,
    remove_quota,
    set_quota,
    spend,
    spend_chat,
    spend_refused,
    spent_of,
)
from tests.models.frozen import Frozen
from tests.support.statements import statements_of
from tests.support.world import build_world

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 11, 30, 12, 0, 20, tzinfo=UTC)
CALL = Demand(1, 1)


async def limited(database: Database, limits: Limits) -> str:
    world = await build_world(database)

    def limit(session: WriteSession) -> None:
        set_quota(session, session.get_one(ApiKey, world.key_id), limits)
        # Opened long ago, as seen from every time that a test speaks of.
        quota = find_quota(session, world.key_id)
        assert quota is not None
        quota.minute = quota.day = quota.month = quota.created_at = datetime(2026, 1, 1, tzinfo=UTC)

    await database.write(limit)
    return world.key_id


async def take(
    database: Database, key_id: str, demand: Demand = CALL, now: datetime | None = NOON
) -> QuotaLimit | None:
    found: Exceeded | None = await database.write(spend, key_id, demand, new_id(), now)
    return None if found is None else found.limit


async def spent(database: Database, key_id: str, now: datetime = NOON) -> tuple[int, int, int, int]:
    """Return requests and calls of the day and costs of day and month."""

    def read(session: ReadSession) -> tuple[int, int, int, int]:
        quota = find_quota(session, key_id)
        assert quota is not None
        found = spent_of(quota, now)
        return found.day_requests, found.day_calls, found.day_cost, found.month_cost

    return await database.read(read)


async def test_four_processes_with_32_callers_get_exactly_as_many_calls_as_there_are(
    database_url: str, database: Database
) -> None:
    key_id = await limited(database, Limits(tool_calls_per_day=100, budget_per_month=10**9))
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.models.quota_spender", database_url, key_id, "8", "6"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(4)
    ]
    async with asyncio.timeout(60):
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        answers = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))

    assert sum(int(out) for out, _ in answers) == 100
    # 192 asked: every one is a request, and only those that were let through cost something.
    assert await spent(database, key_id, utc_now()) == (192, 100, 300, 300)


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        (Limits(requests_per_minute=5), 1),
        (Limits(requests_per_minute=5, concurrent_calls=9), 1),
        (Limits(tool_calls_per_day=0), 0),
        (Limits(concurrent_calls=0), 0),
        (Limits(tool_calls_per_day=0, concurrent_calls=0), 0),
    ],
)
async def test_a_check_is_two_statements_whatever_it_comes_to(
    database: Database, limits: Limits, allowed: int
) -> None:
    key_id = await limited(database, limits)
    with statements_of(database) as seen:
        found = await take(database, key_id)

    assert (found is None) == bool(allowed)
    assert len(seen) == 2


async def test_each_window_begins_again_when_it_has_ended(database: Database) -> None:
    key_id = await limited(database, Limits(requests_per_minute=1, requests_per_day=3))
    results = [
        await take(database, key_id, CALL, NOON + after)
        for after in (
            timedelta(),
            timedelta(seconds=39),
            timedelta(seconds=40),
            timedelta(minutes=5),
            timedelta(days=1),
        )
    ]

    assert results == [
        None,
        QuotaLimit.REQUESTS_PER_MINUTE,
        None,
        # The one that was refused counted as a request of this day.
        QuotaLimit.REQUESTS_PER_DAY,
        None,
    ]


async def test_a_budget_is_never_overspent_and_a_price_for_nothing_is_given_back(database: Database) -> None:
    key_id = await limited(database, Limits(budget_per_day=10))
    first = [await take(database, key_id, Demand(1, 1, 4)) for _ in range(3)]
    await database.write(give_back, key_id, 4, NOON)
    again = [await take(database, key_id, Demand(1, 1, 4)) for _ in range(2)]

    assert first == [None, None, QuotaLimit.BUDGET_PER_DAY]
    assert again == [None, QuotaLimit.BUDGET_PER_DAY]
    assert await spent(database, key_id) == (5, 3, 8, 8)


async def test_what_was_taken_on_another_day_is_given_back_to_the_month_alone(database: Database) -> None:
    key_id = await limited(database, Limits(budget_per_day=10, budget_per_month=100))
    await take(database, key_id, Demand(1, 1, 4), NOON - timedelta(days=1))
    await take(database, key_id, Demand(1, 1, 3), NOON)
    await database.write(give_back, key_id, 4, NOON - timedelta(days=1))

    assert await spent(database, key_id) == (1, 1, 3, 3)


async def test_nothing_is_given_back_to_an_account_that_was_opened_later(database: Database) -> None:
    key_id = await limited(database, Limits(budget_per_day=10))
    await take(database, key_id, Demand(1, 1, 4))
    await database.write(give_back, key_id, 4, datetime(2025, 12, 31, tzinfo=UTC))

    assert await spent(database, key_id) == (1, 1, 4, 4)


async def test_calls_at_once_are_counted_from_the_calls_that_run(database: Database, frozen: Frozen) -> None:
    key_id = frozen.world.key_id

    def begin(session: WriteSession) -> str:
        set_quota(session, session.get_one(ApiKey, key_id), Limits(concurrent_calls=1))
        return frozen.provision(session, "k").invocation.id

    invocation_id = await database.write(begin)
    beside = await take(database, key_id, CALL, utc_now())
    itself = await database.write(spend, key_id, CALL, invocation_id)
    await database.write(settle, invocation_id, Settlement(InvocationStatus.SUCCEEDED))
    after = await take(database, key_id, CALL, utc_now())

    assert (beside, itself, after) == (QuotaLimit.CONCURRENT_CALLS, None, None)
    # The call that was refused took a request and no call.
    assert (await spent(database, key_id, utc_now()))[:2] == (3, 2)


async def test_a_chat_whose_process_died_counts_until_its_lease_is_over(database: Database) -> None:
    key_id = await limited(database, Limits(concurrent_calls=1))
    lost, later = new_id(), new_id()
    first = await database.write(spend_chat, key_id, lost, 60.0)
    second = await database.write(spend_chat, key_id, new_id(), 60.0)

    def expire(session: WriteSession) -> None:
        session.get_one(ChatLease, lost).expires_at = utc_now() - timedelta(seconds=1)

    await database.write(expire)
    third = await database.write(spend_chat, key_id, later, 60.0)
    await database.write(close_lease, key_id, later)

    assert (first, third) == (None, None)
    assert second is not None
    assert second.limit is QuotaLimit.CONCURRENT_CALLS
    assert await database.read(count_running, key_id) == 0


async def test_a_chat_of_a_key_without_a_limit_of_calls_at_once_leaves_no_lease(database: Database) -> None:
    key_id = await limited(database, Limits(requests_per_day=5))
    with statements_of(database, "chat_leases") as seen:
        await database.write(spend_chat, key_id, new_id(), 60.0)

    assert seen == []


async def test_looking_takes_nothing(database: Database) -> None:
    key_id = await limited(database, Limits(tool_calls_per_minute=1))
    assert await database.read(look, key_id, CALL, NOON) is None
    await take(database, key_id)
    found = await database.read(look, key_id, CALL, NOON)

    assert found is not None
    assert found.details["retry_after"] == 40
    assert await spent(database, key_id) == (1, 1, 0, 0)


async def test_new_limits_keep_what_was_spent_and_no_limits_forget_it(database: Database) -> None:
    key_id = await limited(database, Limits(tool_calls_per_day=1))
    await take(database, key_id)

    def change(session: WriteSession, limits: Limits | None) -> None:
        key = session.get_one(ApiKey, key_id)
        if limits is None:
            remove_quota(session, key)
        else:
            set_quota(session, key, limits)

    await database.write(change, Limits(tool_calls_per_day=2))
    kept = [await take(database, key_id), await take(database, key_id)]
    await database.write(change, None)

    assert kept == [None, QuotaLimit.TOOL_CALLS_PER_DAY]
    assert await take(database, key_id) is None
    assert await database.write(spend, key_id, ONE_CHAT, new_id()) is None
    await database.write(spend_refused, key_id, 1)
