"""Resolve whether a tool may run beside others: declaration, source default, overlays. Pure: no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from governance.canonical import JSON, is_object

MATCH_KEYS: Final = ("server_slug", "tool_kind", "tool_name", "tool_source")
"""What an overlay may ask of a tool."""

PARALLEL_SAFE: Final = "parallel_safe"
"""The one field of an execution policy."""

_SERIAL_SOURCE = "mcp"


@dataclass(frozen=True)
class PolicyOverlay:
    """An operator's change to the policy of every tool for which all of `match` holds.

    `match` maps keys of `MATCH_KEYS` to the exact value wanted; empty, it matches no tool. A policy without
    `parallel_safe: true` makes the tools it matches serial.
    """

    match: Mapping[str, str]
    execution_policy: Mapping[str, JSON]


@dataclass(frozen=True)
class PolicySubject:
    """What overlays can match, and the policy that the tool's own entry declares (any JSON value)."""

    tool_source: str
    server_slug: str | None
    tool_name: str
    tool_kind: str | None
    declared: JSON = None


@dataclass(frozen=True)
class PolicyLayer:
    """One layer that had a say: `declared`, `source_default` or `overlay:<index>`, and what it said."""

    layer: str
    value: bool

    def to_json(self) -> dict[str, JSON]:
        """Return the layer as stored: layer, value."""
        return {"layer": self.layer, "value": self.value}


@dataclass(frozen=True)
class ResolvedPolicy:
    """The policy in force and the layers it came from, the last of which decided."""

    parallel_safe: bool
    provenance: tuple[PolicyLayer, ...]


def overlay_problem(value: JSON) -> str | None:
    """Return why a JSON value may not be written as an overlay, or None."""
    if not is_object(value):
        return "An overlay is an object with match and execution_policy."
    if unknown := sorted(set(value) - {"match", "execution_policy"}):
        return f"{unknown[0]!r} is not a field of an overlay; it has match and execution_policy."
    return _match_problem(value.get("match")) or _policy_problem(value.get("execution_policy"))


def resolve_execution_policy(tool: PolicySubject, overlays: Sequence[PolicyOverlay]) -> ResolvedPolicy:
    """Return the policy of a tool; later layers win.

    The layers are the tool's own declaration, the default of its source (mcp forces serial) and each matching
    overlay in order. Only the JSON value true makes a tool parallel-safe. Source: core document, execution
    policy and parallel safety.
    """
    layers = [PolicyLayer("declared", _says_parallel(tool.declared))]
    if tool.tool_source == _SERIAL_SOURCE:
        layers.append(PolicyLayer("source_default", value=False))
    layers.extend(
        PolicyLayer(f"overlay:{index}", _says_parallel(dict(overlay.execution_policy)))
        for index, overlay in enumerate(overlays)
        if _matches(overlay, tool)
    )
    return ResolvedPolicy(layers[-1].value, tuple(layers))


def _says_parallel(policy: JSON) -> bool:
    return is_object(policy) and policy.get(PARALLEL_SAFE) is True


def _matches(overlay: PolicyOverlay, tool: PolicySubject) -> bool:
    actual = {
        "server_slug": tool.server_slug,
        "tool_kind": tool.tool_kind,
        "tool_name": tool.tool_name,
        "tool_source": tool.tool_source,
    }
    # A tool that lacks the value asked for never matches, not even where a blank is asked for.
    return bool(overlay.match) and all(
        bool(actual.get(key)) and actual[key] == wanted for key, wanted in overlay.match.items()
    )


def _match_problem(match: object) -> str | None:
    if not is_object(match) or not match:
        return "match is an object with at least one condition; an empty one would match no tool."
    for key, wanted in match.items():
        if key not in MATCH_KEYS:
            return f"{key!r} cannot be matched; use {', '.join(MATCH_KEYS)}."
        if not isinstance(wanted, str) or not wanted.strip():
            return f"The value wanted of {key} is a string that is not blank."
    return None


def _policy_problem(policy: object) -> str | None:
    if not is_object(policy) or not policy:
        return f"execution_policy is an object with {PARALLEL_SAFE}."
    for key, value in policy.items():
        if key != PARALLEL_SAFE:
            return f"{key!r} is not part of an execution policy; it has {PARALLEL_SAFE}."
        if not isinstance(value, bool):
            return f"{PARALLEL_SAFE} is true or false."
    return None
