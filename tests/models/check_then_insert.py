"""A process of its own that looks for a key and then inserts it: URL NAME GO_FILE. Prints what it did."""

import asyncio
import sys
import time
from pathlib import Path

from sqlalchemy import select

from models.base import new_id
from models.database import Database, WriteSession
from models.key import ApiKey

GO_TIMEOUT_S = 20.0


def look_then_insert(session: WriteSession, name: str) -> bool:
    if session.scalar(select(ApiKey.id).where(ApiKey.name == name)) is not None:
        return False
    session.add(ApiKey(id=new_id(), name=name, enabled=True, has_tool_config=False))
    session.flush()
    return True


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + GO_TIMEOUT_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.001)


async def main(url: str, name: str, go: Path) -> None:
    async with Database(url) as database:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        wait_for(go)
        made = await asyncio.gather(
            *(database.write(look_then_insert, f"{name}-{number}") for number in range(10))
        )
        sys.stdout.write(f"{sum(made)}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
