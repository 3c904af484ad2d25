"""From tdbg's histogram to the buckets that TensorBoard draws.

The 128 bins to a power of two become 8, each 7 to 13 % wide: as fine as the buckets
that TensorBoard's own writers make, and every count stays whole, because edges of
buckets are edges of bins.  Zeros are in the bucket of what is nearer to zero than
2^-129.  NaN and infinities have no place on an axis and are left out.

Thread safety: pure functions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tdbg.histogram import INFINITY, SIGN, Histogram

__all__ = ["buckets"]

_SHIFT = 4  # 2^4 bins make a bucket.
_END = INFINITY >> _SHIFT

Column = NDArray[np.float64]


def buckets(histogram: Histogram) -> tuple[Column, Column]:
    """The right edges of the buckets, ascending, and how many elements each has.

    A bucket begins where the one before ends, so that there are empty ones in the
    gaps; the first begins at its least element.  Of no finite element: none.
    """
    magnitude = (histogram.keys & ~np.uint16(SIGN)).astype(np.int64)
    finite = magnitude < INFINITY
    place = magnitude[finite] >> _SHIFT
    place[histogram.keys[finite] >= SIGN] *= -1
    found, which = np.unique(place, return_inverse=True)
    counts = np.bincount(which, histogram.counts[finite], len(found))
    # What an empty bucket before each but the first ends at, where one is needed.
    gaps = np.flatnonzero(np.diff(found) > 1) + 1
    limits = np.insert(_right(found), gaps, _left(found[gaps]))
    return limits, np.insert(counts, gaps, 0.0)


def _right(place: NDArray[np.int64]) -> Column:
    return np.where(place >= 0, _edge(place + 1), -_edge(-place))


def _left(place: NDArray[np.int64]) -> Column:
    return np.where(place > 0, _edge(place), -_edge(1 - place))


def _edge(place: NDArray[np.int64]) -> Column:
    """The end nearer to zero of a positive bucket; of others anything."""
    bits = np.clip(place, 0, _END).astype(np.uint32) << (16 + _SHIFT)
    edges = bits.view(np.float32).astype(np.float64)
    return np.where(place == _END, 2.0**128, edges)
