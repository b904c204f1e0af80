"""The built-in tools that have a runner, as entries of the core catalog. Pure: no I/O.

The subagent family has five names, all reserved; a name enters the catalog together with its runner.
"""

from collections.abc import Iterable
from typing import Final

from governance.canonical import JSON
from governance.catalogs import ToolEntry
from governance.modes import SourceKind
from governance.profiles import SUBAGENT_DEFAULT
from governance.subagents import SPAWN

BUILT_IN: Final = "built_in"
"""The one source of the built-in tools."""

LIST: Final = "subagent_list"
"""The tool that shows a conversation its own subagents; the only built-in one that is parallel-safe."""

EFFECT_INTENT: Final = "effect_intent"
AGENT_OBSERVATION: Final = "agent_observation"

_ID: Final[JSON] = {"type": "string"}

_SPAWNED: Final[JSON] = {
    "type": "object",
    "properties": {
        "subagent_session_id": _ID,
        "conversation_id": _ID,
        "turn_id": _ID,
        "workflow_run_id": _ID,
        "agent_task_run_id": _ID,
        "profile_key": {"type": "string"},
        "scope": {"type": "string"},
        "parent_subagent_session_id": {"type": ["string", "null"]},
        "subagent_depth": {"type": "integer"},
    },
}

_LISTED: Final[JSON] = {
    "type": "object",
    "properties": {"entries": {"type": "array", "items": {"type": "object"}}},
}


def core_catalog(profile_keys: Iterable[str] = ()) -> tuple[ToolEntry, ...]:
    """Return the built-in catalog, its spawn tool with the profile keys that a caller may name.

    The schema with the keys is the only one there is: models see it, rounds freeze it and arguments are
    checked against it.
    """
    return (_spawn(profile_keys), _list())


def _spawn(profile_keys: Iterable[str]) -> ToolEntry:
    keys = list(dict.fromkeys((SUBAGENT_DEFAULT, *profile_keys)))
    profile: dict[str, JSON] = {
        "type": "string",
        "enum": keys,
        "description": (
            f"The profile of the subagent, one of: {', '.join(keys)}. Leave it out, or write "
            f"{SUBAGENT_DEFAULT}, for the one that subagents get."
        ),
    }
    schema: dict[str, JSON] = {
        "type": "object",
        "properties": {
            "content": {
                "type": "string",
                "minLength": 1,
                "description": "What the subagent is to do, in full.",
            },
            "scope": {
                "type": "string",
                "enum": ["conversation", "turn"],
                "default": "conversation",
                "description": "A subagent of scope turn ends with the current turn.",
            },
            "profile_key": profile,
            "task_payload": {"type": "object", "description": "Data to hand to the subagent's task."},
        },
        "required": ["content"],
        "additionalProperties": False,
    }
    return _entry(SPAWN, EFFECT_INTENT, "Start a subagent that works on a task of its own.", schema, _SPAWNED)


def _list() -> ToolEntry:
    schema: dict[str, JSON] = {"type": "object", "properties": {}, "additionalProperties": False}
    text = "List the subagents of this conversation and their states."
    return _entry(LIST, AGENT_OBSERVATION, text, schema, _LISTED)


def _entry(name: str, kind: str, description: str, schema: JSON, result: JSON) -> ToolEntry:
    return ToolEntry(
        tool_name=name,
        tool_kind=kind,
        source=SourceKind.CORE_MATRIX,
        source_ref=BUILT_IN,
        implementation_ref=f"core_matrix/{name}",
        upstream_name=name,
        description=description,
        input_schema=schema,
        result_schema=result,
        declared_policy={"parallel_safe": name == LIST},
    )
