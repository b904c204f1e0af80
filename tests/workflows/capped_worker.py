"""A worker process with short slot leases: DATABASE_URL TEMPORAL_ADDRESS TASK_QUEUE UPSTREAM_URL LEASE_S.

Its tools are one request each to the upstream, so that the upstream's own count is the judge.
"""

import asyncio
import sys

import httpx
from temporalio.client import Client

from activities.ledger import OpenCall
from governance.canonical import JSON
from models.database import Database
from tests.support.rounds import round_worker
from tests.support.scripted_runner import ScriptedRunner, text_result
from workflows.payloads import data_converter


async def run(url: str, address: str, task_queue: str, upstream: str, lease_s: float) -> None:
    client = await Client.connect(address, data_converter=data_converter)
    async with (
        Database(url, busy_timeout_ms=15_000) as database,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):

        async def ask(call: OpenCall) -> JSON:
            answer = await http.post(upstream, json=call.arguments)
            return text_result(answer.text)

        runner = ScriptedRunner(ask)
        async with round_worker(client, database, runner, task_queue=task_queue, slot_lease_s=lease_s):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    _, database_url, temporal, queue, server, lease = sys.argv
    asyncio.run(run(database_url, temporal, queue, server, float(lease)))
