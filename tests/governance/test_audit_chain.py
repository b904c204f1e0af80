"""A walk along the chain names every way in which the trail is not what was chained."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governance.audit_chain import EMPTY, ChainedEvent, ChainFault, ChainHead, ChainWalk, link_hash


def chain(length: int) -> list[ChainedEvent]:
    links: list[ChainedEvent] = []
    previous = EMPTY.hash
    for number in range(1, length + 1):
        event = {"id": number * 10, "kind": "call_sent", "data": {"position": number}}
        previous = link_hash(previous, number, event)
        links.append(ChainedEvent(number, number * 10, previous, event))
    return links


def walked(
    links: list[ChainedEvent], head: ChainHead, start: ChainHead = EMPTY
) -> list[tuple[ChainFault, int]]:
    walk = ChainWalk(start, (head,))
    for link in links:
        walk.step(link)
    return [(problem.fault, problem.number) for problem in walk.finish()]


WHOLE = chain(6)
HEAD = ChainHead(6, WHOLE[-1].hash)


def test_a_chain_that_nobody_touched_holds_from_any_link_on() -> None:
    assert walked(WHOLE, HEAD) == []
    for number in range(1, 7):
        start = ChainHead(number, WHOLE[number - 1].hash)
        assert walked(WHOLE[number:], HEAD, start) == []


def with_changed_data(links: list[ChainedEvent]) -> list[ChainedEvent]:
    return [*links[:2], replace(links[2], event={**(links[2].event or {}), "data": {}}), *links[3:]]


def without_an_event(links: list[ChainedEvent]) -> list[ChainedEvent]:
    return [*links[:2], replace(links[2], event=None), *links[3:]]


def without_a_link(links: list[ChainedEvent]) -> list[ChainedEvent]:
    return [*links[:2], *links[3:]]


def with_two_events_changed_over(links: list[ChainedEvent]) -> list[ChainedEvent]:
    first, second = links[2], links[3]
    return [
        *links[:2],
        replace(first, event_id=second.event_id, event=second.event),
        replace(second, event_id=first.event_id, event=first.event),
        *links[4:],
    ]


@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (with_changed_data, [(ChainFault.CHANGED, 3)]),
        (without_an_event, [(ChainFault.DELETED, 3)]),
        (without_a_link, [(ChainFault.REORDERED, 3)]),
        (with_two_events_changed_over, [(ChainFault.CHANGED, 3), (ChainFault.CHANGED, 4)]),
        (lambda links: links[:4], [(ChainFault.TRUNCATED, 5)]),
        (lambda _links: [], [(ChainFault.TRUNCATED, 1)]),
    ],
)
def test_each_way_of_tampering_is_named_where_it_was_done(
    tamper: Callable[[list[ChainedEvent]], list[ChainedEvent]], found: list[tuple[ChainFault, int]]
) -> None:
    assert walked(tamper(WHOLE), HEAD) == found


def test_a_chain_made_anew_is_found_by_a_head_that_was_kept_apart() -> None:
    forged = chain(8)
    forged[2] = replace(forged[2], event={"id": 30, "kind": "call_sent", "data": {"position": 99}})
    previous = EMPTY.hash
    anew: list[ChainedEvent] = []
    for link in forged:
        previous = link_hash(previous, link.number, link.event or {})
        anew.append(replace(link, hash=previous))

    walk = ChainWalk(EMPTY, (ChainHead(8, previous), HEAD))
    for link in anew:
        walk.step(link)

    assert [problem.fault for problem in walk.finish()] == [ChainFault.HEAD_MISMATCH]


def test_a_head_before_the_start_can_not_be_held_against_what_is_left() -> None:
    start = ChainHead(4, WHOLE[3].hash)
    walk = ChainWalk(start, (HEAD, ChainHead(2, WHOLE[1].hash)))
    for link in WHOLE[4:]:
        walk.step(link)

    assert [problem.fault for problem in walk.finish()] == [ChainFault.PRUNED]


@given(st.permutations(range(6)), st.integers(0, 6))
def test_every_other_order_and_every_cut_is_found(order: list[int], kept: int) -> None:
    events = [WHOLE[index] for index in order][:kept]
    moved = [
        replace(event, number=number, hash=WHOLE[number - 1].hash) for number, event in enumerate(events, 1)
    ]

    assert bool(walked(moved, HEAD)) == (order != sorted(order) or kept < 6)
