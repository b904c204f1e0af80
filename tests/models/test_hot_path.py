"""How many statements each transaction of a governed call may send: one more fails here."""

from collections.abc import Callable
from typing import Any

import pytest

from activities.finalizing import FinalizeRound, finalize
from activities.freezing import FreezeRound, freeze
from activities.ledger import CallOutcome, CallPlace, OpenCall, Owner, mark_call_sent, settle_call
from activities.opening import open_call
from governance.canonical import canonical_bytes
from governance.codes import InvocationStatus, SendOutcome
from governance.tool_cache import ToolCache
from models.base import new_id
from models.database import Database, WriteSession
from models.invocation import Settlement
from models.key import ApiKey, replace_tool_grants
from tests.support.statements import statements_of
from tests.support.world import Call, World, add_round, build_world

pytestmark = pytest.mark.anyio

STATEMENTS = {
    "add_round": 4,
    "freeze": 10,
    "open_call": 7,
    "mark_call_sent": 2,
    "settle_call": 7,
    "finalize": 5,
}
"""Of a round of one call, by transaction, without BEGIN and COMMIT."""


class Counted:
    """Runs transactions and notes the statements of each."""

    def __init__(self, database: Database, world: World) -> None:
        self.database = database
        self.world = world
        self.tools = ToolCache()
        self.sent: dict[str, list[str]] = {}

    async def write(self, work: Callable[..., Any], *args: object) -> Any:
        with statements_of(self.database) as seen:
            done = await self.database.write(work, *args)
        self.sent.setdefault(work.__name__, []).extend(seen)
        return done

    async def call(self, round_id: str, position: int) -> None:
        place = CallPlace(round_id, position, 0, f"s0.c{position}")
        opened = await self.write(open_call, place, Owner("worker", new_id()), self.tools)
        assert isinstance(opened, OpenCall)
        await self.write(mark_call_sent, opened, opened.send_id, None)
        outcome = CallOutcome(
            Settlement(InvocationStatus.SUCCEEDED), SendOutcome.ANSWERED, canonical_bytes({"at": position})
        )
        await self.write(settle_call, opened, opened.send_id, outcome)

    async def round(self, calls: int) -> None:
        self.sent.clear()
        asked = [Call("files-read", {"at": number}) for number in range(calls)]
        workflow_id = f"round:{new_id()}"
        round_id = await self.write(add_round, self.world.key_id, asked, workflow_id)
        await self.write(
            freeze, FreezeRound(workflow_id, self.world.key_id, round_id, round_id, ""), self.tools
        )
        for position in range(calls):
            await self.call(round_id, position)
        ended = await self.write(finalize, FinalizeRound(round_id))
        assert ended.succeeded == calls

    def counts(self) -> dict[str, int]:
        return {name: len(seen) for name, seen in self.sent.items()}


@pytest.fixture
async def counted(database: Database) -> Counted:
    made = Counted(database, await build_world(database))
    # The first round stores its frozen set, and reads the snapshots that later ones find in the cache.
    await made.round(1)
    return made


async def test_a_governed_call_sends_thirty_five_statements(counted: Counted) -> None:
    await counted.round(1)

    assert counted.counts() == STATEMENTS
    assert sum(STATEMENTS.values()) == 35


async def test_no_transaction_of_a_round_sends_more_statements_for_more_calls(counted: Counted) -> None:
    await counted.round(5)

    of_calls = ("open_call", "mark_call_sent", "settle_call")
    expected = {name: count * (5 if name in of_calls else 1) for name, count in STATEMENTS.items()}
    # The bench stores the arguments one by one, as the API does.
    assert counted.counts() == expected | {"add_round": STATEMENTS["add_round"] + 4}


async def test_a_tool_configuration_costs_one_statement_where_it_is_decided(counted: Counted) -> None:
    def configure(session: WriteSession) -> None:
        key = session.get_one(ApiKey, counted.world.key_id)
        replace_tool_grants(session, key, ((counted.world.connection_id, ("read",)),))

    await counted.database.write(configure)
    # The key sees other tools from here on, and the first round of those stores their set.
    await counted.round(1)

    await counted.round(1)

    more = {"freeze": STATEMENTS["freeze"] + 1, "open_call": STATEMENTS["open_call"] + 1}
    assert counted.counts() == STATEMENTS | more
