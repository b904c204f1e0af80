"""A worker that is killed leaves nothing behind in its keys' accounts."""

import pytest
from temporalio.client import Client

from api.embedded import EmbeddedTemporal
from governance.quotas import Limits
from models.database import Database, ReadSession, WriteSession
from models.key import ApiKey
from models.quota import count_running, find_quota, set_quota
from tests.support.rounds import RoundBench
from tests.support.world import Call, ConnectionPlan, build_world
from tests.workflows.test_concurrency_caps import outcomes, upstream, worker_process

pytestmark = pytest.mark.anyio


async def test_a_killed_worker_leaves_no_call_counted_as_running(
    database_url: str, temporal_client: Client, temporal_server: EmbeddedTemporal, task_queue: str
) -> None:
    async with Database(database_url) as database, upstream() as (served, url):
        world = await build_world(database, ConnectionPlan(tool_prices={"read": "1"}))

        def limit(session: WriteSession) -> None:
            key = session.get_one(ApiKey, world.key_id)
            set_quota(session, key, Limits(concurrent_calls=1, tool_calls_per_day=10))

        await database.write(limit)
        bench = RoundBench(temporal_client, database, task_queue, heartbeat_timeout_s=1.0)
        to_worker = (database_url, temporal_server.address, task_queue, url)
        async with worker_process(*to_worker) as owner:
            lost, lost_handle = await bench.start(world.key_id, [Call("files-read", {"n": 0})])
            await served.has_received(1)
            while_it_runs = await database.read(count_running, world.key_id)
            refused, _ = await bench.run(world.key_id, [Call("files-read", {"n": 1})])
            await owner.kill()
            served.may_go.set()
            async with worker_process(*to_worker):
                await lost_handle.result()
                afterwards = await database.read(count_running, world.key_id)
                allowed, _ = await bench.run(world.key_id, [Call("files-read", {"n": 2})])
        killed = await bench.record(lost)

        def spent(session: ReadSession) -> tuple[int, int, int]:
            quota = find_quota(session, world.key_id)
            assert quota is not None
            return quota.day_requests, quota.day_calls, quota.day_cost

        counted = await database.read(spent)

    assert (while_it_runs, afterwards) == (1, 0)
    assert outcomes(killed) == ["unknown"]
    [error] = [invocation.error for invocation in refused.invocations.values()]
    assert error is not None
    assert (error["code"], error["details"]["limit"]) == ("quota_exceeded", "concurrent_calls")
    assert allowed.statuses() == ["succeeded"]
    # The second attempt of the killed call took nothing more, and what may have run is paid for.
    assert counted == (3, 2, 2_000_000_000)
    assert served.order == [0, 2]
