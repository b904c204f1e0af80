"""Tools of MCP connections: as their servers list them, and as rounds freeze them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from governance.canonical import JSON
from governance.execution_policy import PolicyOverlay, PolicySubject, resolve_execution_policy
from governance.names import exposed_name
from governance.snapshots import ToolSnapshot
from models.connection import Connection
from models.projecting import SourceKey
from models.tool import SourceKind, ToolDefinition

MCP_TOOL_KIND = "mcp_tool"
"""The tool kind of everything that a connection lists."""


@dataclass(frozen=True)
class DeclaredTool:
    """A tool as its server lists it; `declared` has description, schemas and annotations, as JSON."""

    upstream_name: str
    declared: Mapping[str, JSON]


def source_of(connection: Connection) -> SourceKey:
    """Return the source that stands for a connection."""
    return SourceKey(SourceKind.MCP, connection.id, connection.id)


def reference_of(connection: Connection, upstream_name: str) -> str:
    """Name the implementation that a connection has of one of its tools."""
    return f"mcp/{connection.id}/{upstream_name}"


def snapshot_of(
    connection: Connection,
    tool: DeclaredTool,
    overlays: Sequence[PolicyOverlay],
    definition: ToolDefinition | None = None,
) -> ToolSnapshot:
    """Compose everything that a call of the tool needs to know.

    With a definition the tool stands in under that definition's name, else under the connection's own.
    """
    name = exposed_name(connection.name, tool.upstream_name) if definition is None else definition.tool_name
    policy = resolve_execution_policy(
        PolicySubject(
            tool_source=SourceKind.MCP.value,
            server_slug=connection.name,
            tool_name=name,
            tool_kind=MCP_TOOL_KIND if definition is None else definition.tool_kind,
            declared={},
        ),
        overlays,
    )
    return ToolSnapshot(
        exposed_name=name,
        upstream_name=tool.upstream_name,
        connection=connection.id,
        connection_name=connection.name,
        source_kind=SourceKind.MCP.value,
        description=tool.declared.get("description"),
        input_schema=tool.declared.get("input_schema"),
        output_schema=tool.declared.get("output_schema"),
        annotations=tool.declared.get("annotations"),
        parallel_safe=policy.parallel_safe,
        policy_provenance=policy.provenance,
        timeout_s=connection.tool_timeout_s,
        idempotency=connection.idempotency,
        server_url=connection.url,
    )
