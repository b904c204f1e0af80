"""Serves an app on a real loopback socket, as the commands do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from api.commands.serving import APIServer, bind, url_of


@asynccontextmanager
async def live_server(app: ASGIApp) -> AsyncIterator[str]:
    """Serve `app` on a free port until the block ends; the value is its URL."""
    listener = bind("127.0.0.1", 0)
    server = APIServer(app, drain_s=1.0)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        async with asyncio.timeout(5):
            await server.serves.wait()
        yield url_of(listener)
    finally:
        server.stop(at_once=True)
        await serving
        listener.close()
