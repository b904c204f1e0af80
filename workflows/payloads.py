"""How inputs and results stand in the engine's history: as JSON, read and written by pydantic."""

from functools import cache
from typing import Any

from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)

from activities.finalizing import FinalizedRound, FinalizeRound
from activities.freezing import FreezeRound, FrozenRound
from activities.tool_calls import CallTool, CallToolResult
from workflows.messages import RoundInput, RoundResult

ROUND_MESSAGES = (
    RoundInput,
    FreezeRound,
    FrozenRound,
    CallTool,
    CallToolResult,
    FinalizeRound,
    FinalizedRound,
    RoundResult,
)
"""What every round sends and receives."""


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


class _SharedJSON(PydanticJSONPlainPayloadConverter):
    """The SDK's converter, with the adapters of all its users in one place.

    The SDK makes a converter for each workflow, so that each round would build the adapters of its messages
    anew: 14 ms of CPU time for a round, where reading the messages themselves takes a tenth of one.
    """

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        return _adapter(Any if type_hint is None else type_hint).validate_json(payload.data)


_JSON = _SharedJSON()


class PayloadConverter(CompositePayloadConverter):
    """The SDK's default converters, JSON by pydantic."""

    def __init__(self) -> None:
        """Keep the order of the SDK's converters: the contract with other languages hangs on it."""
        defaults = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(*(_JSON if isinstance(one, JSONPlainPayloadConverter) else one for one in defaults))


data_converter = DataConverter(payload_converter_class=PayloadConverter)
"""What every client and worker of ours uses; its bytes are those of the SDK's `pydantic_data_converter`."""


def prepare_round_messages() -> None:
    """Build what reads the messages of rounds now, and not in the first round."""
    for message in ROUND_MESSAGES:
        _adapter(message)
