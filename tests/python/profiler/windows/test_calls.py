"""How calls nest, and what their names add up to."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tdbg.profiler.windows.calls import MOST_NAMES, largest, nest


def test_a_call_has_its_duration_without_the_calls_inside() -> None:
    #  0 [0, 100): 1 [10, 40): 2 [15, 20); 3 [50, 90).  4 is in another thread.
    found = nest([7, 7, 7, 7, 8], [0, 10, 15, 50, 0], [100, 30, 5, 40, 60])
    assert found.own_ns == [30, 25, 5, 40, 60]
    assert found.parents == [-1, 0, 1, 0, -1]
    assert found.depths == [0, 1, 2, 1, 0]


def test_the_order_of_the_events_does_not_matter() -> None:
    calls = [(0, 100), (10, 30), (15, 5), (50, 40)]
    totals = set()
    for chosen in itertools.permutations(calls):
        starts, durations = zip(*chosen, strict=True)
        own = nest([1] * 4, starts, durations).own_ns
        totals.add(tuple(sorted(zip(starts, own, strict=True))))
    assert totals == {((0, 30), (10, 25), (15, 5), (50, 40))}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(0, 50))))
def test_no_time_is_counted_twice(calls: list[tuple[int, int, int]]) -> None:
    threads, starts, durations = zip(*calls, strict=True) if calls else ((), (), ())
    found = nest(threads, starts, durations)
    outer = sum(
        duration
        for duration, parent in zip(durations, found.parents, strict=True)
        if parent < 0
    )
    # A call that outlasts the one around it is charged there for what lies inside.
    assert sum(found.own_ns) >= outer


def test_what_an_event_has_no_room_for_is_summed_up() -> None:
    rows = [{"name": str(i), "self_ns": i} for i in range(MOST_NAMES + 3)]
    chosen, rest_ns = largest(rows)
    assert len(chosen) == MOST_NAMES
    assert chosen[0]["self_ns"] == MOST_NAMES + 2
    assert rest_ns == 0 + 1 + 2
