"""MCP over Streamable HTTP on httpx and httpx-sse; knows nothing of Temporal or the database."""
