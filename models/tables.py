"""Every table, imported in one place so that the metadata is whole."""

from models import (
    audit,
    audit_chain,
    binding,
    connection,
    console_session,
    conversation,
    guardrail,
    invocation,
    key,
    mcp_farewell,
    mcp_session,
    payload,
    program,
    provider,
    quota,
    round,  # noqa: A004
    runtime,
    send,
    slot,
    subagent,
    task,
    tool,
    usage,
)
from models.base import Base

METADATA = Base.metadata
"""The metadata of all tables."""

MODULES = (
    audit,
    audit_chain,
    binding,
    connection,
    console_session,
    conversation,
    guardrail,
    invocation,
    key,
    mcp_farewell,
    mcp_session,
    payload,
    program,
    provider,
    quota,
    round,
    runtime,
    send,
    slot,
    subagent,
    task,
    tool,
    usage,
)
"""The modules that define tables."""
