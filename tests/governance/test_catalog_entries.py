"""Declared catalogs: every fault is named, and the source of a tool follows from who declares it."""

from typing import Any

import pytest

from governance.catalog_entries import MAX_TOOLS, RegisteredServer, read_program_catalog, read_runtime_catalog
from governance.modes import SourceKind

SERVERS = (
    RegisteredServer("id-files", "files", "http://files.example/mcp"),
    RegisteredServer("id-twin", "twin", "http://twin.example/mcp"),
    RegisteredServer("id-other", "other", "http://twin.example/mcp"),
)


def declare(**changes: Any) -> dict[str, Any]:
    declared = {
        "tool_name": "sum",
        "tool_kind": "agent_observation",
        "implementation_ref": "program/sum",
        "input_schema": {"type": "object"},
        **changes,
    }
    return {key: value for key, value in declared.items() if value is not Ellipsis}


def declare_mcp(**changes: Any) -> dict[str, Any]:
    named = {"server_slug": "files", "mcp_tool_name": "echo", **changes}
    return declare(implementation_source="mcp", **named)


def faults_of(*declared: Any) -> list[str]:
    return [fault.path for fault in read_program_catalog(list(declared), "version-1", SERVERS)[1]]


def test_a_program_declares_agent_kernel_and_mcp_tools() -> None:
    declared = [
        declare(),
        declare(tool_name="remember", tool_kind="kernel_primitive", implementation_ref="k"),
        declare_mcp(tool_name="remote", implementation_ref="m"),
    ]

    entries, faults = read_program_catalog(declared, "version-1", SERVERS)

    assert faults == []
    assert [(entry.source, entry.source_ref) for entry in entries] == [
        (SourceKind.AGENT, "version-1"),
        (SourceKind.KERNEL, "version-1"),
        (SourceKind.MCP, "id-files"),
    ]
    assert (entries[2].connection_name, entries[2].upstream_name) == ("files", "echo")
    assert entries[0].input_schema is declared[0]["input_schema"]


def test_a_runtime_declares_runtime_tools_and_nothing_else() -> None:
    good = declare(tool_kind="execution_runtime")
    entries, faults = read_runtime_catalog([good], "runtime-1")
    _, refused = read_runtime_catalog([declare(), {**good, "implementation_source": "agent"}], "runtime-1")

    assert (faults, entries[0].source) == ([], SourceKind.EXECUTION_RUNTIME)
    assert [fault.path for fault in refused] == [
        "execution_tool_catalog[0].tool_kind",
        "execution_tool_catalog[1].implementation_source",
    ]


@pytest.mark.parametrize("claimed", ["core_matrix", "execution_runtime", "", 7])
def test_a_claim_to_another_source_is_refused_and_never_believed(claimed: object) -> None:
    assert faults_of(declare(implementation_source=claimed)) == ["tool_catalog[0].implementation_source"]


@pytest.mark.parametrize("name", ["", "Sum", "a-b", "a.b", "ä", "x" * 65, None, 3, "core_matrix__x"])
def test_names_are_snake_case_and_never_of_the_core(name: object) -> None:
    assert faults_of(declare(tool_name=name)) == ["tool_catalog[0].tool_name"]


@pytest.mark.parametrize("name", ["core_matrix_x", "subagent_spawn", "x" * 64, "7"])
def test_names_that_look_reserved_may_be_declared(name: str) -> None:
    assert faults_of(declare(tool_name=name)) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"tool_kind": "execution_runtime"}, "tool_kind"),
        ({"tool_kind": ...}, "tool_kind"),
        ({"implementation_ref": ...}, "implementation_ref"),
        ({"implementation_ref": "  "}, "implementation_ref"),
        ({"implementation_ref": "x" * 513}, "implementation_ref"),
        ({"input_schema": ...}, "input_schema"),
        ({"input_schema": []}, "input_schema"),
        ({"input_schema": {"type": "nonsense"}}, "input_schema"),
        ({"input_schema": {"$ref": "http://elsewhere.example/schema"}}, "input_schema"),
        ({"result_schema": "text"}, "result_schema"),
        ({"streaming_support": "yes"}, "streaming_support"),
        ({"idempotency_policy": ""}, "idempotency_policy"),
        ({"idempotency_policy": 3}, "idempotency_policy"),
        ({"description": ["x"]}, "description"),
        ({"execution_policy": "parallel"}, "execution_policy"),
        ({"execution_policy": {"parallel_safe": "yes"}}, "execution_policy.parallel_safe"),
    ],
)
def test_each_malformed_field_is_named(changes: dict[str, Any], path: str) -> None:
    assert faults_of(declare(**changes)) == [f"tool_catalog[0].{path}"]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"server_slug": "nowhere"}, "server_slug"),
        ({"server_slug": ..., "server_url": "http://elsewhere.example/mcp"}, "server_url"),
        ({"server_slug": ..., "server_url": "http://169.254.169.254/latest"}, "server_url"),
        ({"server_slug": ..., "server_url": "http://twin.example/mcp"}, "server_url"),
        ({"server_slug": "files", "server_url": "http://twin.example/mcp"}, "server_slug"),
        ({"server_slug": ...}, "server_slug"),
        ({"mcp_tool_name": " "}, "mcp_tool_name"),
        ({"transport_kind": "stdio"}, "transport_kind"),
    ],
)
def test_a_tool_of_a_server_names_exactly_one_registered_connection(
    changes: dict[str, Any], path: str
) -> None:
    assert faults_of(declare_mcp(**changes)) == [f"tool_catalog[0].{path}"]


@pytest.mark.parametrize(
    "changes",
    [
        {"server_slug": ..., "mcp_server_slug": "files"},
        {"server_slug": ..., "server_url": "http://files.example/mcp"},
        {"server_slug": "twin", "server_url": "http://twin.example/mcp"},
    ],
)
def test_a_connection_is_named_by_slug_or_by_its_whole_address(changes: dict[str, Any]) -> None:
    assert faults_of(declare_mcp(**changes)) == []


def test_every_fault_of_every_entry_is_told_at_once() -> None:
    assert faults_of("text", declare(tool_name="A", tool_kind="x"), declare(input_schema=3)) == [
        "tool_catalog[0]",
        "tool_catalog[1].tool_name",
        "tool_catalog[1].tool_kind",
        "tool_catalog[2].input_schema",
    ]


def test_a_reference_stands_once_for_a_tool() -> None:
    other = declare(implementation_ref="program/other")

    assert faults_of(declare(), other, declare()) == ["tool_catalog[2].implementation_ref"]
    assert faults_of(declare(), declare(tool_name="product")) == []


@pytest.mark.parametrize("value", [None, {}, "text", 3])
def test_a_catalog_is_an_array(value: object) -> None:
    _, faults = read_program_catalog(value, "version-1", SERVERS)
    assert [fault.path for fault in faults] == ["tool_catalog"]


def test_a_catalog_has_a_limit() -> None:
    _, faults = read_program_catalog([declare()] * (MAX_TOOLS + 1), "version-1", SERVERS)
    assert [fault.path for fault in faults] == ["tool_catalog"]
