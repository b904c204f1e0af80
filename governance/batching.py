"""Split the calls of a round into stages that run one after another. Pure: no I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class StageKind(StrEnum):
    """Why the calls of a stage stand together."""

    PARALLEL_SAFE_GROUP = "parallel_safe_group"
    SERIAL_GROUP = "serial_group"


class DispatchMode(StrEnum):
    """How the calls of a stage are started."""

    PARALLEL = "parallel"
    SERIAL = "serial"


class CompletionBarrier(StrEnum):
    """What must hold before the next stage may start."""

    WAIT_ALL = "wait_all"


@dataclass(frozen=True)
class StagedCall:
    """What batching needs to know of a call: its place in the model's order and its policy."""

    position: int
    parallel_safe: bool


@dataclass(frozen=True)
class Stage:
    """Calls, by position, that may run together; the next stage waits for all of them."""

    kind: StageKind
    dispatch_mode: DispatchMode
    positions: tuple[int, ...]
    completion_barrier: CompletionBarrier = CompletionBarrier.WAIT_ALL


def build_stages(calls: Iterable[StagedCall]) -> tuple[Stage, ...]:
    """Group adjacent parallel-safe calls; every other call is a stage of its own.

    The model's order is kept: read through the stages, the positions come out as they went in. A
    parallel-safe call with no neighbour keeps its kind and is dispatched serially.
    """
    stages: list[Stage] = []
    safe: list[int] = []
    for call in calls:
        if call.parallel_safe:
            safe.append(call.position)
            continue
        _close_group(stages, safe)
        safe = []
        stages.append(Stage(StageKind.SERIAL_GROUP, DispatchMode.SERIAL, (call.position,)))
    _close_group(stages, safe)
    return tuple(stages)


def _close_group(stages: list[Stage], positions: Sequence[int]) -> None:
    if positions:
        mode = DispatchMode.PARALLEL if len(positions) > 1 else DispatchMode.SERIAL
        stages.append(Stage(StageKind.PARALLEL_SAFE_GROUP, mode, tuple(positions)))
