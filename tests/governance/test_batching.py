"""Stages of a round."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.batching import CompletionBarrier, DispatchMode, Stage, StagedCall, StageKind, build_stages

PARALLEL = StageKind.PARALLEL_SAFE_GROUP
SERIAL = StageKind.SERIAL_GROUP


def calls_of(pattern: str) -> list[StagedCall]:
    return [StagedCall(position, letter == "P") for position, letter in enumerate(pattern)]


@pytest.mark.parametrize(
    ("pattern", "stages"),
    [
        ("", []),
        ("P", [(PARALLEL, DispatchMode.SERIAL, (0,))]),
        ("S", [(SERIAL, DispatchMode.SERIAL, (0,))]),
        (
            "PPSPP",
            [
                (PARALLEL, DispatchMode.PARALLEL, (0, 1)),
                (SERIAL, DispatchMode.SERIAL, (2,)),
                (PARALLEL, DispatchMode.PARALLEL, (3, 4)),
            ],
        ),
        (
            "PSP",
            [
                (PARALLEL, DispatchMode.SERIAL, (0,)),
                (SERIAL, DispatchMode.SERIAL, (1,)),
                (PARALLEL, DispatchMode.SERIAL, (2,)),
            ],
        ),
        ("SS", [(SERIAL, DispatchMode.SERIAL, (0,)), (SERIAL, DispatchMode.SERIAL, (1,))]),
        ("PPP", [(PARALLEL, DispatchMode.PARALLEL, (0, 1, 2))]),
    ],
)
def test_calls_are_staged_as_the_core_document_says(
    pattern: str, stages: list[tuple[StageKind, DispatchMode, tuple[int, ...]]]
) -> None:
    assert build_stages(calls_of(pattern)) == tuple(Stage(*stage) for stage in stages)


@given(st.text("PS", max_size=60))
def test_staging_loses_nothing_keeps_the_order_and_groups_all_it_may(pattern: str) -> None:
    stages = build_stages(calls_of(pattern))

    assert [position for stage in stages for position in stage.positions] == list(range(len(pattern)))
    for stage in stages:
        assert stage.completion_barrier is CompletionBarrier.WAIT_ALL
        assert {pattern[position] for position in stage.positions} == {"P" if stage.kind is PARALLEL else "S"}
        assert len(stage.positions) == 1 or stage.kind is PARALLEL
        parallel = stage.dispatch_mode is DispatchMode.PARALLEL
        assert parallel == (len(stage.positions) > 1)
    assert not any(first.kind is second.kind is PARALLEL for first, second in pairwise(stages))


def test_positions_are_kept_where_earlier_calls_were_refused() -> None:
    calls = [StagedCall(1, parallel_safe=True), StagedCall(4, parallel_safe=True)]

    assert build_stages(calls) == (Stage(PARALLEL, DispatchMode.PARALLEL, (1, 4)),)
