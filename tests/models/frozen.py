"""A frozen round of a few calls, and the ledger's functions on its bindings."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from activities.freezing import FreezeRound, freeze
from governance.canonical import canonical_bytes
from governance.tool_cache import ToolCache
from models.base import new_id
from models.binding import ToolBinding, load_bindings
from models.database import Database, WriteSession
from models.invocation import CallRequest, Provisioned, provision
from models.payload import store_payload
from tests.support.world import Call, ConnectionPlan, World, add_round, build_world


@dataclass(frozen=True)
class Frozen:
    """A round that was frozen, of a key that may call what it asks for."""

    world: World
    round_id: str
    tools: ToolCache

    def binding(self, session: WriteSession, tool: str = "files-read") -> ToolBinding:
        return load_bindings(session, self.round_id)[tool]

    def provision(
        self, session: WriteSession, key: str | None, arguments: object = None, token: str | None = None
    ) -> Provisioned:
        """Provision a call of the round's tool with some arguments, under a lease of its own."""
        digest = store_payload(session, canonical_bytes({"arguments": arguments}))
        request = CallRequest(self.round_id, digest)
        return provision(session, self.binding(session), request, key, token or new_id())


async def freeze_world(
    database: Database,
    plan: ConnectionPlan | None = None,
    calls: Sequence[Call] = (Call("files-read"), Call("files-write")),
    key_name: str = "agent",
) -> Frozen:
    world = await build_world(database, plan, key_name)
    tools = ToolCache()
    round_id = await freeze_calls(database, world, calls, tools)
    return Frozen(world, round_id, tools)


async def freeze_calls(database: Database, world: World, calls: Sequence[Call], tools: ToolCache) -> str:
    """Ask for a round of the world's key and freeze it; return its id."""
    workflow_id = f"round:{uuid4().hex}"

    def ask_and_freeze(session: WriteSession) -> str:
        round_id = add_round(session, world.key_id, calls, workflow_id)
        freeze(session, FreezeRound(workflow_id, world.key_id, round_id, round_id, ""), tools)
        return round_id

    return await database.write(ask_and_freeze)
