"""What operators see of a round in the Temporal UI. Pure, so that the round's own code may use it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.common import SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes

from governance.codes import RoundState
from governance.names import EXPOSED_NAME
from workflows.messages import KEY_ATTRIBUTE, STATE_ATTRIBUTE, TOOLS_ATTRIBUTE, UNKNOWN_ATTRIBUTE

SHOWN_TOOLS = 10
"""Tool names in the summary and search attributes of a round; their sizes are limited by the engine."""

KEY_ID_MAX = 64
"""Characters of a key's id that are shown; the engine fails a workflow whose attribute is too long."""

SUMMARY_MAX = 200
"""Characters of a summary: the engine takes 400 bytes."""


@dataclass(frozen=True)
class RoundLabel:
    """What operators see of a round in the Temporal UI, whoever started it; names only, never arguments."""

    round_id: str
    key_id: str
    tool_names: Sequence[str]
    """The tools asked for, one name for each call, as the model gave them."""

    @property
    def names(self) -> list[str]:
        """The names that are fit for an operator's list, each once; a model may ask for anything."""
        fit = dict.fromkeys(name for name in self.tool_names if EXPOSED_NAME.fullmatch(name))
        return list(fit)[:SHOWN_TOOLS]

    @property
    def summary(self) -> str:
        """One line: how many calls, of which tools."""
        count = len(self.tool_names)
        calls = "1 call" if count == 1 else f"{count} calls"
        return " · ".join([calls, *self.names])[:SUMMARY_MAX]

    @property
    def details(self) -> str:
        """The round's ids and tools, one a line."""
        lines = [f"Round {self.round_id}", f"Key {self.key_id}", f"Calls {len(self.tool_names)}"]
        return "\n".join([*lines, *(f"- {name}" for name in self.names)])

    @property
    def attributes(self) -> TypedSearchAttributes:
        """What rounds are filtered by."""
        return TypedSearchAttributes(
            [
                SearchAttributePair(KEY_ATTRIBUTE, self.key_id),
                SearchAttributePair(STATE_ATTRIBUTE, RoundState.REQUESTED.value),
                SearchAttributePair(TOOLS_ATTRIBUTE, self.names),
                SearchAttributePair(UNKNOWN_ATTRIBUTE, value=False),
            ]
        )

    @property
    def updates(self) -> list[SearchAttributeUpdate[Any]]:
        """The same, as a round sets them by itself. Whoever reaches the engine may have named any key."""
        return [
            KEY_ATTRIBUTE.value_set(self.key_id[:KEY_ID_MAX]),
            STATE_ATTRIBUTE.value_set(RoundState.REQUESTED.value),
            TOOLS_ATTRIBUTE.value_set(self.names),
            UNKNOWN_ATTRIBUTE.value_set(value=False),
        ]
