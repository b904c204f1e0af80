"""The subagent policy: which of the five tools a conversation loses. Pure: no I/O.

Source: core document, visible catalog, subagent policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from governance.canonical import JSON, is_object
from governance.faults import Fault
from governance.names import SUBAGENT_TOOLS

SPAWN: Final = "subagent_spawn"
"""The tool that nesting and depth take away."""

POLICY_FIELDS: Final = ("enabled", "allow_nested", "max_depth")
"""What a subagent policy may hold."""


@dataclass(frozen=True)
class SubagentPolicy:
    """Whether a conversation has subagents, whether those may have their own, and how deep.

    The first child of a conversation has depth 0; a session whose depth is `max_depth` or more spawns none.
    """

    enabled: bool = True
    allow_nested: bool = True
    max_depth: int | None = None


@dataclass(frozen=True)
class SubagentPlace:
    """Where a conversation stands: None of depth for one that is no subagent's."""

    depth: int | None = None


ROOT: Final = SubagentPlace()
"""A conversation with a person, or a round without a conversation."""


def merged_policy(default_config: Mapping[str, JSON], override: Mapping[str, JSON] | None) -> SubagentPolicy:
    """Merge `subagents` of the program's default configuration and of a conversation, which wins."""
    merged = {**_subagents(default_config), **_subagents(override or {})}
    depth = merged.get("max_depth")
    return SubagentPolicy(
        enabled=merged.get("enabled", True) is True,
        allow_nested=merged.get("allow_nested", True) is True,
        max_depth=depth if isinstance(depth, int) and not isinstance(depth, bool) else None,
    )


def withheld_tools(policy: SubagentPolicy, place: SubagentPlace) -> frozenset[str]:
    """Return the names that the policy removes from the visible catalog.

    Disabled subagents remove all five. In a subagent, nesting that is not allowed, or a depth that has
    reached the limit, removes the spawn tool; neither applies to a root conversation.
    """
    if not policy.enabled:
        return SUBAGENT_TOOLS
    if place.depth is None:
        return frozenset()
    too_deep = policy.max_depth is not None and place.depth >= policy.max_depth
    return frozenset({SPAWN}) if too_deep or not policy.allow_nested else frozenset()


def policy_faults(value: JSON, path: str) -> list[Fault]:
    """Return what is wrong with a `subagents` object, which must be exact: text never counts as a flag."""
    if not is_object(value):
        return [Fault(path, "is an object")]
    faults = [
        Fault(f"{path}.{name}", f"is not part of a subagent policy, which has {', '.join(POLICY_FIELDS)}")
        for name in value
        if name not in POLICY_FIELDS
    ]
    faults += [
        Fault(f"{path}.{name}", "is true or false")
        for name in ("enabled", "allow_nested")
        if name in value and not isinstance(value[name], bool)
    ]
    depth = value.get("max_depth")
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 0):
        faults.append(Fault(f"{path}.max_depth", "is a whole number, 0 or more"))
    return faults


def override_faults(payload: JSON) -> list[Fault]:
    """Return why a conversation may not override what `payload` says; only `interactive` is fixed."""
    if not is_object(payload):
        return [Fault("override_payload", "is an object")]
    faults: list[Fault] = []
    if "interactive" in payload:
        faults.append(Fault("override_payload.interactive", "cannot be overridden by a conversation"))
    if "subagents" in payload:
        faults += policy_faults(payload["subagents"], "override_payload.subagents")
    return faults


def _subagents(config: Mapping[str, JSON]) -> Mapping[str, JSON]:
    value = config.get("subagents")
    return value if is_object(value) else {}
