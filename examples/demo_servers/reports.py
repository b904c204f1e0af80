"""The shop's back office, where things take time. Run it with `python -m examples.demo_servers.reports`."""

import asyncio
from collections import Counter
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from examples.demo_servers.serving import serve

server = MCPServer("reports", instructions="Builds sales reports and mails them.", log_level="WARNING")
runs: Counter[str] = Counter()


@server.tool()
async def build_report(
    month: Annotated[str, Field(pattern="^[0-9]{4}-[0-9]{2}$", description="Such as 2026-06.")],
    seconds: Annotated[float, Field(ge=0, le=30, description="How long it takes.")] = 1.5,
) -> str:
    """Build the sales report of a month, slowly."""
    runs["build_report"] += 1
    await asyncio.sleep(seconds)
    return f"Sales in {month}: 2 orders, 268.00 EUR."


@server.tool()
def mail_report(month: str, to: str) -> str:
    """Mail the report of a month to someone; this shop's mailbox is always full."""
    runs["mail_report"] += 1
    raise ToolError(f"the report of {month} was not delivered: the mailbox of {to} is full")


if __name__ == "__main__":
    serve(server, runs)
