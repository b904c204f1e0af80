"""MCP servers that tests start as processes of their own."""
