"""Ends work whose caller has gone away."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class CallerGone(Exception):
    """The caller closed the connection before its answer came."""


async def disconnected(receive: Receive) -> None:
    """Wait until the caller of a request, whose body has been read, closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, or cancel it as soon as the caller has gone.

    Raises:
        CallerGone: the caller went first; `work` has ended by then.
    """
    working, gone = asyncio.create_task(work), asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CallerGone
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
