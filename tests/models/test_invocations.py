"""The life cycle of an invocation: provision, complete, fail, cancel; each on both databases."""

import asyncio

import pytest

from governance.codes import Classification, ErrorCode, InvocationOutcome, InvocationStatus
from governance.failures import CallError
from models.base import new_id
from models.database import Database, ReadSession, WriteSession
from models.invocation import (
    CallRequest,
    RequestMismatchError,
    ToolInvocation,
    cancel,
    complete,
    fail,
    load_invocations,
    lock_open_invocations,
    start,
    take_over,
)
from models.payload import store_payload
from tests.models.frozen import Frozen

pytestmark = pytest.mark.anyio

ERROR = CallError(Classification.TRANSPORT, ErrorCode.UPSTREAM_UNAVAILABLE, "away", retryable=True)


async def load(database: Database, invocation_id: str) -> ToolInvocation:
    def read(session: ReadSession) -> ToolInvocation:
        return session.get_one(ToolInvocation, invocation_id)

    return await database.read(read)


async def test_a_call_is_provisioned_once_for_each_key(database: Database, frozen: Frozen) -> None:
    first = await database.write(frozen.provision, "round/s0.c0")
    again = await database.write(frozen.provision, "round/s0.c0")

    assert (first.created, again.created) == (True, False)
    assert again.invocation.id == first.invocation.id
    stored = await load(database, first.invocation.id)
    assert (stored.status, stored.attempt_no) == (InvocationStatus.RUNNING, 1)
    assert (stored.finished_at, stored.response_digest) == (None, None)


async def test_one_key_with_another_request_is_a_conflict(database: Database, frozen: Frozen) -> None:
    await database.write(frozen.provision, "k", {"path": "a"})

    with pytest.raises(RequestMismatchError) as refused:
        await database.write(frozen.provision, "k", {"path": "b"})

    assert refused.value.idempotency_key == "k"
    assert len(await database.read(load_invocations, frozen.round_id)) == 1


@pytest.mark.parametrize("key", [None, "", "   "])
async def test_a_blank_key_never_deduplicates(key: str | None, database: Database, frozen: Frozen) -> None:
    made = [await database.write(frozen.provision, key) for _ in range(3)]

    assert [provisioned.created for provisioned in made] == [True] * 3
    assert [provisioned.invocation.attempt_no for provisioned in made] == [1, 2, 3]
    assert {provisioned.invocation.idempotency_key for provisioned in made} == {None}


async def test_fifty_parallel_provisions_get_fifty_attempt_numbers(
    database: Database, frozen: Frozen
) -> None:
    made = await asyncio.gather(*(database.write(frozen.provision, f"key-{number}") for number in range(50)))

    assert sorted(provisioned.invocation.attempt_no for provisioned in made) == list(range(1, 51))


async def test_fifty_parallel_provisions_of_one_key_make_one_invocation(
    database: Database, frozen: Frozen
) -> None:
    made = await asyncio.gather(*(database.write(frozen.provision, "same") for _ in range(50)))

    assert sum(provisioned.created for provisioned in made) == 1
    assert len({provisioned.invocation.id for provisioned in made}) == 1


async def test_an_attempt_after_a_failure_gets_the_next_number(database: Database, frozen: Frozen) -> None:
    first = await database.write(frozen.provision, "one")
    await database.write(fail, first.invocation.id, ERROR, InvocationOutcome.KNOWN)

    second = await database.write(frozen.provision, "two")

    assert second.invocation.attempt_no == 2


async def test_starting_without_a_key_takes_the_next_number(database: Database, frozen: Frozen) -> None:
    def start_two(session: WriteSession) -> list[int]:
        request = CallRequest(frozen.round_id, store_payload(session, b"{}"))
        binding = frozen.binding(session)
        return [start(session, binding, request, None, new_id()).attempt_no for _ in range(2)]

    assert await database.write(start_two) == [1, 2]


async def test_the_first_terminal_state_wins(database: Database, frozen: Frozen) -> None:
    invocation_id = (await database.write(frozen.provision, "k")).invocation.id
    digest = await database.write(store_payload, b'{"content":[]}')

    assert await database.write(complete, invocation_id, digest)
    assert not await database.write(fail, invocation_id, ERROR, InvocationOutcome.UNKNOWN)
    assert not await database.write(cancel, invocation_id, ERROR, InvocationOutcome.UNKNOWN)

    stored = await load(database, invocation_id)
    assert stored.status is InvocationStatus.SUCCEEDED
    assert stored.outcome is InvocationOutcome.KNOWN
    assert (stored.response_digest, stored.error, stored.lease_token) == (digest, None, None)
    assert stored.finished_at is not None


@pytest.mark.parametrize(
    ("end", "status"),
    [(fail, InvocationStatus.FAILED), (cancel, InvocationStatus.CANCELED)],
    ids=["fail", "cancel"],
)
async def test_a_failure_and_a_cancel_keep_their_error_and_outcome(
    end: type, status: InvocationStatus, database: Database, frozen: Frozen
) -> None:
    invocation_id = (await database.write(frozen.provision, "k")).invocation.id

    await database.write(end, invocation_id, ERROR, InvocationOutcome.UNKNOWN)

    stored = await load(database, invocation_id)
    assert (stored.status, stored.outcome) == (status, InvocationOutcome.UNKNOWN)
    assert stored.error == ERROR.to_json()
    assert stored.finished_at is not None


async def test_of_many_that_settle_at_once_one_wins(database: Database, frozen: Frozen) -> None:
    invocation_id = (await database.write(frozen.provision, "k")).invocation.id
    digest = await database.write(store_payload, b"{}")

    won = await asyncio.gather(
        *(database.write(complete, invocation_id, digest) for _ in range(10)),
        *(database.write(fail, invocation_id, ERROR, InvocationOutcome.KNOWN) for _ in range(10)),
    )

    assert sum(won) == 1


async def test_a_terminal_invocation_is_never_taken_over(database: Database, frozen: Frozen) -> None:
    invocation_id = (await database.write(frozen.provision, "k")).invocation.id

    assert await database.write(take_over, invocation_id, "token-2")
    await database.write(cancel, invocation_id, ERROR, InvocationOutcome.KNOWN)

    assert not await database.write(take_over, invocation_id, "token-3")
    assert (await load(database, invocation_id)).lease_token is None


async def test_only_running_invocations_are_open(database: Database, frozen: Frozen) -> None:
    ended = (await database.write(frozen.provision, "a")).invocation.id
    running = (await database.write(frozen.provision, "b")).invocation.id
    await database.write(fail, ended, ERROR, InvocationOutcome.KNOWN)

    def open_ids(session: WriteSession, ids: set[str] | None = None) -> list[str]:
        return list(lock_open_invocations(session, frozen.round_id, ids))

    assert await database.write(open_ids) == [running]
    assert await database.write(open_ids, {ended}) == []
