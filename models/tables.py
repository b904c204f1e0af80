"""Every table, imported in one place so that the metadata is whole."""

from models import audit, binding, connection, invocation, key, mcp_session, payload, round, send, tool  # noqa: A004
from models.base import Base

METADATA = Base.metadata
"""The metadata of all tables."""

MODULES = (audit, binding, connection, invocation, key, mcp_session, payload, round, send, tool)
"""The modules that define tables."""
