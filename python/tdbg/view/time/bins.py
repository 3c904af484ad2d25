"""Rows put together into columns of an axis; no row is left out.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BinColumns", "binned", "covered", "even_edges"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BinColumns:
    """Values in columns of an axis.

    Attributes:
        edges: Bounds of the columns: one has ``edges[j] <= place < edges[j + 1]``.
            Shape (columns + 1,).
        low: The least value of each; NaN if it has none.  Shape (columns,), or
            (rows, columns), like those below.
        high: The greatest.
        mean: The mean.
        rows: How many values each has.  Shape (columns,).
    """

    edges: Integers
    low: Floats
    high: Floats
    mean: Floats
    rows: Integers


def even_edges(first: int, stop: int, most: int) -> Integers:
    """Return the bounds of at most so many columns, all as wide but the last.

    Example:
        >>> even_edges(0, 10, 4).tolist()
        [0, 3, 6, 9, 10]
    """
    width = max(1, -(-(stop - first) // max(1, most)))
    n = -(-max(stop - first, 1) // width)
    edges = first + width * np.arange(n + 1, dtype=np.int64)
    edges[-1] = max(stop, first + 1)
    return edges


def binned(places: Integers, values: NDArray[Any], edges: Integers) -> BinColumns:
    """Return values in columns.

    Args:
        places: Where each value lies, in any order.  Shape (n,).
        values: NaN: not measured.  Shape (n,) or (n, rows).
        edges: As of ``BinColumns``.
    """
    inside = (places >= edges[0]) & (places < edges[-1])
    order = np.flatnonzero(inside)[np.argsort(places[inside], kind="stable")]
    at, found = places[order], np.asarray(values[order], np.float64)
    starts = np.searchsorted(at, edges)
    counts = np.diff(starts)
    return BinColumns(edges, *_reduced(found, starts[:-1], counts), counts)


def covered(times: Integers, values: NDArray[Any], edges: Integers) -> BinColumns:
    """Return samples in columns of time; each stands for the time since the one before.

    A column between two samples, which has none, takes the later one, unless the two
    are further apart than three usual intervals: then nothing was recorded in it.

    Args:
        times: When each sample was taken, ascending.  Shape (n,).
        values: NaN: not measured.  Shape (n,) or (n, rows).
        edges: Bounds of the columns, of the unit of *times*.
    """
    found = binned(times, values, edges)
    if not len(times):
        return found
    usual = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    later = np.searchsorted(times, edges[1:])
    empty = np.flatnonzero((found.rows == 0) & (later < len(times)) & (later > 0))
    later = later[empty]
    is_there = times[later] - times[later - 1] <= 3 * usual
    empty, later = empty[is_there], later[is_there]
    taken = np.asarray(values[later], np.float64).T
    for each in (found.low, found.high, found.mean):
        each[..., empty] = taken
    found.rows[empty] = 1
    return found


def _reduced(
    values: Floats, starts: Integers, counts: Integers
) -> tuple[Floats, Floats, Floats]:
    """Least, greatest and mean of each column, (columns,) or (rows, columns)."""
    shape = (len(starts), *values.shape[1:])
    low, high, mean = (np.full(shape, np.nan) for _ in range(3))
    filled = np.flatnonzero(counts)
    if len(filled):
        at = starts[filled]
        known = np.isfinite(values)
        n = np.add.reduceat(known.astype(np.int64), at, axis=0)
        total = np.add.reduceat(np.where(known, values, 0.0), at, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean[filled] = np.where(n > 0, total / n, np.nan)
        low[filled] = np.fmin.reduceat(values, at, axis=0)
        high[filled] = np.fmax.reduceat(values, at, axis=0)
    return low.T.copy(), high.T.copy(), mean.T.copy()
