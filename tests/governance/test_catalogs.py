"""The effective catalog: precedence, reserved names, order, policies; also against a model of plain loops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.catalogs import (
    EffectiveCatalog,
    OverlayLayers,
    ToolEntry,
    compose_effective_catalog,
)
from governance.core_tools import core_catalog
from governance.execution_policy import PolicyLayer, PolicyOverlay
from governance.modes import GovernanceMode, SourceKind, is_reserved_name
from governance.schemas import ToolSchema, compile_schema

CORE, RUNTIME, AGENT, KERNEL, MCP = SourceKind


def entry(name: str, source: SourceKind = AGENT, ref: str = "", parallel: object = None) -> ToolEntry:
    return ToolEntry(
        tool_name=name,
        tool_kind="agent_observation",
        source=source,
        source_ref="somewhere",
        implementation_ref=ref or f"{source.value}/{name}",
        upstream_name=name,
        description=None,
        input_schema={"type": "object"},
        declared_policy=None if parallel is None else {"parallel_safe": parallel},
        connection_name="files" if source is MCP else None,
    )


def names(catalog: EffectiveCatalog) -> list[str]:
    return [tool.entry.tool_name for tool in catalog.tools]


def test_of_a_name_in_all_layers_the_core_wins_then_the_runtime() -> None:
    core, runtime, program = entry("x", CORE), entry("x", RUNTIME), entry("x")

    everyone = compose_effective_catalog([core], [runtime], [program])
    without_core = compose_effective_catalog([], [runtime], [program])

    assert everyone.tools[0].entry is core
    assert everyone.losers == {"x": (runtime, program)}
    assert without_core.tools[0].entry is runtime
    assert without_core.losers == {"x": (program,)}


def test_of_a_name_twice_in_one_layer_the_first_wins() -> None:
    first, second = entry("x", ref="one"), entry("x", ref="two")

    catalog = compose_effective_catalog([], [], [first, second])

    assert [tool.entry for tool in catalog.tools] == [first]
    assert catalog.losers == {"x": (second,)}


@pytest.mark.parametrize("layer", ["runtime", "program"])
@pytest.mark.parametrize("name", ["subagent_spawn", "subagent_wait", "core_matrix__x"])
def test_no_lower_layer_takes_a_reserved_name_even_where_the_core_lacks_it(name: str, layer: str) -> None:
    claimed = entry(name, RUNTIME if layer == "runtime" else AGENT)
    layers = {"runtime": [], "program": [], layer: [claimed]}

    without_core = compose_effective_catalog([], layers["runtime"], layers["program"])
    with_core = compose_effective_catalog(core_catalog(), layers["runtime"], layers["program"])

    assert names(without_core) == []
    winner = {tool.entry.tool_name: tool.entry.source for tool in with_core.tools}
    assert winner.get(name) in (CORE, None)
    assert with_core.losers == ({"subagent_spawn": (claimed,)} if name == "subagent_spawn" else {})


def test_reserved_names_come_first_and_each_group_keeps_its_order() -> None:
    core = [entry("plain", CORE), entry("core_matrix__b", CORE), entry("subagent_list", CORE)]

    catalog = compose_effective_catalog(core, [entry("exec", RUNTIME)], [entry("a"), entry("b")])

    assert names(catalog) == ["core_matrix__b", "subagent_list", "plain", "exec", "a", "b"]


def test_nothing_comes_of_nothing() -> None:
    assert compose_effective_catalog([], [], []) == EffectiveCatalog((), {})


def test_only_core_tools_and_mcp_tools_can_be_executed_now() -> None:
    program = [entry("agent"), entry("kernel", KERNEL), entry("remote", MCP)]

    catalog = compose_effective_catalog(core_catalog(), [entry("exec", RUNTIME)], program)

    executable = [tool.entry.tool_name for tool in catalog.executable()]
    assert executable == ["subagent_spawn", "subagent_list", "remote"]


def test_a_tool_without_a_runner_does_not_give_its_name_to_one_that_has_one() -> None:
    catalog = compose_effective_catalog([], [entry("exec", RUNTIME)], [entry("exec", MCP)])

    assert catalog.executable() == ()


def test_among_the_built_in_tools_only_the_list_is_parallel_safe() -> None:
    catalog = compose_effective_catalog(core_catalog(), [], [])

    assert {tool.entry.tool_name: tool.policy.parallel_safe for tool in catalog.tools} == {
        "subagent_spawn": False,
        "subagent_list": True,
    }
    assert {tool.mode for tool in catalog.tools} == {GovernanceMode.RESERVED}


def test_the_schema_of_spawn_names_the_profiles_that_there_are() -> None:
    spawn = core_catalog(["main", "default", "researcher"])[0]

    profile = spawn.input_schema["properties"]["profile_key"]
    assert profile["enum"] == ["default", "main", "researcher"]
    compiled = compile_schema(spawn.input_schema)
    assert isinstance(compiled, ToolSchema)
    assert compiled.check({"content": "x", "profile_key": "researcher"}) == ()
    assert compiled.check({"content": "x", "profile_key": "unknown"}) != ()
    assert core_catalog()[0].input_schema["properties"]["profile_key"]["enum"] == ["default"]


@pytest.mark.parametrize("declared", [True, "yes", 1, False, None])
def test_an_mcp_tool_is_serial_whatever_it_declares(declared: object) -> None:
    catalog = compose_effective_catalog([], [], [entry("remote", MCP, parallel=declared)])

    assert not catalog.tools[0].policy.parallel_safe


def test_the_operators_overlays_come_after_the_programs_and_each_is_named() -> None:
    match = {"tool_name": "x"}
    program = PolicyOverlay(match, {"parallel_safe": True})
    operator = PolicyOverlay(match, {"parallel_safe": False})

    relaxed = compose_effective_catalog([], [], [entry("x")], OverlayLayers(program=[program]))
    overruled = compose_effective_catalog([], [], [entry("x")], OverlayLayers([program], [operator]))

    assert relaxed.tools[0].policy.provenance == (
        PolicyLayer("declared", value=False),
        PolicyLayer("program_overlay:0", value=True),
    )
    assert overruled.tools[0].policy.provenance[-1] == PolicyLayer("overlay:0", value=False)
    assert not overruled.tools[0].policy.parallel_safe


NAMES = st.sampled_from(["a", "b", "c", "subagent_spawn", "core_matrix__x"])


def layers_of(sources: list[SourceKind]) -> st.SearchStrategy[list[ToolEntry]]:
    made = st.builds(
        entry,
        NAMES,
        st.sampled_from(sources),
        st.text("rs", min_size=1, max_size=3),
        st.none() | st.booleans(),
    )
    return st.lists(made, max_size=6)


OVERLAYS = st.lists(
    st.builds(
        PolicyOverlay,
        st.dictionaries(st.sampled_from(["tool_name", "tool_source"]), st.sampled_from(["a", "b", "mcp"])),
        st.fixed_dictionaries({"parallel_safe": st.booleans()}),
    ),
    max_size=3,
)


def expected_policy(tool: ToolEntry, overlays: list[PolicyOverlay]) -> bool:
    value = tool.declared_policy is not None and tool.declared_policy["parallel_safe"] is True
    if tool.source is MCP:
        value = False
    for overlay in overlays:
        actual = {"tool_name": tool.tool_name, "tool_source": tool.source.value}
        if overlay.match and all(actual[key] == wanted for key, wanted in overlay.match.items()):
            value = overlay.execution_policy["parallel_safe"]
    return value


@given(layers_of([CORE]), layers_of([RUNTIME]), layers_of([AGENT, KERNEL, MCP]), OVERLAYS, OVERLAYS)
def test_composing_is_what_reading_the_layers_one_by_one_gives(
    core: list[ToolEntry],
    runtime: list[ToolEntry],
    program: list[ToolEntry],
    mine: list[PolicyOverlay],
    operators: list[PolicyOverlay],
) -> None:
    winners: list[ToolEntry] = []
    for tool in [*core, *runtime, *program]:
        may_win = tool.source is CORE or not is_reserved_name(tool.tool_name)
        if may_win and tool.tool_name not in [winner.tool_name for winner in winners]:
            winners.append(tool)
    in_order = [tool for tool in winners if is_reserved_name(tool.tool_name)]
    in_order += [tool for tool in winners if not is_reserved_name(tool.tool_name)]

    catalog = compose_effective_catalog(core, runtime, program, OverlayLayers(mine, operators))

    assert [tool.entry for tool in catalog.tools] == in_order
    assert all(tool.entry is wanted for tool, wanted in zip(catalog.tools, in_order, strict=True))
    assert [tool.policy.parallel_safe for tool in catalog.tools] == [
        expected_policy(tool, [*mine, *operators]) for tool in in_order
    ]
    assert [tool.policy.provenance[-1].value for tool in catalog.tools] == [
        tool.policy.parallel_safe for tool in catalog.tools
    ]
