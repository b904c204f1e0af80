"""Whole worlds: layers, profiles, policy, depth, key and request drawn together, against a plain reading.

`expected` is written from the text of the specification: names are taken away, level by level, and a tool's
level is the first that takes it.
"""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from governance.canonical import JSON
from governance.catalogs import OverlayLayers, ToolEntry, compose_effective_catalog
from governance.decision import ConnectionRules, DecisionContext, Denied, GovernedTool, KeyRules, decide
from governance.execution_policy import PolicyOverlay
from governance.filters import RequestFilter, parse_request_filter
from governance.modes import SourceKind
from governance.profiles import allowed_names, profile_key
from governance.subagents import SubagentPlace, merged_policy, withheld_tools

FIVE = {"subagent_spawn", "subagent_send", "subagent_wait", "subagent_close", "subagent_list"}
NAMES = ("subagent_spawn", "subagent_list", "core_matrix__x", "search", "read", "plain")
PROFILES = ("main", "lean", "nobody")


@dataclass(frozen=True)
class Drawn:
    """A world as it is declared; `layers` are (name, declared parallel-safe) by source, core first."""

    core: tuple[tuple[str, bool], ...]
    runtime: tuple[tuple[str, bool], ...]
    agent: tuple[tuple[str, bool], ...]
    servers: tuple[tuple[str, bool], ...]
    """What the program declares on its connection, after its own tools."""
    profiles: dict[str, JSON]
    session_profile: str | None
    config: dict[str, JSON]
    override: dict[str, JSON]
    depth: int | None
    is_program: bool
    core_tools: bool
    granted: tuple[str, ...] | None
    """What the key's configuration grants of the connection; None where the key has no configuration."""
    listed: tuple[str, ...]
    """What the connection lets be executed."""
    header: tuple[str, ...] | None
    overlays: tuple[tuple[dict[str, str], bool], ...]


def layers_of(drawn: Drawn) -> list[tuple[str, tuple[tuple[str, bool], ...]]]:
    return [
        ("core_matrix", drawn.core),
        ("execution_runtime", drawn.runtime),
        ("agent", drawn.agent),
        ("mcp", drawn.servers),
    ]


def winners(drawn: Drawn) -> dict[str, tuple[str, bool]]:
    """Name, source and policy of what the layers come to."""
    found: dict[str, tuple[str, bool]] = {}
    for source, entries in layers_of(drawn):
        for name, declared in entries:
            reserved = name in FIVE or name.startswith("core_matrix__")
            if name in found or (reserved and source != "core_matrix"):
                continue
            parallel = declared and source != "mcp"
            for match, value in drawn.overlays:
                said = {"tool_name": name, "tool_source": source}
                if match and all(said[key] == wanted for key, wanted in match.items()):
                    parallel = value
            found[name] = (source, parallel)
    return found


def hidden_by(drawn: Drawn, name: str, source: str) -> str | None:
    """Name the level that takes a tool away, or None for a tool that is left."""
    if source not in {"core_matrix", "mcp"}:
        return "catalog"
    profile = drawn.session_profile or drawn.config.get("interactive", {}).get("profile") or "main"
    if drawn.profiles:
        if profile not in drawn.profiles:
            return "profile"
        allowed = drawn.profiles[profile].get("allowed_tool_names")
        if allowed is not None and name not in allowed:
            return "profile"
    policy = {"enabled": True, "allow_nested": True, "max_depth": None}
    policy |= drawn.config.get("subagents", {}) | drawn.override.get("subagents", {})
    if not policy["enabled"] and name in FIVE:
        return "subagents"
    if name == "subagent_spawn" and drawn.depth is not None:
        limit = policy["max_depth"]
        if not policy["allow_nested"] or (limit is not None and drawn.depth >= limit):
            return "subagents"
    return hidden_by_lists(drawn, name, source)


def hidden_by_lists(drawn: Drawn, name: str, source: str) -> str | None:
    if source == "core_matrix":
        if not (drawn.is_program or drawn.core_tools):
            return "key"
        return "request" if drawn.header == ("",) else None
    if name not in drawn.listed:
        return "connection"
    if drawn.granted is not None and name not in drawn.granted:
        return "key"
    # A key without a configuration leaves it to the request; one with a configuration does not ask it.
    narrowed = drawn.granted is None and drawn.header is not None and not {"fs-*", "*"} & set(drawn.header)
    return "request" if drawn.header == ("",) or narrowed else None


def entries(pool: tuple[str, ...]) -> st.SearchStrategy[tuple[tuple[str, bool], ...]]:
    return st.lists(st.tuples(st.sampled_from(pool), st.booleans()), max_size=5).map(tuple)


POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "enabled": st.booleans(),
        "allow_nested": st.booleans(),
        "max_depth": st.none() | st.integers(0, 2),
    },
)
WORLDS = st.builds(
    Drawn,
    core=entries(("subagent_spawn", "subagent_list", "core_matrix__x", "plain")),
    runtime=entries(NAMES),
    agent=entries(NAMES),
    servers=entries(("search", "read", "write", "subagent_list")),
    profiles=st.dictionaries(
        st.sampled_from(PROFILES[:2]),
        st.fixed_dictionaries(
            {}, optional={"allowed_tool_names": st.lists(st.sampled_from(NAMES), max_size=4)}
        ),
    ),
    session_profile=st.none() | st.sampled_from(PROFILES),
    config=st.fixed_dictionaries(
        {}, optional={"subagents": POLICIES, "interactive": st.just({"profile": "lean"})}
    ),
    override=st.fixed_dictionaries({}, optional={"subagents": POLICIES}),
    depth=st.none() | st.integers(0, 3),
    is_program=st.booleans(),
    core_tools=st.booleans(),
    granted=st.none() | st.lists(st.sampled_from(NAMES), max_size=4).map(tuple),
    listed=st.just(NAMES) | st.lists(st.sampled_from(NAMES), max_size=3).map(tuple),
    header=st.none()
    | st.just(("",))
    | st.lists(st.sampled_from(["fs-*", "zz-*", "fs-other", "*"]), min_size=1, max_size=2).map(tuple),
    overlays=st.lists(
        st.tuples(
            st.fixed_dictionaries(
                {},
                optional={
                    "tool_name": st.sampled_from(NAMES),
                    "tool_source": st.sampled_from(["mcp", "agent", "core_matrix"]),
                },
            ),
            st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
)


def entry_of(source: str, name: str, *, parallel: bool) -> ToolEntry:
    entry = ToolEntry(
        tool_name=name,
        tool_kind="agent_observation",
        source=SourceKind(source),
        source_ref=source,
        implementation_ref=f"{source}/{name}",
        upstream_name=name,
        description=None,
        input_schema={},
        declared_policy={"parallel_safe": parallel},
    )
    return replace(entry, connection_id="1", connection_name="fs") if source == "mcp" else entry


def context_of(drawn: Drawn) -> DecisionContext:
    request = parse_request_filter(None, drawn.header)
    assert isinstance(request, RequestFilter)
    configs = None if drawn.granted is None else {"fs": drawn.granted}
    return DecisionContext(
        KeyRules(enabled=True, mcp_configs=configs, core_tools=drawn.core_tools),
        {"fs": ConnectionRules("fs", True, drawn.listed, False)},  # noqa: FBT003
        request,
        allowed_names(drawn.profiles, profile_key(drawn.session_profile, drawn.config)),
        withheld_tools(merged_policy(drawn.config, drawn.override), SubagentPlace(drawn.depth)),
        drawn.is_program,
    )


@settings(max_examples=300)
@given(WORLDS)
def test_whatever_is_declared_is_merged_and_hidden_as_the_text_says(drawn: Drawn) -> None:
    core, runtime, *program = (
        [entry_of(source, name, parallel=parallel) for name, parallel in layer]
        for source, layer in layers_of(drawn)
    )
    overlays = OverlayLayers(
        operator=[PolicyOverlay(match, {"parallel_safe": value}) for match, value in drawn.overlays]
    )
    catalog = compose_effective_catalog(
        core, runtime, [tool for layer in program for tool in layer], overlays
    )

    found = {
        tool.entry.tool_name: (tool.entry.source.value, tool.policy.parallel_safe) for tool in catalog.tools
    }
    levels: dict[str, str | None] = {}
    context = context_of(drawn)
    for tool in catalog.tools:
        entry = tool.entry
        mcp = entry.source is SourceKind.MCP
        governed = GovernedTool(
            entry.tool_name,
            "fs" if mcp else None,
            entry.upstream_name,
            withheld=None if tool.has_runner else "no_runner",
        )
        decision = decide(context, governed)
        levels[entry.tool_name] = decision.level.value if isinstance(decision, Denied) else None

    assert found == winners(drawn)
    assert levels == {name: hidden_by(drawn, name, source) for name, (source, _) in found.items()}
