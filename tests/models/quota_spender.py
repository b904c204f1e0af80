"""A process with callers that spend a key's quota: DATABASE_URL KEY CALLERS CALLS; prints how many may call.

It waits for a line on standard input, so that several of them begin together.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from sqlalchemy.orm import Session

from governance.quotas import Demand
from models.base import new_id
from models.database import Database, WriteSession
from models.quota import spend


def call(database: Database, key_id: str, calls: int) -> int:
    allowed = 0
    for _ in range(calls):
        with Session(database.engine) as session, session.begin():
            allowed += spend(WriteSession(session), key_id, Demand(1, 1, 3), new_id()) is None
    return allowed


def main(url: str, key_id: str, callers: int, calls: int) -> None:
    with (
        closing(Database(url, pool_size=callers, busy_timeout_ms=30_000)) as database,
        ThreadPoolExecutor(callers) as threads,
    ):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        counts = list(threads.map(lambda _: call(database, key_id, calls), range(callers)))
    sys.stdout.write(f"{sum(counts)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
