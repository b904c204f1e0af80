"""Declarations of program versions: all faults at once, exact comparison, planes."""

from typing import Any

import pytest

from governance.faults import Faults
from governance.handshake import (
    ProgramDefinition,
    definition_diff,
    execution_plane,
    program_plane,
    read_definition,
)

TOOL = {
    "tool_name": "sum",
    "tool_kind": "agent_observation",
    "implementation_ref": "program/sum",
    "input_schema": {"type": "object"},
}
BODY: dict[str, Any] = {
    "fingerprint": "release-1",
    "protocol_version": "agent-program/2026-04-01",
    "sdk_version": "1.0",
    "protocol_methods": [{"method_id": "agent_health"}],
    "tool_catalog": [TOOL],
    "profile_catalog": {"main": {"allowed_tool_names": ["sum"]}, "other": {}},
    "default_config_snapshot": {"interactive": {"profile": "main"}, "subagents": {"max_depth": 2}},
}


def read(**changes: Any) -> ProgramDefinition:
    return read_definition({**BODY, **changes}, "version-1", ())[0]


def faults_of(**changes: Any) -> list[str]:
    with pytest.raises(Faults) as refused:
        read(**changes)
    return [fault.path for fault in refused.value.found]


def test_a_definition_comes_back_as_it_was_stored() -> None:
    definition = read()

    assert ProgramDefinition.from_json(definition.to_json()) == definition
    assert ProgramDefinition.from_json(definition.to_json()).digest == definition.digest
    assert read(config_schema_snapshot=None).digest == definition.digest


def test_the_order_of_profiles_is_part_of_the_content() -> None:
    reordered = read(profile_catalog=dict(reversed(BODY["profile_catalog"].items())))

    assert reordered.digest != read().digest
    assert definition_diff(read(), reordered) == [{"path": "profile_catalog", "change": "reordered"}]


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"fingerprint": ""}, ["fingerprint"]),
        ({"protocol_version": 3, "sdk_version": None}, ["protocol_version", "sdk_version"]),
        ({"fingerprint": "x" * 256}, ["fingerprint"]),
        ({"protocol_methods": {"a": 1}}, ["protocol_methods"]),
        ({"profile_catalog": []}, []),
        ({"profile_catalog": [1]}, ["profile_catalog"]),
        ({"profile_catalog": {"main": 3}}, ["profile_catalog.main"]),
        (
            {"profile_catalog": {"m": {"allowed_tool_names": "sum"}}},
            ["profile_catalog.m.allowed_tool_names"],
        ),
        (
            {"profile_catalog": {"m": {"default_subagent_profile": "yes"}}},
            ["profile_catalog.m.default_subagent_profile"],
        ),
        ({"config_schema_snapshot": {"type": "nonsense"}}, ["config_schema_snapshot"]),
        ({"conversation_override_schema_snapshot": "x"}, ["conversation_override_schema_snapshot"]),
        ({"default_config_snapshot": 3}, ["default_config_snapshot"]),
        ({"default_config_snapshot": {"interactive": 3}}, ["default_config_snapshot.interactive"]),
        (
            {"default_config_snapshot": {"subagents": {"enabled": "false"}}},
            ["default_config_snapshot.subagents.enabled"],
        ),
        (
            {"default_config_snapshot": {"tool_policy_overlays": [{"match": {}}]}},
            ["default_config_snapshot.tool_policy_overlays[0]"],
        ),
        (
            {"tool_catalog": [{**TOOL, "tool_name": "A"}], "sdk_version": ""},
            ["sdk_version", "tool_catalog[0].tool_name"],
        ),
    ],
)
def test_every_malformed_part_is_named(changes: dict[str, Any], paths: list[str]) -> None:
    if paths:
        assert faults_of(**changes) == paths
    else:
        assert read(**changes).profile_catalog == {}


def test_text_with_nul_is_refused_before_a_database_refuses_it() -> None:
    assert faults_of(protocol_methods=["a\x00b"]) == [""]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"tool_catalog": []}, {"path": "tool_catalog.sum", "change": "removed"}),
        (
            {"tool_catalog": [TOOL, {**TOOL, "tool_name": "product"}]},
            {"path": "tool_catalog.product", "change": "added"},
        ),
        (
            {"tool_catalog": [{**TOOL, "description": "Adds."}]},
            {"path": "tool_catalog.sum", "change": "changed", "fields": ["description"]},
        ),
        (
            {"profile_catalog": {"main": {}, "other": {}}},
            {"path": "profile_catalog.main", "change": "changed", "fields": ["allowed_tool_names"]},
        ),
        ({"sdk_version": "2"}, {"path": "sdk_version", "change": "changed"}),
        ({"protocol_methods": []}, {"path": "protocol_methods", "change": "changed"}),
        (
            {"default_config_snapshot": {"interactive": {"profile": "main"}}},
            {"path": "default_config_snapshot.subagents", "change": "removed"},
        ),
    ],
)
def test_a_difference_is_told_by_its_place(changes: dict[str, Any], difference: dict[str, Any]) -> None:
    assert definition_diff(read(), read(**changes)) == [difference]


def test_equal_definitions_do_not_differ() -> None:
    assert definition_diff(read(), read()) == []


def test_the_planes_show_what_was_declared() -> None:
    plane = program_plane(read())

    assert plane["runtime_plane"] == "program"
    assert plane["program_version_fingerprint"] == "release-1"
    assert plane["tool_catalog"] == [TOOL]
    assert set(plane) == {
        "runtime_plane",
        "program_version_fingerprint",
        "protocol_methods",
        "tool_catalog",
        "profile_catalog",
        "config_schema_snapshot",
        "conversation_override_schema_snapshot",
        "default_config_snapshot",
    }
    assert execution_plane({"os": "linux"}, [TOOL]) == {
        "runtime_plane": "execution",
        "capability_payload": {"os": "linux"},
        "tool_catalog": [TOOL],
    }
