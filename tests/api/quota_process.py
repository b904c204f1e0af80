"""An API process with callers of its own: DATABASE_URL FOLDER SECRET CALLERS REQUESTS; prints what they got.

It waits for a line on standard input, so that several of them begin together.
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path

from tests.api.bench import Agent, APIBench, api_bench, error_of, make_settings
from tests.api.chat_bench import chat


async def ask(api: APIBench, agent: Agent, requests: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for _ in range(requests):
        answer = await chat(api, agent)
        seen["ok" if answer.status_code == 200 else error_of(answer)["code"]] += 1
    return seen


async def run(url: str, folder: str, secret: str, callers: int, requests: int) -> None:
    settings = make_settings(Path(folder), url, database_busy_timeout_ms=30_000)
    async with api_bench(settings, None) as api:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        seen: Counter[str] = Counter()
        for one in await asyncio.gather(*(ask(api, Agent("", secret), requests) for _ in range(callers))):
            seen += one
    sys.stdout.write(f"{seen['ok']} {seen['quota_exceeded']} {seen.total()}\n")


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
