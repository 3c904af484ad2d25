"""Calls with a beginning and a duration: how they nest, and what their names add up to.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["MOST_NAMES", "Nesting", "largest", "nest"]

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
    n = len(starts)
    own, parents, depths = list(durations), [-1] * n, [0] * n
    order = np.lexsort(
        (-np.asarray(durations), np.asarray(starts), np.asarray(threads))
    )
    thread: int | None = None
    around: list[int] = []
    ends: list[int] = []
    for i in order.tolist():
        start, duration = starts[i], durations[i]
        if threads[i] != thread:
            thread = threads[i]
            around.clear()
            ends.clear()
        while ends and ends[-1] <= start:
            around.pop()
            ends.pop()
        if around:
            parent = parents[i] = around[-1]
            own[parent] -= min(start + duration, ends[-1]) - start
            depths[i] = len(around)
        around.append(i)
        ends.append(start + duration)
    return Nesting(own, parents, depths)


def largest(rows: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows with the most time of their own, and the time of the others."""
    ordered = sorted(rows, key=lambda row: (-int(row["self_ns"]), str(row["name"])))
    for row in ordered[:MOST_NAMES]:
        row["name"] = str(row["name"])[:_LONGEST_NAME]
    return ordered[:MOST_NAMES], sum(
        int(row["self_ns"]) for row in ordered[MOST_NAMES:]
    )
