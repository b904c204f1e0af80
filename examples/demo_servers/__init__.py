"""Two MCP servers of an imaginary shop, for the demo: `orders` and `reports`."""
