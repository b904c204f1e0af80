"""The shop's order desk. Run it with `python -m examples.demo_servers.orders`."""

from collections import Counter
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from examples.demo_servers.serving import serve

ORDERS: dict[str, dict[str, Any]] = {
    "A-1001": {"order_id": "A-1001", "customer": "Lin", "sku": "lamp-7", "paid_cents": 4900},
    "A-1002": {"order_id": "A-1002", "customer": "Osei", "sku": "desk-2", "paid_cents": 21900},
}

server = MCPServer("orders", instructions="Looks up, refunds and deletes orders.", log_level="WARNING")
runs: Counter[str] = Counter()

OrderId = Annotated[str, Field(pattern="^A-[0-9]{4}$", description="Such as A-1001.")]


@server.tool()
def find_order(order_id: OrderId) -> dict[str, Any]:
    """Look an order up."""
    runs["find_order"] += 1
    return order(order_id)


@server.tool()
def refund_order(order_id: OrderId, amount_cents: Annotated[int, Field(gt=0)]) -> str:
    """Pay part of an order back. Running it twice pays twice."""
    runs["refund_order"] += 1
    paid_cents = order(order_id)["paid_cents"]
    if amount_cents > paid_cents:
        raise ToolError(f"{order_id} was paid with {paid_cents} cents; {amount_cents} cannot be refunded")
    ORDERS[order_id]["paid_cents"] = paid_cents - amount_cents
    return f"Refunded {amount_cents} cents of {order_id}; {paid_cents - amount_cents} cents remain paid."


@server.tool()
def delete_order(order_id: OrderId) -> str:
    """Delete an order for good."""
    runs["delete_order"] += 1
    order(order_id)
    del ORDERS[order_id]
    return f"Deleted {order_id}."


def order(order_id: str) -> dict[str, Any]:
    """Return an order; raises ToolError, which the model reads, where there is none."""
    if order_id not in ORDERS:
        raise ToolError(f"there is no order {order_id}; there are {', '.join(ORDERS)}")
    return ORDERS[order_id]


if __name__ == "__main__":
    serve(server, runs)
