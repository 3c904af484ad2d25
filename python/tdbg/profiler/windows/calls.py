"""Calls with a beginning and a duration: how they nest, and what their names add up to.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_NAMES", "Nesting", "largest", "nest", "operators_event"]

MOST_NAMES = 300
"""An event has at most so many operators or functions."""
_LONGEST_NAME = 300


class Nesting(NamedTuple):
    """How calls lie in each other; one entry for each call, in the given order.

    Attributes:
        own_ns: Duration without the calls inside.
        parents: Index of the call around it in the same thread; -1: none.
        depths: How many calls are around it.
    """

    own_ns: list[int]
    parents: list[int]
    depths: list[int]


def nest(
    threads: Sequence[int], starts: Sequence[int], durations: Sequence[int]
) -> Nesting:
    """Find out which calls lie in which others of the same thread.

    Args:
        threads: The thread of each call.
        starts: When each began, in ns.
        durations: How long each took, in ns.

    Example:
        >>> nest([1, 1, 1], [0, 2, 6], [10, 3, 2])
        Nesting(own_ns=[5, 3, 2], parents=[-1, 0, 0], depths=[0, 1, 1])
    """
    thread, start, duration = (
        np.asarray(each) for each in (threads, starts, durations)
    )
    order = np.lexsort((-duration, start, thread))
    thread, start, duration = thread[order], start[order], duration[order]
    around = _around(thread, start, start + duration)
    inside = np.flatnonzero(around >= 0)
    outer = around[inside]
    shared = np.minimum(duration[inside], (start + duration)[outer] - start[inside])
    # Sums of nanoseconds below 2^53, so that float64 has them exactly.
    taken = np.bincount(outer, shared, len(order)).astype(np.int64)
    depths, rest = np.zeros(len(order), np.int64), around
    while (is_inside := rest >= 0).any():
        depths += is_inside
        rest = np.where(is_inside, around[rest], -1)
    parents = np.where(around >= 0, order[around], -1)
    own, outermost, level = (np.empty_like(depths) for _ in range(3))
    own[order], outermost[order], level[order] = duration - taken, parents, depths
    return Nesting(own.tolist(), outermost.tolist(), level.tolist())


def _around(
    threads: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the call around each one, in calls that are sorted by thread and start.

    That is the last one before it which has not ended.  Whoever is not around a call is
    not around the next ones either, so that each looks where the one before it looks.
    """
    around = np.arange(-1, len(starts) - 1)
    left = np.flatnonzero(around >= 0)
    while len(left):
        before = around[left]
        others = threads[before] != threads[left]
        around[left[others]] = -1
        has_ended = (ends[before] <= starts[left]) & ~others
        left = left[has_ended]
        around[left] = around[before[has_ended]]
        left = left[around[left] >= 0]
    return around


def largest(rows: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows with the most time of their own, and the time of the others."""
    ordered = sorted(rows, key=lambda row: (-int(row["self_ns"]), str(row["name"])))
    for row in ordered[:MOST_NAMES]:
        row["name"] = str(row["name"])[:_LONGEST_NAME]
    return ordered[:MOST_NAMES], sum(
        int(row["self_ns"]) for row in ordered[MOST_NAMES:]
    )


def operators_event(
    device: str, rows: Collection[dict[str, Any]], n_events: int
) -> dict[str, Any]:
    """Return the event of the operators on a device.

    Args:
        device: ``cpu``, ``cuda``, ...
        rows: One for each name.
        n_events: How many calls they sum up.
    """
    chosen, rest_ns = largest(rows)
    return {
        "what": "operators",
        "device": device,
        "operators": chosen,
        "n_names": len(rows),
        "n_events": n_events,
        "rest_ns": rest_ns,
    }
