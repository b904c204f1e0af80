"""Start an embedded server, say its pid and address, then wait to be killed. Usage: FOLDER [thread]."""

import asyncio
import sys
import threading
from pathlib import Path

from api.embedded import EmbeddedTemporal
from tests.support.temporal_server import TEST_OPTIONS


async def own(folder: Path) -> None:
    async with EmbeddedTemporal(folder, TEST_OPTIONS) as server:
        sys.stdout.write(f"{server.pid} {server.address}\n")
        sys.stdout.flush()
        await server.wait()


if __name__ == "__main__":
    owner = threading.Thread(target=asyncio.run, args=(own(Path(sys.argv[1])),))
    owner.start()
    owner.join()
