"""The search attributes that operators filter rounds by in the Temporal UI, and their registration."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workflows.messages import KEY_ATTRIBUTE, STATE_ATTRIBUTE, TOOLS_ATTRIBUTE, UNKNOWN_ATTRIBUTE

SEARCH_ATTRIBUTES: Mapping[str, IndexedValueType.ValueType] = {
    attribute.name: IndexedValueType.ValueType(attribute.indexed_value_type)
    for attribute in (KEY_ATTRIBUTE, STATE_ATTRIBUTE, TOOLS_ATTRIBUTE, UNKNOWN_ATTRIBUTE)
}
"""Name to type."""

COMMAND_LINE_TYPES: Mapping[IndexedValueType.ValueType, str] = {
    IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD: "Keyword",
    IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST: "KeywordList",
    IndexedValueType.INDEXED_VALUE_TYPE_BOOL: "Bool",
}
"""What the `temporal` command calls the types in use."""

USABLE_TIMEOUT_S = 30.0
"""A cluster's nodes read new attributes within seconds; until then a start that carries one is refused."""


class SearchAttributeConflict(Exception):
    """The namespace has an attribute of one of our names with another type: rounds start without them."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        super().__init__(
            f"the Temporal namespace has {', '.join(names)} with another type: rename them there,"
            " or rounds start without search attributes"
        )


async def register_search_attributes(client: Client) -> tuple[str, ...]:
    """Add what the client's namespace lacks, wait until it can be used, and return the names added.

    Raises:
        SearchAttributeConflict: a name is taken by another type.
        RPCError: the cluster forbids it (PERMISSION_DENIED), or cannot be reached.
        TimeoutError: the new attributes did not become usable.
    """
    request = ListSearchAttributesRequest(namespace=client.namespace)
    present = (await client.operator_service.list_search_attributes(request)).custom_attributes
    conflicts = [name for name, kind in SEARCH_ATTRIBUTES.items() if present.get(name, kind) != kind]
    if conflicts:
        raise SearchAttributeConflict(conflicts)
    missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in present}
    if not missing:
        return ()
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
    except RPCError as exc:
        # Another process registered them in between.
        if exc.status != RPCStatusCode.ALREADY_EXISTS:
            raise
    async with asyncio.timeout(USABLE_TIMEOUT_S):
        while not await _are_usable(client):  # noqa: ASYNC110 - The cluster tells nobody when it has read them.
            await asyncio.sleep(0.1)
    return tuple(missing)


async def _are_usable(client: Client) -> bool:
    query = " AND ".join(f"{name} IS NULL" for name in SEARCH_ATTRIBUTES)
    with suppress(RPCError):
        await client.count_workflows(query)
        return True
    return False
