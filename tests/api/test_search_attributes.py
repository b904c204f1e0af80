"""Search attributes are registered where they are missing, and can be used once registering returns."""

from pathlib import Path

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from api.embedded import EmbeddedTemporal
from api.search_attributes import SEARCH_ATTRIBUTES, SearchAttributeConflict, register_search_attributes
from tests.support.temporal_server import TEST_OPTIONS
from workflows.messages import KEY_ATTRIBUTE

pytestmark = pytest.mark.anyio


async def forget_attributes(client: Client, *names: str) -> None:
    await client.operator_service.remove_search_attributes(
        RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=names)
    )


async def start_with_a_key(client: Client, workflow_id: str) -> None:
    await client.start_workflow(
        "NobodyRuns",
        id=workflow_id,
        task_queue="nobody-listens",
        search_attributes=TypedSearchAttributes([SearchAttributePair(KEY_ATTRIBUTE, "key-1")]),
    )


async def test_attributes_of_an_older_data_file_are_added_at_the_next_start(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path) as older:
        await forget_attributes(await Client.connect(older.address), *SEARCH_ATTRIBUTES)
    async with EmbeddedTemporal(tmp_path) as newer:
        client = await Client.connect(newer.address)
        await start_with_a_key(client, "found-by-key")
        assert await register_search_attributes(client) == ()


async def test_registering_names_what_it_added_and_waits_until_it_can_be_used(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, TEST_OPTIONS) as server:
        client = await Client.connect(server.address)
        await forget_attributes(client, KEY_ATTRIBUTE.name)
        assert await register_search_attributes(client) == (KEY_ATTRIBUTE.name,)
        await start_with_a_key(client, "found-by-key")


async def test_an_attribute_of_another_type_is_named_and_left_alone(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path, TEST_OPTIONS) as server:
        client = await Client.connect(server.address)
        await forget_attributes(client, "HasUnknown")
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes={"HasUnknown": IndexedValueType.INDEXED_VALUE_TYPE_INT},
            )
        )
        with pytest.raises(SearchAttributeConflict, match="HasUnknown") as conflict:
            await register_search_attributes(client)
        assert conflict.value.names == ["HasUnknown"]
