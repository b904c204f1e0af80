"""The three levels of tool filtering once more, as sets of tools and without any of the code under test.

Written from the gateway document, section 2, and compared with `governance.decision` over whole worlds.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """One caller, its connections and its request, all values as an operator or a client writes them.

    `offered` is what the servers offer: connection to upstream names that need no hashing.
    """

    offered: dict[str, tuple[str, ...]]
    baselines: dict[str, tuple[str, ...] | None]
    grants: dict[str, tuple[str, ...]] | None = None
    open_to_all: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    clients_header: tuple[str, ...] | None = None
    tools_header: tuple[str, ...] | None = None
    narrow: bool = False
    key_enabled: bool = True
    missing: frozenset[str] = frozenset()


Tools = frozenset[tuple[str, str]]


def usable(world: World) -> Tools:
    """The tools that the caller may use."""
    everything = frozenset(
        (connection, tool) for connection, tools in world.offered.items() for tool in tools
    )
    if (
        not world.key_enabled
        or asks_for_nothing(world.clients_header)
        or asks_for_nothing(world.tools_header)
    ):
        return frozenset()
    gone = world.disabled | world.missing
    baseline = frozenset(
        (connection, tool)
        for connection, tool in everything
        if connection not in gone and on_list(world.baselines[connection], tool)
    )
    requested = in_clients(world, everything) & in_tools(world, everything)
    if world.grants is None:
        return baseline & requested
    granted = frozenset(
        (connection, tool)
        for connection, tool in everything
        if (connection in world.grants and on_list(world.grants[connection], tool))
        or (connection not in world.grants and connection in world.open_to_all)
    )
    return baseline & granted & requested if world.narrow else baseline & granted


def on_list(names: tuple[str, ...] | None, tool: str) -> bool:
    """Whether a tool list, which may be null, names the tool or all tools."""
    return names is not None and (names == ("*",) or tool in names)


def words(header: tuple[str, ...]) -> list[str]:
    """The entries of a header that may be repeated."""
    return [word.strip() for word in ",".join(header).split(",") if word.strip()]


def asks_for_nothing(header: tuple[str, ...] | None) -> bool:
    """Whether a header was sent and names nothing."""
    return header is not None and set(words(header)) <= {"none"}


def in_clients(world: World, everything: Tools) -> Tools:
    """The tools that the clients header leaves."""
    if world.clients_header is None or "*" in words(world.clients_header):
        return everything
    return frozenset(pair for pair in everything if pair[0] in words(world.clients_header))


def in_tools(world: World, everything: Tools) -> Tools:
    """The tools that the tools header leaves."""
    if world.tools_header is None or "*" in words(world.tools_header):
        return everything
    named = words(world.tools_header)
    return frozenset(
        (connection, tool)
        for connection, tool in everything
        if f"{connection}-{tool}" in named or f"{connection}-*" in named
    )
