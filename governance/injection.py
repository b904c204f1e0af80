"""Which of a key's tools are added to a chat request, and never one twice. Pure: no I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from governance.canonical import JSON, is_object
from governance.names import folded_name


class NoTools(StrEnum):
    """Why no tool was added to a request."""

    NONE_VISIBLE = "none_visible"
    """The key and the request's headers leave nothing."""

    REQUEST_ASKS_FOR_NONE = "request_asks_for_none"
    ALL_GIVEN_BY_CALLER = "all_given_by_caller"
    MODEL_WITHOUT_TOOLS = "model_without_tools"
    LEGACY_FUNCTIONS = "legacy_functions"
    """The request uses `functions`, which providers refuse beside `tools`."""


@dataclass(frozen=True)
class Injection:
    """The tools to add, in the order in which they are sent; with none, `reason` says why."""

    names: tuple[str, ...]
    reason: NoTools | None


def plan_injection(
    visible: Sequence[str], given: Iterable[JSON], *, asks_for_nothing: bool = False
) -> Injection:
    """Choose what to add of the visible tools; their order is kept, since prompt caches depend on it.

    `visible` are exposed names, `given` the caller's own tools as it wrote them. A caller's tool of the very
    name of a visible one is that tool; failing that it stands for those that differ from it in case,
    separators or an `mcp` prefix alone (`mcp__files__read`, `files_read`), as agents rename what they list.
    """
    if asks_for_nothing:
        return Injection((), NoTools.REQUEST_ASKS_FOR_NONE)
    if not visible:
        return Injection((), NoTools.NONE_VISIBLE)
    brought = {name for name in map(given_name, given) if name is not None}
    copies = brought.intersection(visible)
    renamed = {folded_name(name) for name in brought - copies}
    names = tuple(
        name for name in visible if name not in copies and not (renamed and folded_name(name) in renamed)
    )
    return Injection(names, None if names else NoTools.ALL_GIVEN_BY_CALLER)


def given_name(tool: JSON) -> str | None:
    """Return the name of a tool in a request, None where it has none, as built-in and broken ones."""
    if not is_object(tool):
        return None
    function = tool.get("function")
    name = function.get("name") if is_object(function) else tool.get("name")
    return name if isinstance(name, str) else None
