"""The official conformance suite of MCP against the production transport."""
