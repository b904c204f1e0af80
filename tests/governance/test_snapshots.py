"""Snapshots of tools and the digests that name them."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.canonical import JSON
from governance.codes import IdempotencyClass
from governance.execution_policy import PolicyLayer
from governance.snapshots import ToolSnapshot, frozen_set_digest

SNAPSHOT = ToolSnapshot(
    exposed_name="shop-order",
    upstream_name="order",
    connection="0198",
    connection_name="shop",
    source_kind="mcp",
    description="Orders.",
    input_schema={"type": "object", "properties": {"n": {"maximum": 2**64}}},
    output_schema={"type": "object"},
    annotations={"readOnlyHint": True},
    parallel_safe=True,
    policy_provenance=(PolicyLayer("declared", value=False), PolicyLayer("overlay:0", value=True)),
    timeout_s=30,
    idempotency=IdempotencyClass.KEYED,
    requires_approval=True,
    argument_rules=({"properties": {"n": {"maximum": 5}}},),
)
CORE = ToolSnapshot("subagent_list", "subagent_list", None, None, "core_matrix", None, {})


@pytest.mark.parametrize(
    "snapshot",
    [SNAPSHOT, CORE, SNAPSHOT.with_idempotency(IdempotencyClass.SAFE), CORE.with_timeout(3)],
)
def test_a_stored_snapshot_reads_back_under_the_same_digest(snapshot: ToolSnapshot) -> None:
    read = ToolSnapshot.from_json(json.loads(json.dumps(snapshot.to_json())))

    assert read == snapshot
    assert read.digest == snapshot.digest
    assert len(read.digest) == 64


CHANGES: dict[str, JSON] = {
    "exposed_name": "x",
    "upstream_name": "x",
    "connection": None,
    "connection_name": None,
    "source_kind": "agent",
    "description": "x",
    "input_schema": {},
    "output_schema": None,
    "annotations": None,
    "parallel_safe": False,
    "policy_provenance": (),
    "timeout_s": 31,
    "idempotency": IdempotencyClass.SAFE,
    "requires_approval": False,
    "argument_rules": (),
    "server_url": "http://other.example/mcp",
    "idempotency_provenance": (("connection", "keyed"), ("tool", "safe")),
    "timeout_provenance": (("connection", 30.0), ("tool", 5.0)),
}


def test_every_field_is_part_of_the_digest() -> None:
    assert set(CHANGES) == {field.name for field in fields(ToolSnapshot)}
    digests = {replace(SNAPSHOT, **{name: value}).digest for name, value in CHANGES.items()}

    assert len(digests | {SNAPSHOT.digest}) == len(CHANGES) + 1


def test_the_digest_does_not_depend_on_key_order_or_on_how_seconds_are_written() -> None:
    reordered = replace(SNAPSHOT, input_schema=dict(reversed(SNAPSHOT.input_schema.items())), timeout_s=30.0)

    assert reordered.digest == SNAPSHOT.digest


def test_writing_a_snapshot_shares_its_schemas() -> None:
    written = SNAPSHOT.to_json()

    assert written["input_schema"] is SNAPSHOT.input_schema
    assert ToolSnapshot.from_json(written).input_schema is SNAPSHOT.input_schema


pairs = st.lists(st.tuples(st.text("ab", max_size=2), st.text("01", max_size=2)), max_size=6)


@given(pairs.flatmap(lambda tools: st.tuples(st.just(tools), st.permutations([*tools, *tools[:2]]))))
def test_a_set_of_tools_is_named_whatever_its_order_and_repeats(
    both: tuple[list[tuple[str, str]], list[tuple[str, str]]],
) -> None:
    tools, shuffled = both

    assert frozen_set_digest(shuffled) == frozen_set_digest(iter(tools))


@given(pairs, pairs)
def test_different_sets_of_tools_have_different_names(
    tools: list[tuple[str, str]], others: list[tuple[str, str]]
) -> None:
    assert (frozen_set_digest(tools) == frozen_set_digest(others)) is (set(tools) == set(others))
