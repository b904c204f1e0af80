"""What an agent program declares of one version: read it, compare it, and answer with both planes.

Pure: no I/O. Source: core document, capability handshake.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from governance.canonical import JSON, canonical_bytes, digest_of, is_array, is_object
from governance.catalog_entries import RegisteredServer, read_program_catalog
from governance.catalogs import ToolEntry
from governance.execution_policy import overlay_problem
from governance.faults import Fault, Faults
from governance.profiles import ALLOWED_NAMES, DEFAULT_FOR_SUBAGENTS
from governance.schemas import SchemaProblem, compile_schema
from governance.subagents import policy_faults

OVERLAYS_FIELD: Final = "tool_policy_overlays"
"""Where a program's default configuration holds overlays."""

TEXTS: Final = ("fingerprint", "protocol_version", "sdk_version")
"""Fields that every declaration has."""

LONGEST_TEXT: Final = 255
MAX_PROFILES: Final = 200


def _nothing() -> dict[str, JSON]:
    return {}


@dataclass(frozen=True)
class ProgramDefinition:
    """Everything that a program version is; immutable under its fingerprint.

    The parts are JSON as declared; the order of profiles in their catalog has a meaning and is kept.
    """

    fingerprint: str
    protocol_version: str
    sdk_version: str
    protocol_methods: Sequence[JSON] = ()
    tool_catalog: Sequence[JSON] = ()
    profile_catalog: Mapping[str, JSON] = field(default_factory=_nothing)
    config_schema_snapshot: Mapping[str, JSON] = field(default_factory=_nothing)
    conversation_override_schema_snapshot: Mapping[str, JSON] = field(default_factory=_nothing)
    default_config_snapshot: Mapping[str, JSON] = field(default_factory=_nothing)

    def to_json(self) -> dict[str, JSON]:
        """Return the definition as stored."""
        return {
            "fingerprint": self.fingerprint,
            "protocol_version": self.protocol_version,
            "sdk_version": self.sdk_version,
            "protocol_methods": list(self.protocol_methods),
            "tool_catalog": list(self.tool_catalog),
            "profile_catalog": dict(self.profile_catalog),
            "config_schema_snapshot": dict(self.config_schema_snapshot),
            "conversation_override_schema_snapshot": dict(self.conversation_override_schema_snapshot),
            "default_config_snapshot": dict(self.default_config_snapshot),
        }

    @classmethod
    def from_json(cls, payload: Mapping[str, JSON]) -> "ProgramDefinition":
        """Read a stored definition back."""
        return cls(**payload)

    @cached_property
    def digest(self) -> str:
        """Name the definition by its content, the order of its profiles included."""
        return digest_of([self.to_json(), list(self.profile_catalog)])


def read_definition(
    body: Mapping[str, JSON], version_ref: str, servers: Iterable[RegisteredServer]
) -> tuple[ProgramDefinition, tuple[ToolEntry, ...]]:
    """Read a declaration, and its tool catalog with the sources that follow from the channel.

    Raises:
        Faults: with every fault of every part.
    """
    faults: list[Fault] = []
    for name in TEXTS:
        value = body.get(name)
        if not isinstance(value, str) or not value.strip() or "\x00" in value or len(value) > LONGEST_TEXT:
            faults.append(Fault(name, f"is text of at most {LONGEST_TEXT} characters"))
    parts: dict[str, JSON] = {
        "protocol_methods": body.get("protocol_methods") or [],
        "tool_catalog": body.get("tool_catalog") or [],
        "profile_catalog": body.get("profile_catalog") or {},
        "config_schema_snapshot": body.get("config_schema_snapshot") or {},
        "conversation_override_schema_snapshot": body.get("conversation_override_schema_snapshot") or {},
        "default_config_snapshot": body.get("default_config_snapshot") or {},
    }
    if not is_array(parts["protocol_methods"]):
        faults.append(Fault("protocol_methods", "is an array"))
    entries, catalog_faults = read_program_catalog(parts["tool_catalog"], version_ref, servers)
    faults += catalog_faults
    faults += _profile_faults(parts["profile_catalog"])
    for name in ("config_schema_snapshot", "conversation_override_schema_snapshot"):
        faults += _schema_faults(parts[name], name)
    faults += _config_faults(parts["default_config_snapshot"])
    if not faults and "\\u0000" in canonical_bytes(parts).decode():
        faults.append(Fault("", "holds the character NUL"))
    if faults:
        raise Faults(faults)
    return ProgramDefinition.from_json({**{name: body[name] for name in TEXTS}, **parts}), entries


def definition_diff(stored: ProgramDefinition, sent: ProgramDefinition) -> list[dict[str, JSON]]:
    """Return how two definitions differ, as {"path", "change"}: added, removed or changed; [] for equal."""
    before, after = stored.to_json(), sent.to_json()
    differences: list[dict[str, JSON]] = []
    for part, old in before.items():
        new = after[part]
        if part == "tool_catalog":
            differences += _compared(part, _by_name(old), _by_name(new))
        elif is_object(old):
            differences += _compared(part, old, new)
            if list(old) != list(new) and sorted(old) == sorted(new) and part == "profile_catalog":
                differences.append({"path": part, "change": "reordered"})
        elif old != new:
            differences.append({"path": part, "change": "changed"})
    return differences


def program_plane(definition: ProgramDefinition) -> dict[str, JSON]:
    """Return the program's own plane as the handshake answers it; policies stand as declared."""
    plane = definition.to_json()
    fingerprint = plane.pop("fingerprint")
    del plane["protocol_version"], plane["sdk_version"]
    return {"runtime_plane": "program", "program_version_fingerprint": fingerprint, **plane}


def execution_plane(payload: Mapping[str, JSON], tool_catalog: Sequence[JSON]) -> dict[str, JSON]:
    """Return the execution runtime's plane as the handshake answers it."""
    return {
        "runtime_plane": "execution",
        "capability_payload": dict(payload),
        "tool_catalog": list(tool_catalog),
    }


def _profile_faults(profiles: JSON) -> list[Fault]:
    if not is_object(profiles) or len(profiles) > MAX_PROFILES:
        return [Fault("profile_catalog", f"is an object of at most {MAX_PROFILES} profiles")]
    faults: list[Fault] = []
    for key, profile in profiles.items():
        place = f"profile_catalog.{key}"
        if not key or len(key) > LONGEST_TEXT:
            faults.append(Fault(place, "has a key that is not blank"))
        if not is_object(profile):
            faults.append(Fault(place, "is an object"))
            continue
        names = profile.get(ALLOWED_NAMES, [])
        if not is_array(names) or not all(isinstance(name, str) for name in names):
            faults.append(Fault(f"{place}.{ALLOWED_NAMES}", "is an array of tool names"))
        if not isinstance(profile.get(DEFAULT_FOR_SUBAGENTS, False), bool):
            faults.append(Fault(f"{place}.{DEFAULT_FOR_SUBAGENTS}", "is true or false"))
    return faults


def _schema_faults(schema: JSON, path: str) -> list[Fault]:
    if not is_object(schema):
        return [Fault(path, "is a JSON Schema object")]
    compiled = compile_schema(schema) if schema else None
    return [Fault(path, f"cannot be used: {compiled.reason}")] if isinstance(compiled, SchemaProblem) else []


def _config_faults(config: JSON) -> list[Fault]:
    path = "default_config_snapshot"
    if not is_object(config):
        return [Fault(path, "is an object")]
    faults: list[Fault] = []
    interactive = config.get("interactive", {})
    if not is_object(interactive) or not isinstance(interactive.get("profile", "main"), str):
        faults.append(Fault(f"{path}.interactive", "is an object whose profile is text"))
    if "subagents" in config:
        faults += policy_faults(config["subagents"], f"{path}.subagents")
    overlays = config.get(OVERLAYS_FIELD, [])
    if not is_array(overlays):
        return [*faults, Fault(f"{path}.{OVERLAYS_FIELD}", "is an array")]
    problems = ((number, overlay_problem(overlay)) for number, overlay in enumerate(overlays))
    faults += [
        Fault(f"{path}.{OVERLAYS_FIELD}[{n}]", f"is not an overlay: {problem}")
        for n, problem in problems
        if problem
    ]
    return faults


def _by_name(catalog: Sequence[JSON]) -> dict[str, JSON]:
    """Return tools by name and, for one that is declared again, by name and reference."""
    named: dict[str, JSON] = {}
    for tool in catalog:
        name = tool["tool_name"]
        named[name if name not in named else f"{name} ({tool['implementation_ref']})"] = tool
    return named


def _compared(part: str, old: Mapping[str, JSON], new: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    changes: list[dict[str, JSON]] = []
    for name in dict.fromkeys((*old, *new)):
        path = f"{part}.{name}"
        if name not in new:
            changes.append({"path": path, "change": "removed"})
        elif name not in old:
            changes.append({"path": path, "change": "added"})
        elif old[name] != new[name]:
            changes.append({"path": path, "change": "changed", "fields": _fields(old[name], new[name])})
    return changes


def _fields(old: JSON, new: JSON) -> list[str]:
    if not is_object(old) or not is_object(new):
        return []
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
