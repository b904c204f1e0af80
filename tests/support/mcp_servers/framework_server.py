"""A server on a high-level framework, for a Python that has one: ``python framework_server.py KIND PORT``.

KIND is ``sdk1`` (FastMCP of the official SDK's 1.x line) or ``fastmcp`` (the package of that name). It runs
in an environment of its own, so it imports nothing of this project, and the framework by name.
"""

import asyncio
import importlib
import sys
from typing import Any


async def slow(seconds: float, ctx: Any) -> str:
    """Report progress and answer after a while."""
    for step in range(4):
        await ctx.report_progress(step, 4)
        await asyncio.sleep(seconds / 4)
    return "slept"


def echo(text: str) -> str:
    """Return the text."""
    return text


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def main() -> None:
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "sdk1":
        module = importlib.import_module("mcp.server.fastmcp")
        server = module.FastMCP("sdk1", host="127.0.0.1", port=port)
    else:
        module = importlib.import_module("fastmcp")
        server = module.FastMCP("fastmcp")
    # Frameworks find the context by its annotation, which only exists once they are imported.
    slow.__annotations__["ctx"] = module.Context
    for function in (echo, add, slow):
        server.tool()(function)
    if kind == "sdk1":
        server.run(transport="streamable-http")
    else:
        server.run(transport="http", host="127.0.0.1", port=port, show_banner=False)


if __name__ == "__main__":
    main()
