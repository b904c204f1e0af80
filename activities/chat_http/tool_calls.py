"""Tool calls in answers, made regular, since every provider writes them a little differently. Pure: no I/O.

A streamed call has an ``index`` in every delta, its id, type and name in the first delta alone, and arguments
that are text. Clients add up what they get, so a repeated id or name is as wrong as a missing index.
Source: the OpenAI API reference, Chat Completions, the chunk object; https://github.com/maximhq/bifrost/issues/810.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from activities.chat_http.types import JSON
from activities.mcp_http.wire import as_object


@dataclass
class _Slot:
    """One call of a stream: the id and the name told so far."""

    id: str
    name: str = ""


@dataclass
class _Choice:
    slots: list[_Slot] = field(default_factory=list[_Slot])
    by_index: dict[int, int] = field(default_factory=dict[int, int])
    """The slot that an index of the provider stands for now."""


class ToolCallShaper:
    """Makes the tool calls of one answer regular; feed it deltas in order."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}

    def whole(self, completion_id: JSON, choice: int, calls: Sequence[JSON]) -> list[JSON]:
        """Return the calls of a whole message: each with an id, a type and arguments that are text."""
        shaped: list[JSON] = []
        for number, given in enumerate(calls):
            call = as_object(given)
            if call is None:
                continue
            shaped.append(
                {
                    **call,
                    "id": _text(call.get("id")) or made_up_id(completion_id, choice, number),
                    "type": call.get("type") or "function",
                    **_function(call),
                }
            )
        return shaped

    def deltas(self, completion_id: JSON, choice: int, calls: Sequence[JSON]) -> list[JSON]:
        """Return the deltas of one chunk: each with an index, and with id, type and name only once."""
        state = self._choices.setdefault(choice, _Choice())
        shaped: list[JSON] = []
        for given in calls:
            call = as_object(given)
            if call is not None:
                shaped.append(_delta(state, completion_id, choice, call))
        return shaped


def made_up_id(completion_id: JSON, choice: int, number: int) -> str:
    """Return an id for a call that has none, the same whenever it is made for the same call."""
    named = f"{completion_id}:{choice}:{number}".encode("utf-8", "replace")
    return "call_" + hashlib.sha256(named).hexdigest()[:24]


def _delta(state: _Choice, completion_id: JSON, choice: int, call: dict[str, JSON]) -> dict[str, JSON]:
    number, is_first = _place(state, completion_id, choice, call)
    slot = state.slots[number]
    delta: dict[str, JSON] = {**call, "index": number, **_function(call)}
    for once in ("id", "type"):
        delta.pop(once, None)
    if is_first:
        delta |= {"id": slot.id, "type": call.get("type") or "function"}
    function = as_object(delta.get("function"))
    if function is not None and "name" in function:
        name = _text(function.get("name"))
        if not is_first and name in ("", slot.name):
            del function["name"]
        else:
            slot.name += name
            function["name"] = name
    return delta


def _place(state: _Choice, completion_id: JSON, choice: int, call: dict[str, JSON]) -> tuple[int, bool]:
    """Return the slot that a delta belongs to, and whether it is the first of its call."""
    given_id = _text(call.get("id"))
    index = _index(call)
    found = _known(state, given_id, index, names_a_tool=_names_a_tool(call))
    if found is not None:
        return found, False
    number = len(state.slots)
    state.slots.append(_Slot(given_id or made_up_id(completion_id, choice, number)))
    if index is not None:
        state.by_index[index] = number
    return number, True


def _known(state: _Choice, given_id: str, index: int | None, *, names_a_tool: bool) -> int | None:
    """Return the slot of a call that has begun already, None for a new one."""
    by_id = next(
        (number for number, slot in enumerate(state.slots) if given_id and slot.id == given_id), None
    )
    if by_id is not None:
        return by_id
    if index is not None:
        # Some providers send every call under index 0; a new id under a known index is a new call.
        return None if given_id else state.by_index.get(index)
    # Neither index nor id: whole calls name their tool, fragments continue the last one.
    return None if given_id or names_a_tool or not state.slots else len(state.slots) - 1


def _index(call: dict[str, JSON]) -> int | None:
    index = call.get("index")
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def _names_a_tool(call: dict[str, JSON]) -> bool:
    return bool(_text((as_object(call.get("function")) or {}).get("name")))


def _function(call: dict[str, JSON]) -> dict[str, JSON]:
    """Return the function of a call with arguments that are text; nothing where it has none."""
    function = as_object(call.get("function"))
    if function is None:
        return {}
    shaped = dict(function)
    if "arguments" in shaped:
        shaped["arguments"] = _arguments(shaped["arguments"])
    return {"function": shaped}


def _arguments(value: JSON) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else ""
