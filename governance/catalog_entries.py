"""Read the tool catalogs that programs and runtimes declare, and name every fault at once. Pure: no I/O."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from governance.canonical import JSON, is_array, is_object
from governance.catalogs import BEST_EFFORT, ToolEntry
from governance.faults import Fault
from governance.modes import CORE_PREFIX, SourceKind
from governance.schemas import SchemaProblem, compile_schema

TOOL_NAME: Final = re.compile(r"[a-z0-9_]{1,64}")
"""Form of a tool's name in a program's or runtime's catalog; connections name their tools otherwise."""

PROGRAM_KINDS: Final = frozenset({"kernel_primitive", "agent_observation", "effect_intent"})
"""Tool kinds that a program may declare."""

RUNTIME_KINDS: Final = frozenset({"execution_runtime"})
"""Tool kinds that an execution runtime may declare."""

KERNEL_KIND: Final = "kernel_primitive"
"""The tool kind that makes a program's tool one of the source kernel."""

MAX_TOOLS: Final = 2_000
"""Tools in one declared catalog."""

LONGEST_TEXT: Final = 512
"""Characters in the longest reference or remote name that can be stored."""

TRANSPORT: Final = "streamable_http"
"""The one transport of tools of source mcp."""

_FIELDS: Final = frozenset(
    {
        "tool_name", "tool_kind", "implementation_source", "implementation_ref", "input_schema",
        "result_schema", "streaming_support", "idempotency_policy", "execution_policy", "description",
        "transport_kind", "server_url", "mcp_tool_name", "mcp_server_slug", "server_slug",
    }
)  # fmt: skip


@dataclass(frozen=True)
class RegisteredServer:
    """A connection that an operator registered, as far as a declared tool may refer to it."""

    id: str
    name: str
    url: str


@dataclass(frozen=True)
class _Channel:
    """Who declares: the kinds it may use, and how the source of a tool follows."""

    kinds: frozenset[str]
    claims: frozenset[str]
    source_ref: str
    source_of: Callable[[str], SourceKind]
    servers: Sequence[RegisteredServer] = ()


def read_program_catalog(
    value: JSON, version_ref: str, servers: Iterable[RegisteredServer], path: str = "tool_catalog"
) -> tuple[tuple[ToolEntry, ...], list[Fault]]:
    """Return the tools of a program version's catalog, and every fault in it.

    A tool of `implementation_source: mcp` names a registered connection by slug, or by a URL that is equal
    to one connection's. The other sources follow from the tool kind.
    """
    claims = frozenset({SourceKind.AGENT.value, SourceKind.KERNEL.value, SourceKind.MCP.value})
    channel = _Channel(PROGRAM_KINDS, claims, version_ref, _program_source, tuple(servers))
    return _read(value, path, channel)


def read_runtime_catalog(
    value: JSON, runtime_ref: str, path: str = "execution_tool_catalog"
) -> tuple[tuple[ToolEntry, ...], list[Fault]]:
    """Return the tools of an execution runtime's catalog, and every fault in it."""
    claims = frozenset({SourceKind.EXECUTION_RUNTIME.value})
    channel = _Channel(RUNTIME_KINDS, claims, runtime_ref, lambda _kind: SourceKind.EXECUTION_RUNTIME)
    return _read(value, path, channel)


def _program_source(tool_kind: str) -> SourceKind:
    return SourceKind.KERNEL if tool_kind == KERNEL_KIND else SourceKind.AGENT


def _read(value: JSON, path: str, channel: _Channel) -> tuple[tuple[ToolEntry, ...], list[Fault]]:
    if not is_array(value):
        return (), [Fault(path, "is an array of tools")]
    if len(value) > MAX_TOOLS:
        return (), [Fault(path, f"has at most {MAX_TOOLS} tools")]
    entries: list[ToolEntry] = []
    faults: list[Fault] = []
    references: set[tuple[str, str]] = set()
    for number, declared in enumerate(value):
        place = f"{path}[{number}]"
        entry = _entry(declared, place, channel)
        if not isinstance(entry, ToolEntry):
            faults += entry
            continue
        reference = (entry.tool_name, entry.implementation_ref)
        if reference in references:
            faults.append(Fault(f"{place}.implementation_ref", "names an earlier entry of the same tool"))
        references.add(reference)
        entries.append(entry)
    return tuple(entries), faults


def _entry(declared: JSON, place: str, channel: _Channel) -> ToolEntry | list[Fault]:
    if not is_object(declared):
        return [Fault(place, "is an object")]
    name, kind = declared.get("tool_name"), declared.get("tool_kind")
    faults = [
        *_name_faults(name, f"{place}.tool_name"),
        *_kind_faults(kind, f"{place}.tool_kind", channel),
        *_source_faults(declared.get("implementation_source"), f"{place}.implementation_source", channel),
        *_reference_faults(declared, place),
        *_schema_faults(declared, place),
        *_flag_faults(declared, place),
    ]
    is_mcp = declared.get("implementation_source") == SourceKind.MCP.value
    server: RegisteredServer | None = None
    if is_mcp and SourceKind.MCP.value in channel.claims:
        found = _server(declared, place, channel.servers)
        if isinstance(found, RegisteredServer):
            server = found
        else:
            faults += found
    if faults:
        return faults
    return _composed(declared, channel, server)


def _composed(declared: Mapping[str, JSON], channel: _Channel, server: RegisteredServer | None) -> ToolEntry:
    kind: str = declared["tool_kind"]
    return ToolEntry(
        tool_name=declared["tool_name"],
        tool_kind=kind,
        source=channel.source_of(kind) if server is None else SourceKind.MCP,
        source_ref=channel.source_ref if server is None else server.id,
        implementation_ref=declared["implementation_ref"],
        upstream_name=declared["tool_name"] if server is None else declared["mcp_tool_name"],
        description=declared.get("description"),
        input_schema=declared["input_schema"],
        result_schema=declared.get("result_schema") or {},
        streaming_support=declared.get("streaming_support", False),
        idempotency_policy=declared.get("idempotency_policy", BEST_EFFORT),
        declared_policy=declared.get("execution_policy"),
        connection_id=None if server is None else server.id,
        connection_name=None if server is None else server.name,
        metadata={field: value for field, value in declared.items() if field not in _FIELDS},
    )


def _name_faults(name: JSON, path: str) -> list[Fault]:
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        return [Fault(path, "is 1 to 64 lower-case letters, digits and underscores")]
    if name.startswith(CORE_PREFIX):
        return [Fault(path, f"begins with {CORE_PREFIX}, which only built-in tools do")]
    return []


def _kind_faults(kind: JSON, path: str, channel: _Channel) -> list[Fault]:
    if isinstance(kind, str) and kind in channel.kinds:
        return []
    return [Fault(path, f"is one of {', '.join(sorted(channel.kinds))}")]


def _source_faults(claimed: JSON, path: str, channel: _Channel) -> list[Fault]:
    # The source follows from the channel; a claim to another one is refused and never believed.
    if claimed is None or (isinstance(claimed, str) and claimed in channel.claims):
        return []
    return [Fault(path, f"is one of {', '.join(sorted(channel.claims))}, or left out")]


def _reference_faults(declared: Mapping[str, JSON], place: str) -> list[Fault]:
    faults = _text_faults(declared.get("implementation_ref"), f"{place}.implementation_ref")
    for field in ("description", "idempotency_policy"):
        value = declared.get(field)
        if value is not None and (not isinstance(value, str) or "\x00" in value):
            faults.append(Fault(f"{place}.{field}", "is text without the character NUL"))
    if declared.get("idempotency_policy", BEST_EFFORT) in ("", None):
        faults.append(Fault(f"{place}.idempotency_policy", "is not blank"))
    return faults


def _text_faults(value: JSON, path: str) -> list[Fault]:
    if not isinstance(value, str) or not value.strip():
        return [Fault(path, "is text that is not blank")]
    if "\x00" in value or len(value) > LONGEST_TEXT:
        return [Fault(path, f"has at most {LONGEST_TEXT} characters, without NUL")]
    return []


def _schema_faults(declared: Mapping[str, JSON], place: str) -> list[Fault]:
    faults: list[Fault] = []
    schema = declared.get("input_schema")
    compiled = compile_schema(schema) if is_object(schema) else None
    if compiled is None:
        faults.append(Fault(f"{place}.input_schema", "is a JSON Schema object"))
    elif isinstance(compiled, SchemaProblem):
        faults.append(Fault(f"{place}.input_schema", f"cannot be used: {compiled.reason}"))
    if declared.get("result_schema") is not None and not is_object(declared["result_schema"]):
        faults.append(Fault(f"{place}.result_schema", "is a JSON Schema object"))
    return faults


def _flag_faults(declared: Mapping[str, JSON], place: str) -> list[Fault]:
    faults: list[Fault] = []
    if not isinstance(declared.get("streaming_support", False), bool):
        faults.append(Fault(f"{place}.streaming_support", "is true or false"))
    policy = declared.get("execution_policy")
    if policy is not None and not is_object(policy):
        faults.append(Fault(f"{place}.execution_policy", "is an object"))
    elif is_object(policy) and not isinstance(policy.get("parallel_safe", False), bool):
        faults.append(Fault(f"{place}.execution_policy.parallel_safe", "is true or false"))
    return faults


def _server(
    declared: Mapping[str, JSON], place: str, servers: Sequence[RegisteredServer]
) -> RegisteredServer | list[Fault]:
    """Find the registered connection that an entry names; no address that is not registered is accepted."""
    faults = _text_faults(declared.get("mcp_tool_name"), f"{place}.mcp_tool_name")
    if declared.get("transport_kind", TRANSPORT) != TRANSPORT:
        faults.append(Fault(f"{place}.transport_kind", f"is {TRANSPORT}"))
    slug = declared.get("mcp_server_slug") or declared.get("server_slug")
    url = declared.get("server_url")
    if slug is None and url is None:
        faults.append(Fault(f"{place}.server_slug", "names a registered connection, or server_url does"))
    named = [server for server in servers if slug in (None, server.name) and url in (None, server.url)]
    if not faults and len(named) == 1:
        return named[0]
    if not faults and not named:
        faults.append(Fault(f"{place}.server_url", "is not the address of a registered connection"))
        if slug is not None:
            faults[-1] = Fault(f"{place}.server_slug", "names no registered connection with that address")
    elif not faults:
        faults.append(
            Fault(f"{place}.server_url", "is shared by several connections; name one by server_slug")
        )
    return faults
