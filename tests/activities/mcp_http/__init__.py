"""Tests of mcp_http."""
